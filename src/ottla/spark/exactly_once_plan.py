"""Refuses a streaming plan that may give a task other rows when a batch is run again.

Spark shows a Python sink neither plan nor session, so the plan is looked at where the query starts: `watch` puts the
check before `DataStreamWriter.start`. With Spark Connect the plan is on the server and only the fingerprints of
`exactly_once` notice.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.options import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

# Operators whose rows depend on the order in which rows arrive, with what to do instead.
_OPERATORS: Final = {
    "Sample": "which rows it takes depends on their order; filter by a hash of a column instead",
    "GlobalLimit": "which rows are the first depends on the order in which tasks deliver them",
    "LocalLimit": "which rows are the first depends on the order in which tasks deliver them",
    "Tail": "which rows are the last depends on the order in which tasks deliver them",
}
# Sources that cannot read the same rows a second time.
_FORGETFUL: Final = ("socket", "textsocket")
_AGGREGATES: Final = "org.apache.spark.sql.catalyst.expressions.aggregate."
_SORTED: Final = "spark.sql.execution.sortBeforeRepartition"
_ADAPTIVE: Final = "spark.sql.adaptive.streaming.stateless.enabled"
_MARK: Final = "_ottla_watches"


class PlanRefusedError(OptionError):
    """The plan cannot be written exactly once; the message says which part of it and why."""


def watch() -> None:
    """Have every query that asks for exactlyOnce checked when it starts."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    start = DataStreamWriter.start
    if getattr(start, _MARK, False):
        return

    @functools.wraps(start)
    def checked(self: Any, *arguments: Any, **named: Any) -> Any:
        if not _wants_exactly_once(self._jwrite, named):
            return start(self, *arguments, **named)
        check_plan(self._df)
        with _without_adaptive_execution(self._df.sparkSession):
            return start(self, *arguments, **named)

    setattr(checked, _MARK, True)
    DataStreamWriter.start = checked


def check_plan(frame: DataFrame) -> None:
    """Raise `PlanRefusedError` if a batch of this plan may not come out the same twice."""
    spark = frame.sparkSession
    problems = list(_problems(frame._jdf.queryExecution().analyzed(), spark.conf.get(_SORTED, "true") == "true"))
    if problems:
        raise PlanRefusedError(
            "exactlyOnce is refused, because a batch that is run again may give other rows to its tasks: "
            + "; ".join(dict.fromkeys(problems))
        )


@contextmanager
def _without_adaptive_execution(spark: SparkSession) -> Iterator[None]:
    """A query takes its settings when it starts; with this one the tasks of a batch would depend on sizes."""
    before = spark.conf.get(_ADAPTIVE, None)
    spark.conf.set(_ADAPTIVE, "false")
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_ADAPTIVE)
        else:
            spark.conf.set(_ADAPTIVE, before)


def _wants_exactly_once(jvm_writer: Any, named: dict[str, Any]) -> bool:
    given = {name.lower(): value for name, value in named.items()}
    if str(given.get("exactlyonce", "")).lower() == "true":
        return True
    found = _private(jvm_writer, "extraOptions").get("exactlyOnce")
    return bool(found.isDefined()) and str(found.get()).lower() == "true"


def _private(target: Any, name: str) -> Any:
    field = target.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(target)


def _problems(node: Any, repartition_is_sorted: bool) -> Iterator[str]:
    name = node.nodeName()
    if name in _OPERATORS:
        yield f"{name}: {_OPERATORS[name]}"
    if name in ("Repartition", "RepartitionByExpression") and not repartition_is_sorted and _round_robin(node):
        yield f"repartition deals rows out in turn while {_SORTED} is false"
    if name.startswith("StreamingRelation") and node.sourceName().lower() in _FORGETFUL:
        yield f"the source {node.sourceName()} cannot read the same rows again"
    for at in range(node.expressions().size()):
        yield from _expressions(_at(node.expressions(), at))
    for at in range(node.children().size()):
        yield from _problems(_at(node.children(), at), repartition_is_sorted)


def _expressions(expression: Any) -> Iterator[str]:
    """The innermost expressions that say something else each time they are asked."""
    if expression.deterministic():
        return
    children = [_at(expression.children(), at) for at in range(expression.children().size())]
    inner = [each for each in children if not each.deterministic()]
    for each in inner:
        yield from _expressions(each)
    # first or collect_list change values with the order of rows, but not which rows there are or where they go.
    if not inner and not expression.getClass().getName().startswith(_AGGREGATES):
        yield f"{expression.sql()} is not deterministic"


def _round_robin(node: Any) -> bool:
    return (node.nodeName() == "Repartition" and node.shuffle()) or "RoundRobin" in node.toString()


def _at(sequence: Any, position: int) -> Any:
    return sequence.apply(position)
