"""`ottla log dump`: print batches, records and other files of a partition."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.log import paths
from ottla.cli.options.commands import format_examples
from ottla.cli.terminal.output import FAILED, fail, plain_bytes, print_json, shown_bytes, usage
from ottla.protocol.internal_records import KINDS, VALUES, explain, explain_control
from ottla.quantities import format_time
from ottla.records.batch import MAGIC
from ottla.records.compression import CompressionType
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import Record, iter_records
from ottla.storage import names
from ottla.storage.check.partition import wrong_crc
from ottla.storage.check.scan import METADATA_SNAPSHOT_SUFFIX, read_folder, scan_batches
from ottla.storage.check.verify import is_partition
from ottla.storage.checkpoints import CorruptCheckpointError, decode_epochs, decode_offsets, decode_partition_metadata
from ottla.storage.errors import CorruptIndexError, CorruptLogError, CorruptSnapshotError
from ottla.storage.log.indexes import OffsetIndex, TimeIndex, TransactionIndex
from ottla.storage.log.producer_state import decode_snapshot
from ottla.world.disk_real import RealDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.records.batch import BatchHeader

EXAMPLES = format_examples(
    "ottla log dump ./data/orders-0",
    "ottla log dump ./data/orders-0 --records --from 100 --to 120",
    "ottla log dump ./data/__consumer_offsets-12 --records --json | jq .records",
    "ottla log dump ./data/orders-0/00000000000000000000.timeindex",
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("dump", epilog=EXAMPLES)(dump)


def dump(
    path: Annotated[
        str,
        typer.Argument(
            help="A partition's folder, or one file: .log, .checkpoint, an index, a snapshot, a checkpoint."
        ),
    ],
    records: Annotated[bool, typer.Option("--records", "-r", help="Print the records of each batch too.")] = False,
    start: Annotated[
        int | None, typer.Option("--from", help="Print from this offset on.", min=0, show_default=False)
    ] = None,
    end: Annotated[
        int | None, typer.Option("--to", help="Print up to and including this offset.", min=0, show_default=False)
    ] = None,
    values: Annotated[
        str | None,
        typer.Option(
            "--values",
            help="Decode values as metadata, offsets, transactions or share (default: by topic name).",
            show_default=False,
        ),
    ] = None,
    show_secrets: Annotated[
        bool, typer.Option("--show-secrets", help="Print SCRAM keys and token HMACs instead of hiding them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per batch or entry.")] = False,
) -> None:
    """Print a partition's batches, its records, or one of its files.

    Records of __cluster_metadata, __consumer_offsets, __transaction_state and __share_group_state, and control
    records, are decoded. Exit code 1 means that a batch was damaged.
    """
    if values is not None and values not in VALUES:
        raise usage(f"--values {values}: use one of {', '.join(VALUES)}")
    full = paths.existing(path)
    location = Path(full)
    disk = RealDisk()
    if location.is_dir():
        if not is_partition(full):
            raise usage(f"{path} is not a partition's folder; `ottla log ls {path}` lists those in a log directory")
        folder = read_folder(disk, full)
        # A segment ends before the base offset of the next one.
        ends = [segment.base_offset for segment in folder.segments[1:]]
        files = [
            segment.path()
            for segment, next_base in zip(folder.segments, [*ends, None], strict=True)
            if (start is None or next_base is None or next_base > start) and (end is None or segment.base_offset <= end)
        ]
        if not files:
            raise fail(f"{path} has no segment" + (" with these offsets" if folder.segments else ""))
    elif location.suffix in (names.LOG_SUFFIX, METADATA_SNAPSHOT_SUFFIX) or location.name.endswith(
        tuple(names.LOG_SUFFIX + mark for mark in (names.DELETED_SUFFIX, names.CLEANED_SUFFIX, names.SWAP_SUFFIX))
    ):
        files = [full]
    else:
        _dump_small_file(disk, location, as_json)
        return
    kind = values or _kind(location)
    printer = _BatchPrinter(records=records, as_json=as_json, kind=kind, show_secrets=show_secrets)
    failed = False
    for file in files:
        failed |= not printer.file(disk, file, start, end)
    if failed:
        raise typer.Exit(FAILED)


def _kind(path: Path) -> str | None:
    if path.suffix == METADATA_SNAPSHOT_SUFFIX:
        return "metadata"
    folder = path if path.is_dir() else path.parent
    if not is_partition(str(folder)):
        return None
    partition = names.parse_partition_dir(folder.name)
    return KINDS.get(partition.topic_partition.topic if partition is not None else folder.name)


class _BatchPrinter:
    """Prints batches with the chosen options."""

    def __init__(self, *, records: bool, as_json: bool, kind: str | None, show_secrets: bool) -> None:
        self._records = records
        self._json = as_json
        self._kind = kind
        self._show_secrets = show_secrets

    def file(self, disk: RealDisk, path: str, start: int | None, end: int | None) -> bool:
        """Print a file's batches; return whether all were valid."""
        good = True
        if not self._json:
            typer.echo(path)
        try:
            for header, data in scan_batches(disk, path):
                if start is not None and header.last_offset < start:
                    continue
                if end is not None and header.base_offset > end:
                    break
                good &= self._batch(path, header, data, start, end)
        except CorruptLogError as error:
            raise fail(f"{path}: byte {error.position}: {error}") from error
        return good

    def _batch(self, path: str, header: BatchHeader, data: memoryview, start: int | None, end: int | None) -> bool:
        described = describe(header)
        problem = wrong_crc(header, data)
        described["crc_ok"] = not problem
        if self._json:
            described = {"file": path} | described
            if self._records:
                records: list[dict[str, Any]] = []
                try:
                    records += [self._plain(header, record) for record in self._selected(header, data, start, end)]
                except InvalidRecords as error:
                    problem = problem or error.message
                described["records"] = records
            if problem:
                described["error"] = problem
            print_json(described)
            return not problem
        typer.echo(_batch_line(header, problem))
        if self._records:
            try:
                for record in self._selected(header, data, start, end):
                    typer.echo(self._record_line(header, record))
            except InvalidRecords as error:
                problem = problem or error.message
                typer.echo(f"  ! {error.message}")
        return not problem

    def _selected(self, header: BatchHeader, data: memoryview, start: int | None, end: int | None) -> Iterator[Record]:
        if header.magic != MAGIC:
            raise InvalidRecords(43, f"records of message format {header.magic} are not opened")
        for record in iter_records(data, header._replace(position=0)):
            if (start is None or record.offset >= start) and (end is None or record.offset <= end):
                yield record

    def _meaning(self, header: BatchHeader, record: Record) -> dict[str, Any] | None:
        if header.is_control:
            return explain_control(record.key, record.value)
        if self._kind is not None:
            return explain(self._kind, record.key, record.value, show_secrets=self._show_secrets)
        return None

    def _plain(self, header: BatchHeader, record: Record) -> dict[str, Any]:
        plain: dict[str, Any] = {"offset": record.offset, "timestamp": record.timestamp}
        meaning = self._meaning(header, record)
        if meaning is not None:
            plain |= meaning
        if meaning is None or "error" in meaning:
            plain |= plain_bytes("key", record.key) | plain_bytes("value", record.value)
        if record.headers:
            plain["headers"] = [{"name": name, **plain_bytes("value", value)} for name, value in record.headers]
        return plain

    def _record_line(self, header: BatchHeader, record: Record) -> str:
        meaning = self._meaning(header, record)
        words = [f"  | {record.offset}", format_time(record.timestamp) or "-"]
        if meaning is not None and "error" not in meaning:
            first = meaning.pop("control", None) or meaning.pop("type", None)
            if meaning.get("version") is not None:
                first = f"{first} v{meaning.pop('version')}"
            words.append(str(first))
            words += [f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in meaning.items()]
        else:
            words.append(f"key {shown_bytes(record.key)} value {shown_bytes(record.value)}")
            if meaning is not None:
                words.append(f"({meaning['error']})")
        if record.headers:
            words.append("headers " + ", ".join(f"{name}={shown_bytes(value)}" for name, value in record.headers))
        return " ".join(words)


