package ottla.spark.pushdown;

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
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.DataSourceStrategy$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction0;
import scala.runtime.AbstractFunction1;

/**
 * Gives each scan of ottla's of which not everything is wanted a Python source of its own, planned with the filter
 * that stands above it and with the columns that are used.
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
    return below(plan, null, null);
  }

  /** A plan that stands below a filter with a condition, or none, and below operators that use some columns, or all. */
  private TreeNode below(TreeNode plan, List used, final Expression condition) {
    if (plan instanceof DataSourceV2ScanRelation) return narrow((DataSourceV2ScanRelation) plan, used, condition);
    final List wanted = used == null || !(plan instanceof Filter) ? new ArrayList() : new ArrayList(used);
    final boolean known = plan instanceof Project || (plan instanceof Filter && used != null);
    if (known) wanted.add(((QueryPlan) plan).references());
    final Expression nearest = plan instanceof Filter ? ((Filter) plan).condition() : null;
    return plan.mapChildren(new AbstractFunction1() {
      public Object apply(Object child) {
        return below((TreeNode) child, known ? wanted : null, nearest);
      }
    });
  }

  private TreeNode narrow(DataSourceV2ScanRelation relation, List used, Expression condition) {
    Object scan = relation.scan();
    if (!(scan instanceof PythonScan) || narrowed.contains(scan)) return relation;
    List filters = new ArrayList();
    if (condition != null) collect(condition, filters);
    Seq output = used == null ? relation.output() : columns(relation.output(), used);
    if (filters.isEmpty() && output.size() == relation.output().size()) return relation;
    Object fresh = planIfPossible((PythonScan) scan, output, filters);
    if (fresh == null) return relation;
    narrowed.add(fresh);
    Object[] parts = new Object[relation.productArity()];
    for (int i = 0; i < parts.length; i++) {
      Object part = relation.productElement(i);
      parts[i] = part == scan ? fresh : part == relation.output() ? output : part;
    }
    return relation.makeCopy(parts);
  }

  /** Those of a scan's columns that are used; where none is, one that costs little, because there must be rows. */
  private Seq columns(Seq output, final List used) {
    Seq found = (Seq) output.filter(new AbstractFunction1() {
      public Object apply(Object column) {
        for (int i = 0; i < used.size(); i++) {
          if (((AttributeSet) used.get(i)).contains((NamedExpression) column)) return Boolean.TRUE;
        }
        return Boolean.FALSE;
      }
    });
    if (!found.isEmpty()) return found;
    final Object least = cheapest(output);
    return (Seq) output.filter(new AbstractFunction1() {
      public Object apply(Object column) {
        return Boolean.valueOf(column == least);
      }
    });
  }

  private Object cheapest(Seq output) {
    for (int i = 0; i < output.size(); i++) {
      if ("partition".equals(((NamedExpression) output.apply(i)).name())) return output.apply(i);
    }
    return output.last();
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
  private Object planIfPossible(PythonScan scan, Seq output, List filters) {
    try {
      return plan(scan, output, filters);
    } catch (LinkageError error) {
      return null;
    } catch (Exception error) {
      // What is wrong with the source itself, Spark finds out and says when it plans the scan as it was.
      if (!(error instanceof AnalysisException)) Platform.throwException(error);
      return null;
    }
  }

  private Object plan(PythonScan scan, Seq output, List filters) {
    final String name = (String) field(scan, "shortName");
    if (!FORMATS.contains(name)) return null;
    final CaseInsensitiveStringMap given = (CaseInsensitiveStringMap) field(scan, "options");
    StructType all = scan.readSchema();
    StructField[] fields = new StructField[output.size()];
    for (int i = 0; i < fields.length; i++) {
      fields[i] = all.fields()[all.fieldIndex(((NamedExpression) output.apply(i)).name())];
    }
    final StructType schema = new StructType(fields);
    final PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(name);
    if (filters.isEmpty() || "false".equalsIgnoreCase(given.get("filterPushdown"))) {
      if (fields.length == all.length()) return null;
      source.source();
      copy(field(scan, "ds"), source, "dataSourceInPython");
      return new PythonScanBuilder(source, name, schema, given).build();
    }
    Map with = new HashMap(given.asCaseSensitiveMap());
    with.put(mark, "true");
    final CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(with);
    final org.apache.spark.sql.sources.Filter[] wanted = (org.apache.spark.sql.sources.Filter[])
        filters.toArray(new org.apache.spark.sql.sources.Filter[filters.size()]);
    SQLConf settings = SQLConf$.MODULE$.get().clone();
    settings.setConfString(setting, "true");
    return SQLConf$.MODULE$.withExistingConf(settings, new AbstractFunction0() {
      public Object apply() {
        PythonScanBuilder builder = new PythonScanBuilder(source, name, schema, options);
        builder.pushFilters(wanted);
        source.getOrCreateReadInfo(name, options, schema, false);
        return builder.build();
      }
    });
  }

  /** What Python made of the options when the DataFrame was made; without it, Python is asked again. */
  private void copy(Object from, Object to, String name) {
    try {
      java.lang.reflect.Field field = to.getClass().getDeclaredField(name);
      field.setAccessible(true);
      field.set(to, field.get(from));
    } catch (ReflectiveOperationException error) {
      return;
    }
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
