"""Refuse a streaming plan that may give a task other rows when a batch runs again.

Spark passes a Python sink neither plan nor session, so `watch` checks the plan in `DataStreamWriter.start`. With Spark
Connect the plan is on the server, and only the fingerprints of `exactly_once` detect a difference.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.options import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

# Operators whose rows depend on the order of their input, with an alternative.
_OPERATORS: Final = {
    "Sample": "which rows it takes depends on their order; filter by a hash of a column instead",
    "GlobalLimit": "which rows are the first depends on the order in which tasks deliver them",
    "LocalLimit": "which rows are the first depends on the order in which tasks deliver them",
    "Tail": "which rows are the last depends on the order in which tasks deliver them",
}
# Sources that cannot read the same rows again.
_FORGETFUL: Final = ("socket", "textsocket")
_AGGREGATES: Final = "org.apache.spark.sql.catalyst.expressions.aggregate."
_SORTED: Final = "spark.sql.execution.sortBeforeRepartition"
_ADAPTIVE: Final = "spark.sql.adaptive.streaming.stateless.enabled"
_LEAVES: Final = "spark.sql.leafNodeDefaultParallelism"
_PARALLELISM_FILE: Final = "ottla-parallelism"
_MARK: Final = "_ottla_watches"


class PlanRefusedError(OptionError):
    """The plan cannot be written exactly once; the message names the operator and the reason."""


def watch() -> None:
    """Check every query with exactlyOnce when it starts."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    start = DataStreamWriter.start
    if getattr(start, _MARK, False):
        return

    @functools.wraps(start)
    def checked(self: Any, *arguments: Any, **named: Any) -> Any:
        if not _wants_exactly_once(self._jwrite, named):
            return start(self, *arguments, **named)
        check_plan(self._df)
        checkpoint = _checkpoint(self._df.sparkSession, self._jwrite, named)
        if checkpoint is not None:
            check_parallelism(self._df, checkpoint)
        with _without_adaptive_execution(self._df.sparkSession):
            return start(self, *arguments, **named)

    setattr(checked, _MARK, True)
    DataStreamWriter.start = checked


def check_plan(frame: DataFrame) -> None:
    """Raise `PlanRefusedError` if a batch of this plan may have other rows when it runs again."""
    spark = frame.sparkSession
    problems = list(_problems(frame._jdf.queryExecution().analyzed(), spark.conf.get(_SORTED, "true") == "true"))
    if problems:
        raise PlanRefusedError(
            "exactlyOnce is refused, because a batch that runs again may give other rows to its tasks: "
            + "; ".join(dict.fromkeys(problems))
        )


@contextmanager
def _without_adaptive_execution(spark: SparkSession) -> Iterator[None]:
    """Disable adaptive execution while a query starts: with it, the tasks of a batch depend on sizes."""
    before = spark.conf.get(_ADAPTIVE, None)
    spark.conf.set(_ADAPTIVE, "false")
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_ADAPTIVE)
        else:
            spark.conf.set(_ADAPTIVE, before)


def check_parallelism(frame: DataFrame, checkpoint: str) -> None:
    """Refuse to finish a batch of files with another parallelism, by which Spark splits files into tasks.

    The checkpoint holds the parallelism of each start; a batch that has not begun may be split in any way.
    """
    if not _reads_files(frame._jdf.queryExecution().analyzed()):
        return
    spark = frame.sparkSession
    jvm: Any = spark._jvm
    root = jvm.org.apache.hadoop.fs.Path(checkpoint)
    files = root.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    now = str(spark.conf.get(_LEAVES, None) or spark.sparkContext.defaultParallelism)
    begun, done = (_last_batch(jvm, files, root, log) for log in ("offsets", "commits"))
    path = jvm.org.apache.hadoop.fs.Path(root, _PARALLELISM_FILE)
    if begun > done and files.exists(path):
        source = files.open(path)
        kept = str(jvm.org.apache.commons.io.IOUtils.toString(source, "UTF-8"))
        source.close()
        if kept != now:
            raise PlanRefusedError(
                f"exactlyOnce is refused, because batch {begun} of {checkpoint} is unfinished and its files were cut "
                f"into tasks for a parallelism of {kept}, which is {now} now: set {_LEAVES} to {kept} until it is done"
            )
    target = files.create(path, True)
    target.write(bytearray(now.encode()))
    target.close()


def _reads_files(node: Any) -> bool:
    if node.nodeName().startswith("StreamingRelation") and node.sourceName().startswith("FileSource"):
        return True
    return any(_reads_files(_item(node.children(), index)) for index in range(node.children().size()))


def _last_batch(jvm: Any, files: Any, root: Any, log: str) -> int:
    folder = jvm.org.apache.hadoop.fs.Path(root, log)
    names = [status.getPath().getName() for status in files.listStatus(folder)] if files.exists(folder) else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def _wants_exactly_once(jvm_writer: Any, named: dict[str, Any]) -> bool:
    return (_option(jvm_writer, named, "exactlyOnce") or "").lower() == "true"


def _checkpoint(spark: SparkSession, jvm_writer: Any, named: dict[str, Any]) -> str | None:
    """Return the checkpoint folder of a query, unless it is a temporary one."""
    given = _option(jvm_writer, named, "checkpointLocation")
    root = spark.conf.get("spark.sql.streaming.checkpointLocation", None)
    name = _option(jvm_writer, named, "queryName")
    return given or (f"{root}/{name}" if root and name else None)


def _option(jvm_writer: Any, named: dict[str, Any], option: str) -> str | None:
    """Return an option of a query's writer, set by `option` or by `start`."""
    for name, value in named.items():
        if name.lower() == option.lower() and value is not None:
            return str(value)
    value = _private(jvm_writer, "extraOptions").get(option)
    return str(value.get()) if value.isDefined() else None


def _private(target: Any, name: str) -> Any:
    field = target.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(target)


def _problems(node: Any, repartition_is_sorted: bool) -> Iterator[str]:
    name = node.nodeName()
    if name in _OPERATORS:
        yield f"{name}: {_OPERATORS[name]}"
    if name in ("Repartition", "RepartitionByExpression") and not repartition_is_sorted and _round_robin(node):
        yield f"repartition distributes rows round-robin while {_SORTED} is false"
    if name.startswith("StreamingRelation") and node.sourceName().lower() in _FORGETFUL:
        yield f"the source {node.sourceName()} cannot read the same rows again"
    for index in range(node.expressions().size()):
        yield from _expressions(_item(node.expressions(), index))
    for index in range(node.children().size()):
        yield from _problems(_item(node.children(), index), repartition_is_sorted)


def _expressions(expression: Any) -> Iterator[str]:
    """Yield the innermost nondeterministic expressions."""
    if expression.deterministic():
        return
    children = [_item(expression.children(), index) for index in range(expression.children().size())]
    inner = [child for child in children if not child.deterministic()]
    for child in inner:
        yield from _expressions(child)
    # The values of first and collect_list depend on the order of rows; the rows and their destinations do not.
    if not inner and not expression.getClass().getName().startswith(_AGGREGATES):
        yield f"{expression.sql()} is not deterministic"


def _round_robin(node: Any) -> bool:
    return (node.nodeName() == "Repartition" and node.shuffle()) or "RoundRobin" in node.toString()


def _item(sequence: Any, index: int) -> Any:
    return sequence.apply(index)
