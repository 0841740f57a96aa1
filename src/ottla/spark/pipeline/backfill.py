"""Run the queries of a pipeline once more over a range of record timestamps, beside the running stream.

The pipeline's file is unchanged: `spark.readStream` reads the range of its topics as a batch and `writeStream` writes
the result, so that windows and joins of the range are complete. A stream's checkpoints are not touched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.spark import expectations
from ottla.spark.pipeline.folder import PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC_FORMATS: Final = ("ottla", "ottla-log", "kafka")
FILE_FORMATS: Final = ("parquet", "json", "orc", "csv", "text", "avro", "xml")
_STREAM_OPTIONS: Final = frozenset(
    name.lower()
    for name in (
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "endingOffsets",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "groupId",
    )
)
_SINK_OPTIONS: Final = frozenset({"exactlyonce", "checkpointlocation", "queryname", "path"})


@dataclass(frozen=True, slots=True)
class BackfillRange:
    """Record timestamps in milliseconds, the first included, and where file sinks write; `queries` empty: all."""

    start: int
    until: int
    files_to: str | None = None
    queries: list[str] = field(default_factory=list)


def install(chosen: BackfillRange, status: dict[str, Any]) -> None:
    """Make this process's streams read and write the range as batches; `status` gets an entry for each query."""
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    observations: list[Any] = []
    expectations.on_observation = observations.append
    SparkSession.readStream = property(lambda spark: RangeReader(spark, chosen))
    writer = property(lambda frame: RangeWriter(frame, chosen, status, observations))
    for frame_type in (DataFrame, ClassicDataFrame):
        frame_type.writeStream = writer


