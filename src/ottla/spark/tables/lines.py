"""System tables of files with one JSON object per line: the event log, and captures of `ottla tap`.

Large files are split by bytes: a task reads the lines that begin in its part.
"""

from __future__ import annotations

import glob
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ottla.events import ENVELOPE, FIELDS
from ottla.protocol.capture import REQUEST, from_line
from ottla.protocol.errors import KafkaError, ProtocolError
from ottla.protocol.framing import decode_request, decode_response
from ottla.protocol.internal_records import as_plain
from ottla.spark.columns import spark_schema
from ottla.spark.options import OptionError, Options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

PART_BYTES: Final = 32 << 20
ROWS: Final = 5000
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
Row = dict[str, Any]


class DamagedLineError(Exception):
    """A line does not hold what its file should."""


class LinePart(InputPartition):
    """A byte range of a file."""

    def __init__(self, path: str, start: int, end: int) -> None:
        super().__init__(None)
        self.path = path
        self.start = start
        self.end = end


class LineTable(DataSource):
    """A table of files with one JSON object per line."""

    fields: ClassVar[tuple[pa.Field, ...]]
    what: ClassVar[str]
    known: ClassVar[tuple[str, ...]] = ("badRecords", "maxPartitionBytes", "minPartitions")

    @classmethod
    def decode(cls, line: bytes, settings: LineSettings) -> Row | None:
        """Return the row of a line, or None if it has none; raise ValueError if the line does not belong here."""
        raise NotImplementedError

    @classmethod
    def arrow(cls) -> pa.Schema:
        """Return the columns."""
        return pa.schema(cls.fields)

    def schema(self) -> StructType:
        """Return the columns; wrong options and missing files raise here, at load()."""
        self._settings()
        return spark_schema(self.arrow())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of all files."""
        if schema != spark_schema(self.arrow()):
            raise OptionError(f"{self.name()} has fixed columns: remove .schema(...)")
        return LineReader(type(self), self._settings())

    def _settings(self) -> LineSettings:
        options = Options(self.name(), self.options, self.known)
        path = options.text("path")
        if not path:
            raise OptionError(
                f'{self.name()} needs a path: spark.read.format("{self.name()}").load("/path/to/{self.what}")'
            )
        files = _find_files(path)
        if not files:
            raise OptionError(f"there is no file at {path!r}")
        return LineSettings(
            tuple(files),
            options.choice("badRecords", ("fail", "drop"), "fail"),
            options.size("maxPartitionBytes", PART_BYTES),
            options.integer("minPartitions", 0) or 0,
            options.boolean("decode", True) if "decode" in self.known else True,
        )


@dataclass(frozen=True, slots=True)
class LineSettings:
    """The parsed options."""

    files: tuple[str, ...]
    bad_records: str
    part_bytes: int
    least_tasks: int
    decode: bool


def _find_files(path: str) -> list[str]:
    """Return the files at a path: one, those of a folder or a pattern, or several separated by commas."""
    files: list[str] = []
    for part in path.split(","):
        location = os.path.abspath(part.strip().removeprefix("file://"))  # executors have another working directory
        if os.path.isdir(location):
            names = (os.path.join(location, name) for name in os.listdir(location) if not name.startswith((".", "_")))
            files += sorted(name for name in names if os.path.isfile(name))
        elif os.path.isfile(location):
            files.append(location)
        else:
            files += sorted(name for name in glob.glob(location) if os.path.isfile(name))
    return files


class LineReader(DataSourceReader):
    """Split files into parts and read their lines."""

    def __init__(self, table: type[LineTable], settings: LineSettings) -> None:
        self._table = table
        self._settings = settings

    def partitions(self) -> list[InputPartition]:
        """Return parts of about the requested size."""
        settings = self._settings
        sizes = {path: os.path.getsize(path) for path in settings.files}
        size = settings.part_bytes
        if settings.least_tasks:
            size = max(min(size, -(-sum(sizes.values()) // settings.least_tasks)), 1)
        parts = []
        for path, length in sizes.items():
            parts += [LinePart(path, start, min(start + size, length)) for start in range(0, length, size)]
        return parts or [LinePart(settings.files[0], 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part."""
        assert isinstance(partition, LinePart)
        schema = self._table.arrow()
        rows: list[Row] = []
        for position, line in _lines(partition):
            try:
                row = self._table.decode(line, self._settings)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    continue  # the incomplete last line of a file that is or was being written
                if self._settings.bad_records == "drop":
                    continue
                raise DamagedLineError(f"{partition.path} at byte {position}: {error}") from error
            if row is not None:
                rows.append(row)
            if len(rows) >= ROWS:
                yield pa.RecordBatch.from_pylist(rows, schema=schema)
                rows = []
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _lines(part: LinePart) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin within a part, with their positions."""
    with open(part.path, "rb") as file:
        position = part.start
        if position:
            file.seek(position - 1)
            position += len(file.readline()) - 1
        while position < part.end:
            line = file.readline()
            if not line:
                return
            if line.strip():
                yield position, line
            position += len(line)


def _type_of(description: str) -> pa.DataType:
    """Return a field's type by its description in the event log."""
    word = description.partition(":")[0].strip()
    match word.removesuffix(" or null"):
        case "int":
            return pa.int64()
        case "float":
            return pa.float64()
        case "bool":
            return pa.bool_()
        case "list of strings":
            return pa.list_(pa.field("element", pa.string()))
        case "list of {topic, partition, offset}":
            parts = [pa.field("topic", pa.string()), pa.field("partition", pa.int32()), pa.field("offset", pa.int64())]
            return pa.list_(pa.field("element", pa.struct(parts)))
        case kind if kind.startswith("map of topic name to"):
            numbers = pa.list_(pa.field("element", pa.int32()))
            return pa.map_(pa.string(), pa.field("value", numbers))
    return pa.string()


