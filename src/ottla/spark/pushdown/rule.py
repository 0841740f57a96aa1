"""Push filters and used columns into ottla's batch reads, correctly even when a DataFrame is used again.

Spark 4.1 to 4.3 keep what a Python source planned for pushed filters with the DataFrame's relation: every later query
over the same relation, and the other side of a join, then reads only what those filters left. So Spark's own pushdown
stays off, and a rule at the end of the optimizer gives each filtered scan a new source with the filters above it.
Filters stay in the plan: a scan that is not narrowed is slower, never wrong. The rule also drops columns that a query
does not use, which Spark does not tell a Python source.

The rule is Java (`NarrowScans.java`), because only the JVM takes part in planning; Janino, Spark's own compiler of
generated code, compiles it on the driver. A Spark Connect client has no JVM: nothing is narrowed there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.pushdown.filters import PUSHED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTING: Final = "spark.sql.python.filterPushdown.enabled"
_CLASS: Final = "ottla.spark.pushdown.NarrowScans"
_SOURCE: Final = Path(__file__).with_name("NarrowScans.java")


def install(spark: SparkSession) -> bool:
    """Add the rule to a session's optimizer, once; return False if it cannot be installed, and nothing is narrowed."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    java: Any = getattr(spark, "_jsparkSession", None)
    if java is None:
        return False
    methods = java.experimental()
    rules = methods.extraOptimizations()
    if any(rules.apply(index).getClass().getName() == _CLASS for index in range(rules.size())):
        return True
    try:
        methods.__getattr__("extraOptimizations_$eq")(rules.appended(_compiled(spark)))
    except (Py4JError, TypeError, OSError):  # another Spark version, no Janino, or no source file
        return False
    return True


def _compiled(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook(_SOURCE.read_text())
    constructor = compiler.getClassLoader().loadClass(_CLASS).getConstructors()[0]
    return constructor.newInstance(_strings(spark, PUSHED, SETTING))


def _strings(spark: SparkSession, *values: str) -> Any:
    gateway: Any = spark.sparkContext._gateway
    array = gateway.new_array(gateway.jvm.java.lang.Object, len(values))
    for index, value in enumerate(values):
        array[index] = value
    return array
