"""`ottla produce`: records into a topic, from the command line, lines or JSON."""

import base64
import json
import os
import select
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, BinaryIO, NamedTuple

import typer

from ottla.cli.connect import LOCAL, SECONDS, AsJson, Bootstrap, Properties, PropertiesFile, Timeout, connected
from ottla.cli.formats import Form, escaped
from ottla.cli.formats import read as read_form
from ottla.cli.output import examples, print_json, usage
from ottla.client.producer import Delivered, Producer

EXAMPLES = examples(
    "ottla produce orders -v hello",
    "ottla produce orders < lines.txt",
    "ottla produce orders -K : -H source=shell      key:value on each line",
    'ottla produce orders --from-json               {"key": "a", "value": "b", "headers": {"h": "1"}}',
)
LARGEST_BATCH = 512 * 1024
MOST_RECORDS = 5000
LINGER_SECONDS = 0.005
READ_SIZE = 256 * 1024

Header = tuple[str, bytes | None]


class Outgoing(NamedTuple):
    """A record on its way."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp: int
    partition: int | None


class Codec(StrEnum):
    """How batches are compressed."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    """When a record counts as written."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("produce", epilog=EXAMPLES)(produce)


def produce(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="Each file is one value; without, lines come from standard input."),
    ] = None,
    values: Annotated[
        list[str] | None, typer.Option("--value", "-v", help="A value; may be repeated.", show_default=False)
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every record.", show_default=False)] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="Else by key, as Kafka does.", show_default=False)
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="On every record; may be repeated.", show_default=False
        ),
    ] = None,
    delimiter: Annotated[str, typer.Option("--delimiter", "-D", help="What ends a record.")] = r"\n",
    key_delimiter: Annotated[
        str | None, typer.Option("-K", help="What ends the key of each record.", show_default=False)
    ] = None,
    null_empty: Annotated[bool, typer.Option("-Z", help="An empty value or key is none at all.")] = False,
    from_json: Annotated[
        bool, typer.Option("--from-json", help="Each line is a JSON object, as `consume --json` writes it.")
    ] = False,
    key_form: Annotated[Form, typer.Option("--key-form", help="What keys are written as.")] = Form.RAW,
    value_form: Annotated[Form, typer.Option("--value-form", help="What values are written as.")] = Form.RAW,
    compression: Annotated[Codec, typer.Option("--compression", "-z", help="Compress batches.")] = Codec.NONE,
    acks: Annotated[
        Acks, typer.Option("--acks", "-a", help="When a record counts as written; 0 and 1 are --no-idempotence too.")
    ] = Acks.ALL,
    no_idempotence: Annotated[
        bool, typer.Option("--no-idempotence", help="Number no records; what is sent again may be written twice.")
    ] = False,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Write records to a topic; as kcat -P does."""
    if files and values:
        raise usage("give values or files, not both")
    with connected(bootstrap, properties, command_config, timeout) as client:
        headers = tuple(_header(each) for each in header or ())
        shape = _Shape(
            None if key is None else read_form(_text(key), key_form),
            headers,
            partition,
            null_empty,
            None if key_delimiter is None else escaped(key_delimiter),
            key_form,
            value_form,
        )
        info = client.topics([topic])[0]
        if partition is not None and partition not in info.partitions:
            client.leader(topic, partition)  # says which there are
        where = _Offsets()
        producer = Producer(
            client,
            idempotent=acks is Acks.ALL and not no_idempotence,
            compression=compression,
            acks=-1 if acks is Acks.ALL else int(acks),
            request_timeout_ms=round(timeout * 1000),
            delivered=where.add if as_json else None,
        )
        for records in _source(files or [], values or [], shape, escaped(delimiter), from_json):
            partitions = [
                producer.send(topic, each.key, each.value, each.headers, each.partition, each.timestamp)
                for each in records
            ]
            producer.flush()
            if as_json:
                for record, index in zip(records, partitions, strict=True):
                    print_json({"topic": topic, "partition": index, **where.take(index, record.timestamp)})
    if sys.stderr.isatty() and not as_json:
        typer.echo(f"{producer.records_sent} records", err=True)


class _Shape(NamedTuple):
    """How input becomes records."""

    key: bytes | None
    headers: tuple[Header, ...]
    partition: int | None
    null_empty: bool
    key_delimiter: bytes | None
    key_form: Form
    value_form: Form

    def record(self, data: bytes) -> Outgoing:
        """A record of a line, a file or a word."""
        key, value = self.key, data
        if self.key_delimiter is not None:
            before, found, after = data.partition(self.key_delimiter)
            if found:
                key, value = read_form(before, self.key_form), after
        if self.null_empty:
            key = key or None
            if not value:
                return Outgoing(key, None, self.headers, _now(), self.partition)
        return Outgoing(key, read_form(value, self.value_form), self.headers, _now(), self.partition)

    def from_json(self, line: bytes) -> Outgoing:
        """A record of a line of JSON."""
        try:
            found = json.loads(line)
            if not isinstance(found, dict):
                raise ValueError("not a JSON object")
            return self._from_object(found)
        except ValueError as error:
            raise ValueError(f"{line[:80].decode(errors='replace')}: {error}") from error

    def _from_object(self, found: dict[str, Any]) -> Outgoing:
        headers = found.get("headers") or []
        if isinstance(headers, dict):
            pairs = [(str(name), _json_bytes(value)) for name, value in headers.items()]
        elif isinstance(headers, list) and all(isinstance(each, dict) and "name" in each for each in headers):
            pairs = [(str(each["name"]), _json_field(each, "value")) for each in headers]
        else:
            raise ValueError('headers: write {"name": "value"} or [{"name": "...", "value": "..."}]')
        key = _json_field(found, "key")
        partition = self.partition
        if partition is None and found.get("partition") is not None:
            partition = _json_number(found, "partition", 2**31)
        return Outgoing(
            self.key if key is None else key,
            _json_field(found, "value"),
            (*self.headers, *pairs),
            _json_number(found, "timestamp", 2**63) if "timestamp" in found else _now(),
            partition,
        )


class _Offsets:
    """Where the records of each partition went, in order, until they are told."""

    def __init__(self) -> None:
        self._known: dict[int, deque[tuple[int | None, int]]] = {}

    def add(self, told: Delivered) -> None:
        """Note a batch."""
        self._known.setdefault(told.partition, deque()).extend(
            (told.base_offset + at if told.base_offset >= 0 else None, told.append_time) for at in range(told.records)
        )

    def take(self, partition: int, timestamp: int) -> dict[str, int | None]:
        """Offset and timestamp of the next record of a partition, which was sent with this timestamp."""
        offset, append_time = self._known[partition].popleft()
        return {"offset": offset, "timestamp": append_time if append_time >= 0 else timestamp}


def _source(
    files: Sequence[str], values: Sequence[str], shape: _Shape, delimiter: bytes, from_json: bool
) -> Iterator[list[Outgoing]]:
    make = shape.from_json if from_json else shape.record
    if values:
        yield [make(_text(each)) for each in values]
        return
    if files:
        for path in files:
            try:
                with open(path, "rb") as file:
                    yield [make(file.read())]
            except OSError as error:
                raise ValueError(f"{path}: {error.strerror}") from error
        return
    for lines in _lines(sys.stdin.buffer, delimiter):
        yield [make(line) for line in lines]


def _lines(source: BinaryIO, delimiter: bytes) -> Iterator[list[bytes]]:
    """Lines in groups that make good batches: as many as there are, but none waits for the next to be typed."""
    if not delimiter:
        raise ValueError("--delimiter must not be empty")
    rest = b""
    lines: list[bytes] = []
    size = 0
    while data := _read_some(source):
        *whole, rest = (rest + data).split(delimiter)
        for line in whole:
            lines.append(line)
            size += len(line)
            if size >= LARGEST_BATCH or len(lines) >= MOST_RECORDS:
                yield lines
                lines, size = [], 0
        if lines and not _more_comes(source):
            yield lines
            lines, size = [], 0
    if rest:
        lines.append(rest)
    if lines:
        yield lines


def _read_some(source: BinaryIO) -> bytes:
    try:
        return os.read(source.fileno(), READ_SIZE)
    except (OSError, ValueError):  # not a file of the system: a test's
        return source.read(READ_SIZE)


def _more_comes(source: BinaryIO) -> bool:
    try:
        return bool(select.select([source.fileno()], [], [], LINGER_SECONDS)[0])
    except (OSError, ValueError):
        return True


def _now() -> int:
    return time.time_ns() // 1_000_000


def _text(word: str) -> bytes:
    return word.encode("utf-8", "surrogateescape")


def _header(word: str) -> Header:
    name, equals, value = word.partition("=")
    return name, _text(value) if equals else None


def _json_field(found: dict[str, Any], name: str) -> bytes | None:
    coded = found.get(f"{name}_base64")
    if coded is not None:
        try:
            return base64.b64decode(coded, validate=True)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}_base64: {error}") from error
    return _json_bytes(found.get(name))


def _json_number(found: dict[str, Any], name: str, limit: int) -> int:
    value = found[name]
    if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
        raise ValueError(f"{name} is no number that a record can have: {json.dumps(value)}")
    return value


def _json_bytes(value: object) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()