def describe(header: BatchHeader) -> dict[str, Any]:
    """Return a batch header as plain data."""
    return {
        "position": header.position,
        "size": header.size,
        "magic": header.magic,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "partition_leader_epoch": header.partition_leader_epoch,
        "compression": _codec(header.compression),
        "timestamp_type": "LogAppendTime" if header.timestamp_type else "CreateTime",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon_ms": header.delete_horizon_ms,
        "crc": header.crc,
    }


def _codec(number: int) -> str:
    try:
        return CompressionType(number).name.lower()
    except ValueError:
        return f"unknown ({number})"


def _batch_line(header: BatchHeader, problem: str) -> str:
    count = header.record_count
    words = [
        f"offsets {header.base_offset}-{header.last_offset}",
        "1 record" if count == 1 else f"{count} records",
        f"{header.size} bytes at {header.position}",
        f"epoch {header.partition_leader_epoch}",
        _codec(header.compression),
        f"{'LogAppendTime' if header.timestamp_type else 'CreateTime'} {format_time(header.max_timestamp) or '-'}",
    ]
    if header.producer_id >= 0:
        words.append(f"producer {header.producer_id} epoch {header.producer_epoch}")
        if header.base_sequence >= 0:
            words.append(f"sequence {header.base_sequence}-{header.last_sequence}")
    words += ["transactional"] if header.is_transactional else []
    words += ["control"] if header.is_control else []
    if header.delete_horizon_ms is not None:
        words.append(f"delete horizon {format_time(header.delete_horizon_ms)}")
    words += [f"format {header.magic}"] if header.magic != MAGIC else []
    words += [f"WRONG: {problem}"] if problem else []
    return ", ".join(words)


