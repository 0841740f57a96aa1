package ottla.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.WeakHashMap;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.DataSourceStrategy$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import scala.Option;
import scala.runtime.AbstractFunction0;
import scala.runtime.AbstractFunction1;

/**
 * Gives each scan of ottla's that stands below a filter a Python source of its own, planned with that filter.
 * Written for Janino: no lambdas, and types without parameters.
 */
public class NarrowScans extends Rule {
  private static final List FORMATS = Arrays.asList(new Object[] {"ottla", "ottla-log"});
  private static final List COLUMNS = Arrays.asList(new Object[] {"topic", "partition", "offset", "timestamp"});
  private final String mark;
  private final String setting;
  // The optimizer applies rules until nothing changes: a scan that was narrowed stays as it is.
  private final Set narrowed = Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap()));

  /** The option that marks a source to be narrowed, and Spark's setting that lets filters reach it. */
  public NarrowScans(String mark, String setting) {
    this.mark = mark;
    this.setting = setting;
  }

  public TreeNode apply(TreeNode plan) {
    final Expression condition = plan instanceof Filter ? ((Filter) plan).condition() : null;
    return plan.mapChildren(new AbstractFunction1() {
      public Object apply(Object child) {
        if (condition != null && child instanceof DataSourceV2ScanRelation) {
          return narrow((DataSourceV2ScanRelation) child, condition);
        }
        return NarrowScans.this.apply((TreeNode) child);
      }
    });
  }

  private Object narrow(DataSourceV2ScanRelation relation, Expression condition) {
    Object scan = relation.scan();
    if (!(scan instanceof PythonScan) || narrowed.contains(scan)) return relation;
    List filters = new ArrayList();
    collect(condition, filters);
    if (filters.isEmpty()) return relation;
    Object fresh = planIfPossible((PythonScan) scan, filters);
    if (fresh == null) return relation;
    narrowed.add(fresh);
    Object[] parts = new Object[relation.productArity()];
    for (int i = 0; i < parts.length; i++) {
      Object part = relation.productElement(i);
      parts[i] = part == scan ? fresh : part;
    }
    return relation.makeCopy(parts);
  }

  private void collect(Expression condition, List filters) {
    if (condition instanceof And) {
      collect(((And) condition).left(), filters);
      collect(((And) condition).right(), filters);
      return;
    }
    Option found = DataSourceStrategy$.MODULE$.translateFilter(condition, true);
    if (found.isEmpty()) return;
    org.apache.spark.sql.sources.Filter filter = (org.apache.spark.sql.sources.Filter) found.get();
    if (filter instanceof org.apache.spark.sql.sources.IsNotNull) return;
    if (!COLUMNS.containsAll(Arrays.asList(filter.references()))) return;
    filters.add(filter);
  }

  /** Without a plan the scan stays as it is: filters that Python cannot take, times after the year 9999, say. */
  private Object planIfPossible(PythonScan scan, List filters) {
    try {
      return plan(scan, filters);
    } catch (LinkageError error) {
      return null;
    } catch (Exception error) {
      // What is wrong with the source itself, Spark finds out and says when it plans the scan as it was.
      if (!(error instanceof AnalysisException)) Platform.throwException(error);
      return null;
    }
  }

  private Object plan(PythonScan scan, List filters) {
    final String name = (String) field(scan, "shortName");
    if (!FORMATS.contains(name)) return null;
    CaseInsensitiveStringMap given = (CaseInsensitiveStringMap) field(scan, "options");
    if ("false".equalsIgnoreCase(given.get("filterPushdown"))) return null;
    Map with = new HashMap(given.asCaseSensitiveMap());
    with.put(mark, "true");
    final CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(with);
    final StructType schema = scan.readSchema();
    final org.apache.spark.sql.sources.Filter[] wanted = (org.apache.spark.sql.sources.Filter[])
        filters.toArray(new org.apache.spark.sql.sources.Filter[filters.size()]);
    SQLConf settings = SQLConf$.MODULE$.get().clone();
    settings.setConfString(setting, "true");
    return SQLConf$.MODULE$.withExistingConf(settings, new AbstractFunction0() {
      public Object apply() {
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(name);
        PythonScanBuilder builder = new PythonScanBuilder(source, name, schema, options);
        builder.pushFilters(wanted);
        source.getOrCreateReadInfo(name, options, schema, false);
        return builder.build();
      }
    });
  }

  private Object field(Object target, String name) {
    try {
      java.lang.reflect.Field field = target.getClass().getDeclaredField(name);
      field.setAccessible(true);
      return field.get(target);
    } catch (ReflectiveOperationException error) {
      return null;
    }
  }
}
