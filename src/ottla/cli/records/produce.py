"""`ottla produce`: write records to a topic, from the command line, from lines or from JSON."""

import base64
import json
import os
import select
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, BinaryIO, NamedTuple

import typer

from ottla.cli.options.commands import add_command
from ottla.cli.options.connect import AsJson, ClusterOptions
from ottla.cli.schemas.values import FORM_HELP, REGISTRY_FORMS, SCHEMA_TYPES, RegistryEncoder, RegistryOptions
from ottla.cli.terminal.output import echo, print_json, refuse_together, usage
from ottla.cli.terminal.progress import byte_progress
from ottla.client.formats import Form, escaped
from ottla.client.formats import read as read_form
from ottla.client.producer import Delivered, Producer
from ottla.quantities import format_count, now_ms

BATCH_BYTES = 512 * 1024
BATCH_RECORDS = 5000
LINGER_SECONDS = 0.005
READ_SIZE = 256 * 1024
PROGRESS_BYTES = 8 * 1024 * 1024
NEWLINE = r"\n"
# The fields of `ottla consume --json`. Those of the second set are where a record was read, not part of it.
RECORD_FIELDS = ("key", "key_base64", "value", "value_base64", "headers", "timestamp", "partition")
ORIGIN_FIELDS = ("topic", "offset", "timestamp_type")
HEADER_FIELDS = ("name", "value", "value_base64")

Header = tuple[str, bytes | None]


class Outgoing(NamedTuple):
    """A record to be sent."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp: int
    partition: int | None


class Codec(StrEnum):
    """Kafka's compression codecs."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    """Kafka's `acks`."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(
        app,
        "produce",
        produce,
        "ottla produce orders -v hello",
        "ottla produce orders < lines.txt",
        "ottla produce orders --lines *.txt",
        "ottla produce orders -K : -H source=shell    key:value on each line",
        "ottla produce orders --from-json < records.jsonl",
        """echo '{"key": "a", "value": "b"}' | ottla produce orders --from-json""",
        "ottla produce orders --value avro --registry http://localhost:8081",
    )


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to write to.")],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Send each file as one record, or with --lines each line. Without files and -v, each line of standard "
            "input is a record.",
        ),
    ] = None,
    *,
    values: Annotated[
        list[str] | None,
        typer.Option("--text", "-v", metavar="TEXT", help="Send this value; repeatable.", show_default=False),
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", "-l", help="Send each line of the files as a record.")] = False,
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", metavar="TEXT", help="Give every record this key.", show_default=False),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            "-p",
            metavar="N",
            help="Send to this partition instead of the one that the key's hash selects.",
            show_default=False,
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="NAME=VALUE",
            help="Add this header to every record; without = its value is null. Repeatable.",
            show_default=False,
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option("--delimiter", "-D", metavar="TEXT", help="End each record at this text.", show_default=NEWLINE),
    ] = None,
    key_delimiter: Annotated[
        str | None,
        typer.Option(
            "-K",
            metavar="TEXT",
            help="Split each record into key and value at this text; a record without it has no key.",
            show_default=False,
        ),
    ] = None,
    null_empty: Annotated[bool, typer.Option("-Z", help="Send null for an empty key or value.")] = False,
    from_json: Annotated[
        bool,
        typer.Option(
            "--from-json",
            help="Read each record as a JSON object, as `ottla consume --json` writes it. `value` is required; null "
            "writes a tombstone.",
        ),
    ] = False,
    key_form: Annotated[
        Form | None,
        typer.Option("--key-form", metavar="FORM", help=f"Read keys in this form: {FORM_HELP}.", show_default="raw"),
    ] = None,
    value_form: Annotated[
        Form | None,
        typer.Option(
            "--value",
            "--value-form",
            metavar="FORM",
            help=f"Read values in this form: {FORM_HELP}.",
            show_default="raw",
        ),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject",
            metavar="NAME",
            help="Encode values under the latest schema of this subject.",
            show_default="TOPIC-value",
        ),
    ] = None,
    key_subject: Annotated[
        str | None,
        typer.Option(
            "--key-subject",
            metavar="NAME",
            help="Encode keys under the latest schema of this subject.",
            show_default="TOPIC-key",
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="FILE",
            help="Register this schema for values first; a registered one stays as it is.",
            show_default=False,
        ),
    ] = None,
    compression: Annotated[
        Codec, typer.Option("--compression", "-z", help="Compress batches with this codec.")
    ] = Codec.NONE,
    acks: Annotated[
        Acks,
        typer.Option("--acks", "-a", help="Wait for no broker, the leader, or all; 0 and 1 disable idempotence."),
    ] = Acks.ALL,
    no_idempotence: Annotated[
        bool, typer.Option("--no-idempotence", help="Disable idempotence; retries may write duplicates.")
    ] = False,
    as_json: AsJson = False,
    registry: RegistryOptions,
    cluster: ClusterOptions,
) -> None:
    """Write records to a topic.

    Works as kcat -P does. Returns when the brokers have acknowledged every record; with --json it prints where each
    one went.
    """
    if files and values:
        raise usage("FILE and -v cannot be used together")
    if values or (files and not lines):
        refuse_together("-v" if values else "FILE without --lines", ("-D", delimiter is not None))
    if lines and not files:
        raise usage("--lines requires files")
    by_registry, key_by_registry = value_form in REGISTRY_FORMS, key_form in REGISTRY_FORMS
    if from_json:
        refuse_together("--from-json", ("-K", key_delimiter is not None), ("-Z", null_empty))
        refuse_together("--from-json", ("--value", value_form is not None and not by_registry))
        if key is None:
            refuse_together("--from-json", ("--key-form", key_form is not None and not key_by_registry))
    elif key is None and key_delimiter is None and key_form is not None:
        raise usage("--key-form requires -k or -K")
    if not by_registry and (subject is not None or schema is not None):
        raise usage("--subject and --schema require --value avro, json-schema or protobuf")
    if schema is not None and value_form not in SCHEMA_TYPES:
        raise usage("--schema requires --value avro, json-schema or protobuf, the type of the schema")
    if not key_by_registry and key_subject is not None:
        raise usage("--key-subject requires --key-form avro, json-schema, protobuf or registry")
    with cluster.connect() as client:
        encoder = key_encoder = None
        if value_form is not None and by_registry:
            encoder = RegistryEncoder(registry, subject or f"{topic}-value", value_form, schema)
        if key_form is not None and key_by_registry:
            key_encoder = RegistryEncoder(registry, key_subject or f"{topic}-key", key_form)
        read_key = _reader(key_form or Form.RAW, key_encoder)
        parser = _RecordParser(
            None if key is None else read_key(_encode(key)),
            tuple(_header(word) for word in header or ()),
            partition,
            null_empty,
            None if key_delimiter is None else escaped(key_delimiter),
            read_key,
            _reader(value_form or Form.RAW, encoder),
            key_encoder,
            encoder,
        )
        client.topics([topic])
        if partition is not None:
            client.leader(topic, partition)  # raises an error that names the partitions that exist
        offsets = _Offsets()
        producer = Producer(
            client,
            idempotent=acks is Acks.ALL and not no_idempotence,
            compression=compression,
            acks=-1 if acks is Acks.ALL else int(acks),
            request_timeout_ms=round(cluster.timeout * 1000),
            delivered=offsets.add if as_json else None,
        )
        parse = parser.parse_json if from_json else parser.parse
        for records in _inputs(files or [], values or [], escaped(delimiter or NEWLINE), lines=lines):
            parsed = [_parse(parse, data, producer.records_sent, number) for number, data in enumerate(records, 1)]
            partitions = [
                producer.send(topic, record.key, record.value, record.headers, record.partition, record.timestamp)
                for record in parsed
            ]
            producer.flush()
            if as_json:
                for record, index in zip(parsed, partitions, strict=True):
                    print_json({"topic": topic, "partition": index, **offsets.take(index, record.timestamp)})
    if sys.stderr.isatty() and not as_json:
        echo(format_count(producer.records_sent, "record"), err=True)


