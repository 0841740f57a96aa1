"""Write a micro-batch exactly once in foreachBatch. It imports pyspark only when it is called."""

from __future__ import annotations

import pickle
import re
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.options import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame

_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_RUN_PROPERTY: Final = "spark.jobGroup.id"
_NAME: Final = re.compile(r"\w{1,100}")
_written: dict[tuple[str, str], int] = {}
"""The last batch that each query and run of this process wrote with `write_batch`."""


def write_batch(
    frame: DataFrame,
    batch_id: int,
    options: Mapping[str, str],
    *,
    name: str | None = None,
    query: str | None = None,
) -> int:
    """Write a micro-batch to topics once, in foreachBatch; return the rows that are now committed.

    `options` are those of the format "ottla". If foreachBatch writes several frames of a batch, each needs its own
    `name`. `query` is the id of the streaming query, for Spark Connect, where it cannot be read from the session.

    >>> def write(frame, batch_id):  # doctest: +SKIP
    ...     write_batch(frame, batch_id, {"kafka.bootstrap.servers": "localhost:9092", "topic": "orders"})
    >>> stream.writeStream.foreachBatch(write).option("checkpointLocation", "checkpoint").start()  # doctest: +SKIP
    """
    from ottla.spark.sink.exactly_once import make_commit
    from ottla.spark.sink.task import ExactlyOnceTask, TaskAttempt
    from ottla.spark.sink.writer import SinkPlan

    plan = SinkPlan.parse({**options, "exactlyOnce": "true"}, frame.schema)
    if name is not None and _NAME.fullmatch(name) is None:
        raise OptionError(f"name is letters, digits and underscores, at most 100 of them, not {name!r}")
    query_id = query or _property(frame, _QUERY_PROPERTY)
    if query_id is None:
        raise OptionError("write_batch runs in foreachBatch, where Spark sets a query id; elsewhere give query=")
    run = _property(frame, _RUN_PROPERTY) or ""
    key = query_id if name is None else f"{query_id}@{name}"
    if _written.get((key, run)) == batch_id:
        raise OptionError(f"batch {batch_id} was already written: give each frame of a batch its own name=")
    plan.check_target()

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = TaskAttempt(key, batch_id, context.partitionId(), context.attemptNumber(), run)
        result = ExactlyOnceTask(plan, attempt).run(batches)
        yield pyarrow.RecordBatch.from_pydict({"result": [pickle.dumps(result)]})

    results = [pickle.loads(row[0]) for row in frame.mapInArrow(write, "result binary").collect()]
    decision = make_commit(plan, key, run).commit(batch_id, results)
    _written[key, run] = batch_id
    return decision.rows if decision is not None else 0


def _property(frame: DataFrame, name: str) -> str | None:
    """Return a local property of the thread; None with Spark Connect."""
    context: Any = getattr(frame.sparkSession, "_sc", None)
    return None if context is None else context.getLocalProperty(name)
