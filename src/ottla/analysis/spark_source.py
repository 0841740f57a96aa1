"""The format `ottla-analysis`: any inputs of an analysis as the table of `event`, read in parallel by byte ranges."""

from __future__ import annotations

import json
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
    """The pieces that one task reads."""

    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__(None)
        self.pieces = pieces


class AnalysisSource(DataSource):
    """`spark.read.format("ottla-analysis").load("events.jsonl,client.log")`, or with a JSON list as `paths`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "ottla-analysis"

    def schema(self) -> str:
        """The columns of `event`; with an analysis chosen, also its key and the number of the event in its piece."""
        _paths(self.options)
        return DDL + (", key string, number bigint" if self.options.get("analysis") else "")

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of all pieces."""
        return AnalysisReader(dict(self.options))


def _paths(given: Mapping[str, str]) -> list[str]:
    """What to read, by either option; wrong options end here."""
    options = Options("ottla-analysis", given, KNOWN)
    listed, path = options.text("paths"), options.text("path")
    if listed is not None:
        found: list[str] = json.loads(listed)
        return found
    if not path:
        raise OptionError(
            'ottla-analysis needs logs: spark.read.format("ottla-analysis").load("/path/to/events.jsonl")'
        )
    return [each.strip() for each in path.split(",")]


class AnalysisReader(DataSourceReader):
    """Plans pieces and reads them."""

    def __init__(self, options: dict[str, str]) -> None:
        self._paths = _paths(options)
        self._analysis = options.get("analysis", "")
        self._chosen: dict[str, Any] = json.loads(options.get("chosen", "{}"))
        self._size = Options("ottla-analysis", options, KNOWN).size("pieceBytes", PIECE)

    def partitions(self) -> list[InputPartition]:
        """Pieces of a good size are tasks of their own, small ones go together."""
        tasks: list[InputPartition] = []
        held: list[Piece] = []
        room = self._size // 4
        for piece in find_pieces(self._paths, self._size, self._chosen.get("only_topics")):
            held.append(piece)
            room -= total_size([piece])
            if room <= 0:
                tasks.append(Task(held))
                held, room = [], self._size // 4
        return [*tasks, Task(held)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of its pieces, and what was read of each."""
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
    held: list[tuple[Any, ...]] = []
    for row in rows:
        held.append(row)
        if len(held) == BATCH:
            yield _batch(held, schema)
            held = []
    if held:
        yield _batch(held, schema)


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def keyed_events(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, Event]]:
    """Keys and events of sorted batches."""
    width = len(COLUMNS)
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        for values in zip(*columns, strict=True):
            yield values[width], Event(*values[:width])


def read_events(
    spark: SparkSession, paths: list[str], *, analysis: str = "", options: dict[str, Any] | None = None
) -> DataFrame:
    """The events in some inputs as a table; with the name of an analysis only those that it wants, with their keys."""
    reader = spark.read.format("ottla-analysis").option("paths", json.dumps(paths))
    if analysis:
        reader = reader.option("analysis", analysis).option("chosen", json.dumps(options or {}))
    return reader.load()
