"""Snapshot files of the metadata log (`*.checkpoint`) and `bootstrap.checkpoint`: names, encoding, decoding.

A snapshot has a header, records and a footer in ordinary batches; without a footer it is incomplete.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.cluster.features import record_version
from ottla.cluster.metadata.quorum import Voter, control_batch, kraft_version_record, voters_of, voters_record
from ottla.protocol.errors import ProtocolError
from ottla.protocol.record_schemas.control import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from ottla.protocol.record_values import (
    ControlRecordType,
    UnknownRecord,
    decode_control_key,
    decode_control_value,
    decode_metadata_record,
    encode_metadata_record,
)
from ottla.records.batch import check_crc, iter_batches
from ottla.records.builder import BatchBuilder
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ottla.protocol.schema import Message

BOOTSTRAP_FILE: Final = "bootstrap.checkpoint"
SNAPSHOT_SUFFIX: Final = ".checkpoint"
PARTIAL_SUFFIX: Final = ".checkpoint.part"
DELETED_SUFFIX: Final = ".checkpoint.deleted"
DAMAGED_SUFFIX: Final = ".damaged"
_RECORDS_PER_BATCH: Final = 1024
_NAME: Final = re.compile(r"(\d{20})-(\d{10})(\.checkpoint|\.checkpoint\.deleted|.*\.checkpoint\.part)")


class SnapshotId(NamedTuple):
    """Id of a snapshot of all records below `offset`; `epoch` is that of the last one (Kafka's OffsetAndEpoch)."""

    offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        """Return the name of the snapshot's file."""
        return f"{self.offset:020d}-{self.epoch:010d}{SNAPSHOT_SUFFIX}"


class CorruptSnapshotError(ValueError):
    """A snapshot that cannot be read from header to footer."""


@dataclass(slots=True)
class Snapshot:
    """Contents of a snapshot file."""

    records: list[Message | UnknownRecord] = field(default_factory=list)
    last_contained_timestamp: int = 0
    kraft_version: int = 0
    voters: tuple[Voter, ...] = ()


def parse_snapshot_name(name: str) -> tuple[SnapshotId, str] | None:
    """Return id and suffix of a snapshot's file name, or None for other names."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    suffix = PARTIAL_SUFFIX if match[3].endswith(PARTIAL_SUFFIX) else match[3]
    return SnapshotId(int(match[1]), int(match[2])), suffix


def metadata_batches(
    records: Iterable[Message | UnknownRecord],
    metadata_version: int,
    *,
    base_offset: int,
    epoch: int,
    timestamp: int,
    per_batch: int | None = None,
) -> Iterator[bytearray]:
    """Encode metadata records as batches, in the record versions of a metadata.version."""
    builder = BatchBuilder(base_offset, partition_leader_epoch=epoch)
    for record in records:
        if per_batch is not None and builder.record_count == per_batch:
            yield builder.build()
            builder = BatchBuilder(base_offset, partition_leader_epoch=epoch)
        version = None if isinstance(record, UnknownRecord) else record_version(record, metadata_version)
        base_offset = builder.append(None, encode_metadata_record(record, version), (), timestamp) + 1
    if builder.record_count:
        yield builder.build()


def encode_snapshot(
    records: Iterable[Message | UnknownRecord],
    metadata_version: int,
    *,
    epoch: int,
    timestamp: int,
    last_contained_timestamp: int,
    kraft_version: int = 0,
    voters: tuple[Voter, ...] = (),
) -> Iterator[bytearray]:
    """Encode a snapshot file, batch by batch."""
    head: list[Message] = [SnapshotHeaderRecord(last_contained_log_timestamp=last_contained_timestamp)]
    if kraft_version >= 1:
        head += [kraft_version_record(kraft_version), voters_record(voters)]
    yield control_batch(head, 0, epoch, timestamp)
    offset = len(head)
    materialized = list(records)
    yield from metadata_batches(
        materialized,
        metadata_version,
        base_offset=offset,
        epoch=epoch,
        timestamp=timestamp,
        per_batch=_RECORDS_PER_BATCH,
    )
    yield control_batch([SnapshotFooterRecord()], offset + len(materialized), epoch, timestamp)


def decode_snapshot(data: bytes) -> Snapshot:
    """Decode a whole snapshot; raise CorruptSnapshotError unless it runs from header to footer."""
    snapshot = Snapshot()
    ended = begun = False
    end = 0
    try:
        for header in iter_batches(data):
            if ended:
                raise CorruptSnapshotError("records follow the footer")
            if not check_crc(data, header):
                raise CorruptSnapshotError(f"the batch at byte {header.position} does not match its CRC")
            end = header.end
            for record in iter_records(data, header):
                if not header.is_control:
                    snapshot.records.append(decode_metadata_record(record.value or b""))
                    continue
                kind = decode_control_key(record.key or b"")
                if kind is ControlRecordType.SNAPSHOT_HEADER:
                    begun = True
                elif kind is ControlRecordType.SNAPSHOT_FOOTER:
                    ended = True
                if isinstance(kind, ControlRecordType):
                    _take_control(snapshot, decode_control_value(kind, record.value or b""))
    except (InvalidRecords, ProtocolError) as error:
        raise CorruptSnapshotError(str(error)) from error
    if not begun or not ended or end != len(data):
        raise CorruptSnapshotError("the snapshot does not run from its header to its footer")
    return snapshot


def _take_control(snapshot: Snapshot, value: Message) -> None:
    if isinstance(value, SnapshotHeaderRecord):
        snapshot.last_contained_timestamp = value.last_contained_log_timestamp
    elif isinstance(value, KRaftVersionRecord):
        snapshot.kraft_version = value.kraft_version
    elif isinstance(value, VotersRecord):
        snapshot.voters = voters_of(value)