class EventsTable(LineTable):
    """`ottla-events`: the event log, with a column for each field that an event may have."""

    what = "events.jsonl"
    fields = (
        *(pa.field(name, _TIMESTAMP if name == "time" else _type_of(kind)) for name, kind in ENVELOPE.items()),
        *(pa.field(name, _type_of(kind)) for name, kind in sorted(FIELDS.items())),
        pa.field("event", pa.string()),
    )

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ottla-events"

    @classmethod
    def decode(cls, line: bytes, settings: LineSettings) -> Row | None:
        """Return one event."""
        text = line.decode("utf-8", errors="replace").strip()
        try:
            event = json.loads(text)
        except ValueError:
            event = None
        if not isinstance(event, dict) or not ENVELOPE.keys() <= event.keys():
            raise ValueError(f"expected an event with {', '.join(ENVELOPE)}, got {text[:60]!r}")
        row: Row = {}
        for field in cls.fields:
            value = event.get(field.name)
            if value is not None and pa.types.is_map(field.type):
                value = list(value.items())
            row[field.name] = value
        row["time"] = int(event["time"]) * 1000
        row["event"] = text
        return row


class WireTable(LineTable):
    """`ottla-wire`: the frames of a capture, with their decoded messages."""

    what = "capture.jsonl"
    known = (*LineTable.known, "decode")
    fields = (
        pa.field("time", _TIMESTAMP),
        pa.field("connection", pa.int64()),
        pa.field("direction", pa.string()),
        pa.field("client", pa.string()),
        pa.field("server", pa.string()),
        pa.field("node", pa.int32()),
        pa.field("apiKey", pa.int16()),
        pa.field("api", pa.string()),
        pa.field("version", pa.int16()),
        pa.field("correlationId", pa.int32()),
        pa.field("clientId", pa.string()),
        pa.field("size", pa.int32()),
        pa.field("frame", pa.binary()),
        pa.field("message", pa.string()),
        pa.field("error", pa.string()),
    )

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ottla-wire"

    @classmethod
    def decode(cls, line: bytes, settings: LineSettings) -> Row | None:
        """Return one frame, with its message as JSON unless it is truncated or does not decode."""
        captured = from_line(line)
        if captured is None:
            return None
        row: Row = {
            "time": captured.time_us,
            "connection": captured.connection,
            "direction": captured.direction,
            "client": captured.client,
            "server": captured.server,
            "node": captured.node,
            "apiKey": captured.api_key,
            "api": captured.api,
            "version": captured.version,
            "correlationId": captured.correlation_id,
            "clientId": captured.client_id,
            "size": captured.size,
            "frame": captured.frame,
        }
        if settings.decode:
            if not captured.is_whole:
                return row | {"error": f"only {len(captured.frame)} of {captured.size} bytes were captured"}
            try:
                if captured.direction == REQUEST:
                    message = decode_request(captured.frame)[1]
                else:
                    message = decode_response(captured.frame, captured.api_key, captured.version)[1]
                row["message"] = json.dumps(
                    as_plain(message, captured.version), ensure_ascii=False, separators=(",", ":")
                )
            except (ProtocolError, KafkaError, KeyError) as error:
                row["error"] = str(error)
        return row