class RangeReader:
    """`spark.readStream` of a backfill: a batch reader of the range."""

    def __init__(self, spark: Any, chosen: BackfillRange) -> None:
        self._spark = spark
        self._chosen = chosen
        self._reader = spark.read
        self._format = ""

    def format(self, source: str) -> RangeReader:
        """Set the format."""
        self._format = source
        self._reader = self._reader.format(source)
        return self

    def schema(self, schema: Any) -> RangeReader:
        """Set the schema."""
        self._reader = self._reader.schema(schema)
        return self

    def option(self, key: str, value: Any) -> RangeReader:
        """Set an option, unless only streams have it."""
        if key.lower() not in _STREAM_OPTIONS:
            self._reader = self._reader.option(key, value)
        return self

    def options(self, **options: Any) -> RangeReader:
        """Set options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def load(self, path: str | None = None, format: str | None = None, schema: Any = None, **options: Any) -> Any:
        """Return the range of the topics as a DataFrame."""
        if format is not None:
            self.format(format)
        if schema is not None:
            self.schema(schema)
        self.options(**options)
        if self._format not in TOPIC_FORMATS:
            raise PipelineError(f"a backfill reads topics by time, and {self._format or 'this source'} has none")
        reader = (
            self._reader.option("startingTimestamp", str(self._chosen.start))
            .option("endingTimestamp", str(self._chosen.until))
            .option("startingOffsetsByTimestampStrategy", "latest")
        )
        return reader.load() if path is None else reader.load(path)

    def table(self, name: str) -> Any:
        """Refuse: tables have no timestamps of records."""
        raise PipelineError(f"a backfill reads topics by time, and the table {name} has none")


class RangeWriter:
    """`frame.writeStream` of a backfill: `start` writes the range and returns when it is written."""

    def __init__(self, frame: Any, chosen: BackfillRange, status: dict[str, Any], observations: list[Any]) -> None:
        self._frame = frame
        self._chosen = chosen
        self._status = status
        self._observations = observations
        self._name: str | None = None
        self._format = ""
        self._options: dict[str, Any] = {}
        self._partitions: tuple[str, ...] = ()
        self._function: Callable[[Any, int], None] | None = None

    def format(self, source: str) -> RangeWriter:
        """Set the format."""
        self._format = source
        return self

    def option(self, key: str, value: Any) -> RangeWriter:
        """Set an option."""
        self._options[key] = value
        return self

    def options(self, **options: Any) -> RangeWriter:
        """Set options."""
        self._options |= options
        return self

    def outputMode(self, _: str) -> RangeWriter:  # noqa: N802 - Spark's name
        """Ignore the mode: a batch is complete."""
        return self

    def trigger(self, **_: Any) -> RangeWriter:
        """Ignore the trigger."""
        return self

    def queryName(self, name: str) -> RangeWriter:  # noqa: N802 - Spark's name
        """Set the query's name."""
        self._name = name
        return self

    def partitionBy(self, *columns: str) -> RangeWriter:  # noqa: N802 - Spark's name
        """Set the partitioning of file sinks."""
        self._partitions = columns
        return self

    def foreachBatch(self, function: Callable[[Any, int], None]) -> RangeWriter:  # noqa: N802 - Spark's name
        """Call the function with the whole range."""
        self._function = function
        return self

    def foreach(self, _: Any) -> RangeWriter:
        """Refuse: batches have no foreach."""
        raise PipelineError("a backfill has no foreach: use foreachBatch, which streams have too")

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803 - Spark's name
        partitionBy: Any = None,  # noqa: N803 - Spark's name
        queryName: str | None = None,  # noqa: N803 - Spark's name
        **options: Any,
    ) -> FinishedQuery:
        """Write the range to the sink; return when it is written."""
        self._format = format or self._format
        self._name = queryName or self._name
        if partitionBy is not None:
            self._partitions = (partitionBy,) if isinstance(partitionBy, str) else tuple(partitionBy)
        self._options |= options
        return self._run(lambda frame: self._write(frame, path or self._options.get("path")))

    def toTable(self, name: str, **options: Any) -> FinishedQuery:  # noqa: N802 - Spark's name
        """Append the range to a table."""
        self._options |= options
        return self._run(lambda frame: self._batch_writer(frame).saveAsTable(name))

    def _run(self, write: Callable[[Any], None]) -> FinishedQuery:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        name = self._name or f"query-{len(self._status['queries']) + 1}"
        if self._chosen.queries and name not in self._chosen.queries:
            return FinishedQuery(name)
        entry = {"name": name, "active": True, "batch": None, "rows": 0, "rows_per_second": 0.0, "sources": []}
        self._status["queries"].append(entry)
        rows = Observation()
        write(self._frame.observe(rows, f.count(f.lit(1)).alias("rows")))
        entry |= {"active": False, "rows": rows.get["rows"], "total_rows": rows.get["rows"]}
        checks = {check: {key: int(value or 0) for key, value in seen.get.items()} for check, seen in self._observed()}
        entry["expectations"] = checks
        return FinishedQuery(name)

    def _observed(self) -> list[tuple[str, Any]]:
        """Return the checks that the written frame contains: waiting for another one would not end."""
        plan = self._frame._jdf.queryExecution().analyzed().toString()
        return [(name, seen) for name, seen in self._observations if f"{expectations.METRIC_PREFIX}{name}" in plan]

    def _write(self, frame: Any, path: Any) -> None:
        if self._function is not None:
            self._function(frame, 0)
        elif self._format == "console":
            frame.show(20, False)
        elif self._format == "memory":
            frame.createOrReplaceTempView(self._name or "memory")
        elif self._format in FILE_FORMATS or not self._format:
            self._batch_writer(frame).save(self._file_target())
        elif path is None:
            self._batch_writer(frame).save()
        else:
            self._batch_writer(frame).save(path)

    def _file_target(self) -> str:
        """Return the folder of a file sink: a stream's own folder lists its files in a log, which hides others."""
        if self._chosen.files_to is None:
            raise PipelineError(
                f"query {self._name or '(no name)'} writes files, and a stream's folder hides files that the stream "
                "did not write: give another folder with --files-to"
            )
        return f"{self._chosen.files_to.rstrip('/')}/{self._name or 'query'}"

    def _batch_writer(self, frame: Any) -> Any:
        writer = frame.write.mode("append")
        if self._format:
            writer = writer.format(self._format)
        if self._partitions:
            writer = writer.partitionBy(*self._partitions)
        return writer.options(
            **{key: value for key, value in self._options.items() if key.lower() not in _SINK_OPTIONS}
        )


@dataclass(frozen=True, slots=True)
class FinishedQuery:
    """A query of a backfill, which has ended when `start` returns."""

    name: str
    isActive: bool = False  # noqa: N815 - Spark's name
    lastProgress: None = None  # noqa: N815 - Spark's name
    recentProgress: tuple[()] = ()  # noqa: N815 - Spark's name

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Return at once."""
        return None if timeout is None else True

    def stop(self) -> None:
        """Do nothing: the query has ended."""

    def exception(self) -> None:
        """Return no exception: `start` raises it."""