# Small files -----------------------------------------------------------------------------------------------------


def _dump_small_file(disk: RealDisk, path: Path, as_json: bool) -> None:
    try:
        rows = list(_small_file(disk, path))
    except (CorruptIndexError, CorruptSnapshotError, CorruptCheckpointError) as error:
        raise fail(f"{path}: {error}") from error
    for row in rows:
        if as_json:
            print_json(row)
        else:
            typer.echo(" ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.items()))


def _small_file(disk: RealDisk, path: Path) -> Iterator[dict[str, Any]]:
    data = disk.read(str(path))
    numbered = names.parse_numbered(path.name)
    if numbered is not None:
        base = numbered.offset
        if numbered.kind == names.INDEX_SUFFIX:
            log = path.with_name(names.offset_name(base, names.LOG_SUFFIX))
            index = OffsetIndex.decode(base, data, log.stat().st_size if log.exists() else 1 << 62)
            for relative, position in zip(index.relative, index.positions, strict=True):
                yield {"offset": base + relative, "position": position}
        elif numbered.kind == names.TIME_INDEX_SUFFIX:
            times = TimeIndex.decode(base, data)
            for timestamp, offset in zip(times.timestamps, times.offsets, strict=True):
                yield {"timestamp": timestamp, "offset": offset}
        elif numbered.kind == names.TXN_INDEX_SUFFIX:
            for entry in TransactionIndex.decode(base, data).entries:
                yield entry._asdict()
        else:
            for producer in decode_snapshot(data):
                plain = asdict(producer)
                del plain["batches"]
                last = producer.batches[-1] if producer.batches else None
                yield plain | {
                    "first_sequence": last.first_sequence if last else -1,
                    "last_sequence": producer.last_sequence,
                    "last_offset": producer.last_data_offset,
                }
    elif path.name == names.LEADER_EPOCH_CHECKPOINT:
        for epoch, start in decode_epochs(data):
            yield {"epoch": epoch, "start_offset": start}
    elif path.name in names.CHECKPOINTS:
        for partition, offset in decode_offsets(data).items():
            yield {"topic": partition.topic, "partition": partition.partition, "offset": offset}
    elif path.name == names.PARTITION_METADATA:
        yield {"topic_id": str(decode_partition_metadata(data))}
    else:
        raise usage(f"{path} is not a file that `ottla log dump` can print")
