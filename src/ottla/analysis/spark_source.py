"""The Spark format "ottla-analysis": inputs of an analysis as the table of `event`, read in parallel by byte range."""

from __future__ import annotations

import itertools
import json
import os
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ottla.analysis.engine import key_of, total_size
from ottla.analysis.event import COLUMNS, Event
from ottla.analysis.inputs import PIECE, SUMMARY, Piece, find_pieces, read_piece
from ottla.spark.options import OptionError, Options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

BATCH: Final = 8_192
KNOWN: Final = ("paths", "analysis", "chosen", "pieceBytes")
DDL: Final = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
_ARROW: Final = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "array<string>": pa.list_(pa.string()),
}
_FIELDS: Final = [pa.field(name, _ARROW[kind]) for name, (kind, _) in COLUMNS.items()]
EVENT_SCHEMA: Final = pa.schema(_FIELDS)
KEYED_SCHEMA: Final = pa.schema([*_FIELDS, pa.field("key", pa.string()), pa.field("number", pa.int64())])


class Task(InputPartition):
    """The pieces of one Spark task."""

    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__(None)
        self.pieces = pieces


class AnalysisSource(DataSource):
    """`spark.read.format("ottla-analysis").load("events.jsonl,client.log")`, or a JSON list as the option `paths`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ottla-analysis"

    def schema(self) -> str:
        """Return the columns of `event`; with an analysis, also its key and the number of the event in its piece."""
        _paths(self.options)
        return DDL + (", key string, number bigint" if self.options.get("analysis") else "")

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of all pieces."""
        return AnalysisReader(dict(self.options))


def _paths(source_options: Mapping[str, str]) -> list[str]:
    """Return the inputs, by either option; raise `OptionError` for wrong options."""
    options = Options("ottla-analysis", source_options, KNOWN)
    listed, path = options.text("paths"), options.text("path")
    if listed is not None:
        return [os.path.abspath(name) for name in json.loads(listed)]
    if not path:
        raise OptionError(
            'ottla-analysis needs logs: spark.read.format("ottla-analysis").load("/path/to/events.jsonl")'
        )
    return [os.path.abspath(name.strip()) for name in path.split(",")]  # executors have another working directory


class AnalysisReader(DataSourceReader):
    """Plan tasks of pieces and read them."""

    def __init__(self, options: dict[str, str]) -> None:
        self._paths = _paths(options)
        self._analysis = options.get("analysis", "")
        self._chosen: dict[str, Any] = json.loads(options.get("chosen", "{}"))
        self._size = Options("ottla-analysis", options, KNOWN).size("pieceBytes", PIECE)

    def partitions(self) -> list[InputPartition]:
        """Return one task per large piece, and tasks that combine small ones."""
        tasks: list[InputPartition] = []
        pieces: list[Piece] = []
        size = 0
        for piece in find_pieces(self._paths, self._size, self._chosen.get("only_topics")):
            pieces.append(piece)
            size += total_size([piece])
            if size >= self._size // 4:
                tasks.append(Task(pieces))
                pieces, size = [], 0
        return [*tasks, Task(pieces)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a task's pieces; with an analysis, those it uses with their keys, and the summaries."""
        assert isinstance(partition, Task)
        if not self._analysis:
            events = (event for piece in partition.pieces for event in read_piece(piece) if event.event != SUMMARY)
            yield from _batches(events, EVENT_SCHEMA)
            return
        from ottla.analysis.analyses import ANALYSES

        analysis = ANALYSES[self._analysis]
        keyed = (
            (*event, key, number)
            for piece in partition.pieces
            for number, event in enumerate(read_piece(piece, analysis.wants, analysis.evidence))
            if (key := key_of(analysis, event, self._chosen)) is not None
        )
        yield from _batches(keyed, KEYED_SCHEMA)


def _batches(rows: Iterator[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while batch := list(itertools.islice(rows, BATCH)):
        yield _batch(batch, schema)


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def keyed_events(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, Event]]:
    """Yield the keys and events of sorted batches."""
    width = len(COLUMNS)
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        for values in zip(*columns, strict=True):
            yield values[width], Event(*values[:width])


def read_events(
    spark: SparkSession, paths: list[str], *, analysis: str = "", options: dict[str, Any] | None = None
) -> DataFrame:
    """Return the events of inputs as a table; with the name of an analysis only those it uses, with their keys."""
    spark.dataSource.register(AnalysisSource)
    reader = spark.read.format("ottla-analysis").option("paths", json.dumps(paths))
    if analysis:
        reader = reader.option("analysis", analysis).option("chosen", json.dumps(options or {}))
    return reader.load()