def _parse(parse: Callable[[bytes], Outgoing], data: bytes, sent: int, number: int) -> Outgoing:
    try:
        return parse(data)
    except ValueError as error:
        raise ValueError(f"record {sent + number}: {error} ({format_count(sent, 'record')} written before)") from error


class _RecordParser(NamedTuple):
    """Turns the bytes of a line, a file or an argument into a record."""

    key: bytes | None
    headers: tuple[Header, ...]
    partition: int | None
    null_empty: bool
    key_delimiter: bytes | None
    read_key: Callable[[bytes], bytes]
    read_value: Callable[[bytes], bytes]
    key_encoder: RegistryEncoder | None
    encoder: RegistryEncoder | None

    def parse(self, data: bytes) -> Outgoing:
        """Return the record whose value, or key and value, the bytes are."""
        key, value = self.key, data
        if self.key_delimiter is not None:
            before, delimiter, after = data.partition(self.key_delimiter)
            if delimiter:
                key, value = self.read_key(before), after
        if self.null_empty:
            key = key or None
            if not value:
                return Outgoing(key, None, self.headers, now_ms(), self.partition)
        return Outgoing(key, self.read_value(value), self.headers, now_ms(), self.partition)

    def parse_json(self, line: bytes) -> Outgoing:
        """Return the record that a JSON object describes; raise ValueError if it is not one."""
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise ValueError("not a JSON object")
            return self._from_entry(entry)
        except ValueError as error:
            raise ValueError(f"{line[:80].decode(errors='replace')}: {error}") from error

    def _from_entry(self, entry: dict[str, Any]) -> Outgoing:
        _refuse_unknown(entry, (*RECORD_FIELDS, *ORIGIN_FIELDS))
        headers = entry.get("headers") or []
        if isinstance(headers, dict):
            pairs = [(str(name), _json_bytes(value)) for name, value in headers.items()]
        elif isinstance(headers, list) and all(isinstance(header, dict) and "name" in header for header in headers):
            pairs = [(str(header["name"]), _header_value(header)) for header in headers]
        else:
            raise ValueError('headers: write {"name": "value"} or [{"name": "...", "value": "..."}]')
        key = _json_field(entry, "key", encoder=self.key_encoder)
        value = _json_field(entry, "value", required=True, encoder=self.encoder)
        partition = self.partition
        if partition is None and entry.get("partition") is not None:
            partition = _json_number(entry, "partition", 2**31)
        return Outgoing(
            self.key if key is None else key,
            value,
            (*self.headers, *pairs),
            _json_number(entry, "timestamp", 2**63) if "timestamp" in entry else now_ms(),
            partition,
        )


class _Offsets:
    """The offsets that the brokers gave to the records of each partition, in order, until they are printed."""

    def __init__(self) -> None:
        self._pending: dict[int, deque[tuple[int | None, int]]] = {}

    def add(self, batch: Delivered) -> None:
        """Add the records of an acknowledged batch."""
        known = batch.base_offset >= 0
        self._pending.setdefault(batch.partition, deque()).extend(
            (batch.base_offset + position if known else None, batch.append_time) for position in range(batch.records)
        )

    def take(self, partition: int, timestamp: int) -> dict[str, int | None]:
        """Remove and return the offset and the timestamp of a partition's next record, sent with `timestamp`."""
        offset, append_time = self._pending[partition].popleft()
        return {"offset": offset, "timestamp": append_time if append_time >= 0 else timestamp}


def _inputs(files: Sequence[str], values: Sequence[str], delimiter: bytes, *, lines: bool) -> Iterator[list[bytes]]:
    """Return the records' bytes, in groups that are sent together."""
    if values:
        yield [_encode(value) for value in values]
        return
    if files:
        try:
            total = sum(os.path.getsize(path) for path in files)
            with byte_progress("sending", total, at_least=PROGRESS_BYTES) as advance:
                for path in files:
                    with open(path, "rb") as file:
                        for records in _lines(file, delimiter) if lines else [[file.read()]]:
                            yield records
                            advance(sum(map(len, records)) + len(records) * len(delimiter))
        except OSError as error:
            raise ValueError(f"{error.filename}: {error.strerror}") from error
        return
    if sys.stdin.isatty():
        echo("reading records from standard input; end with Ctrl-D", err=True)
    yield from _lines(sys.stdin.buffer, delimiter)


def _lines(source: BinaryIO, delimiter: bytes) -> Iterator[list[bytes]]:
    """Return lines in groups of a batch's size; a group ends early when no further input is ready."""
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
            if size >= BATCH_BYTES or len(lines) >= BATCH_RECORDS:
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
    except (OSError, ValueError):  # a test's stream has no file descriptor
        return source.read(READ_SIZE)


def _more_comes(source: BinaryIO) -> bool:
    try:
        return bool(select.select([source.fileno()], [], [], LINGER_SECONDS)[0])
    except (OSError, ValueError):
        return True


def _encode(word: str) -> bytes:
    return word.encode("utf-8", "surrogateescape")


def _header(word: str) -> Header:
    name, equals, value = word.partition("=")
    return name, _encode(value) if equals else None


def _refuse_unknown(entry: dict[str, Any], known: Sequence[str]) -> None:
    for name in entry:
        if name not in known:
            raise ValueError(f"unknown field {name!r}; a record has {', '.join(known)}")


def _header_value(header: dict[str, Any]) -> bytes | None:
    _refuse_unknown(header, HEADER_FIELDS)
    return _json_field(header, "value", required=True)


def _reader(form: Form, encoder: RegistryEncoder | None) -> Callable[[bytes], bytes]:
    """Return a function that turns the text of a key or value into the bytes to send."""
    return (lambda text: read_form(text, form)) if encoder is None else encoder.encode


def _json_field(
    entry: dict[str, Any], name: str, *, required: bool = False, encoder: RegistryEncoder | None = None
) -> bytes | None:
    """Return the bytes of a field that is text under `name` or base64 under `<name>_base64`."""
    encoded_name = f"{name}_base64"
    if name in entry and encoded_name in entry:
        raise ValueError(f"{name} and {encoded_name} are both given")
    if required and name not in entry and encoded_name not in entry:
        raise ValueError(f'no field {name}; write "{name}": null for a null')
    encoded = entry.get(encoded_name)
    if encoded is None:
        value = entry.get(name)
        return _json_bytes(value) if encoder is None or value is None else encoder.encode_value(value)
    try:
        return base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{encoded_name}: {error}") from error


def _json_number(entry: dict[str, Any], name: str, limit: int) -> int:
    value = entry[name]
    if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
        raise ValueError(f"{name} is not a number that a record can have: {json.dumps(value)}")
    return value


def _json_bytes(value: object) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()
