"""Repair the metadata log and `meta.properties` of a stopped log directory, by an explicit choice of the operator.

`truncate` ends the metadata log before the first damage. `skip` keeps every valid batch and writes NoOpRecords over
the offsets that cannot be read. The caller holds the directory's lock.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from ottla.cluster.metadata.damage import MAX_MISSING_OFFSETS, find_damage, read_segments, valid_batches
from ottla.cluster.metadata.meta_properties import (
    MetaProperties,
    MetaPropertiesError,
    read_meta_properties,
    write_meta_properties,
)
from ottla.cluster.metadata.quorum import QUORUM_STATE_FILE, decode_quorum_state
from ottla.cluster.metadata.snapshots import (
    SNAPSHOT_SUFFIX,
    CorruptSnapshotError,
    SnapshotId,
    decode_snapshot,
    encode_snapshot,
    metadata_batches,
    parse_snapshot_name,
)
from ottla.protocol.errors import ProtocolError
from ottla.protocol.record_schemas.metadata import FeatureLevelRecord, NoOpRecord, RegisterBrokerRecord
from ottla.protocol.record_values import UnknownRecord, decode_metadata_record
from ottla.protocol.schema import Uuid
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records
from ottla.storage.check.repair import Step
from ottla.storage.checkpoints import decode_clean_shutdown
from ottla.storage.names import (
    CLEAN_SHUTDOWN_FILE,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    META_PROPERTIES,
    METADATA_TOPIC,
    TIME_INDEX_SUFFIX,
)
from ottla.world.disk import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.cluster.metadata.damage import MetadataSegment
    from ottla.protocol.schema import Message
    from ottla.storage.environment import StorageEnvironment
    from ottla.world.disk import Disk

_METADATA_VERSION = "metadata.version"
_OLDEST_WITH_NO_OP = 1
_NO_OPS_PER_BATCH = 1024


class MetadataChoice(StrEnum):
    """What to do about damage in the metadata log."""

    TRUNCATE = "truncate"
    SKIP = "skip"


def repair_metadata(
    env: StorageEnvironment, root: str, choice: MetadataChoice | None, *, dry_run: bool = False
) -> list[Step]:
    """Repair `meta.properties` and, as chosen, the metadata log; return what was done, or in a dry run would be."""
    steps = _repair_identity(env, root, dry_run)
    folder = f"{root}/{METADATA_TOPIC}-0"
    if choice is None or not env.disk.is_dir(folder):
        return steps
    if choice is MetadataChoice.TRUNCATE:
        return steps + _truncate(env.disk, root, folder, dry_run)
    return steps + _skip(env.disk, folder, env.clock.now_ms(), dry_run)


def _repair_identity(env: StorageEnvironment, root: str, dry_run: bool) -> list[Step]:
    """Write `meta.properties` again if it cannot be read: node and directory id from the broker's registration."""
    disk = env.disk
    try:
        read_meta_properties(disk, root)
        return []
    except MetaPropertiesError:
        pass
    registration = None
    folder = f"{root}/{METADATA_TOPIC}-0"
    for record in _all_records(disk, folder) if disk.is_dir(folder) else ():
        if isinstance(record, RegisterBrokerRecord):
            registration = record
    node_id = 1 if registration is None else registration.broker_id
    known = [] if registration is None else registration.log_dirs
    directory_id = known[0] if len(known) == 1 else Uuid(env.random.uuid())
    cluster_id = str(Uuid(env.random.uuid()))
    if not dry_run:
        write_meta_properties(disk, root, MetaProperties(cluster_id, node_id, directory_id), env.clock.now_ms())
    action = f"write again with node.id {node_id}, directory.id {directory_id} and the new cluster.id {cluster_id}"
    return [Step(f"{root}/{META_PROPERTIES}", action)]


def _all_records(disk: Disk, folder: str) -> Iterator[Message | UnknownRecord]:
    for name in disk.list(folder):
        if name.endswith((LOG_SUFFIX, SNAPSHOT_SUFFIX)):
            yield from _readable_records(disk.read(f"{folder}/{name}"))


def _readable_records(data: bytes) -> Iterator[Message | UnknownRecord]:
    for header in valid_batches(data):
        if header.is_control:
            continue
        try:
            for record in iter_records(data, header):
                yield decode_metadata_record(record.value or b"")
        except (InvalidRecords, ProtocolError):
            continue


# Truncate --------------------------------------------------------------------------------------------------------


def _truncate(disk: Disk, root: str, folder: str, dry_run: bool) -> list[Step]:
    steps: list[Step] = []
    segments = read_segments(disk, folder)
    damage = find_damage(segments)
    end = max((header.next_offset for segment in segments for header in segment.batches), default=0)
    if damage is not None:
        end = damage.offset
        for segment in segments:
            if segment.path == damage.path:
                steps.append(Step(segment.path, f"cut at byte {damage.position}: offsets from {end} on are dropped"))
                if not dry_run:
                    _replace(disk, segment, segment.data[: damage.position])
            elif segment.base_offset >= end:
                steps.append(Step(segment.path, f"remove: offsets from {segment.base_offset} on are dropped"))
                if not dry_run:
                    _remove_segment(disk, segment)
    end = max([end, *(snapshot.offset for snapshot in _snapshots(disk, folder))])
    quorum_state = f"{folder}/{QUORUM_STATE_FILE}"
    if end == 0 and disk.exists(quorum_state) and decode_quorum_state(disk.read(quorum_state)).leader_epoch > 0:
        steps.append(Step(quorum_state, "remove: the next start begins a new cluster; partitions become strays"))
        if not dry_run:
            disk.remove(quorum_state)
    mark = f"{root}/{CLEAN_SHUTDOWN_FILE}"
    epoch = decode_clean_shutdown(disk.read(mark)) if disk.exists(mark) else None
    if epoch is not None and epoch >= end:
        steps.append(Step(mark, f"remove: broker epoch {epoch} is not in the metadata log"))
        if not dry_run:
            disk.remove(mark)
    return steps


def _remove_segment(disk: Disk, segment: MetadataSegment) -> None:
    for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        path = segment.path.removesuffix(LOG_SUFFIX) + suffix
        if disk.exists(path):
            disk.remove(path)


def _replace(disk: Disk, segment: MetadataSegment, data: bytes) -> None:
    """Write a segment's records again; the next start rebuilds its indexes."""
    _remove_segment(disk, segment)
    write_atomic(disk, segment.path, data)


# Skip ------------------------------------------------------------------------------------------------------------


def _skip(disk: Disk, folder: str, now_ms: int, dry_run: bool) -> list[Step]:
    steps: list[Step] = []
    segments = read_segments(disk, folder)
    steps += _salvage_snapshot(disk, folder, segments, now_ms, dry_run)
    if find_damage(segments) is None:
        return steps
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        expected, epoch = segment.base_offset, 0
        parts: list[bytes] = []
        missing = 0
        for header in segment.batches:
            epoch = header.partition_leader_epoch
            missing += header.base_offset - expected
            parts += _no_ops(expected, header.base_offset, epoch, now_ms)
            parts.append(segment.data[header.position : header.end])
            expected = header.next_offset
        if following is not None and expected < following.base_offset:
            missing += following.base_offset - expected
            parts += _no_ops(expected, following.base_offset, epoch, now_ms)
        data = b"".join(parts)
        if data != segment.data:
            steps.append(Step(segment.path, f"replace {missing} unreadable offsets by NoOpRecords"))
            if not dry_run:
                _replace(disk, segment, data)
    return steps


def _no_ops(start: int, end: int, epoch: int, now_ms: int) -> list[bytes]:
    if end - start > MAX_MISSING_OFFSETS:
        raise ValueError(f"{end - start} offsets are missing from {start} on, more than can be replaced")
    batches: list[bytes] = []
    for first in range(start, end, _NO_OPS_PER_BATCH):
        count = min(_NO_OPS_PER_BATCH, end - first)
        records = [NoOpRecord() for _ in range(count)]
        made = metadata_batches(records, _OLDEST_WITH_NO_OP, base_offset=first, epoch=epoch, timestamp=now_ms)
        batches += [bytes(batch) for batch in made]
    return batches


def _snapshots(disk: Disk, folder: str, *, readable: bool = True) -> list[SnapshotId]:
    snapshots = []
    for name in disk.list(folder):
        parsed = parse_snapshot_name(name)
        if parsed is None or parsed[1] != SNAPSHOT_SUFFIX:
            continue
        try:
            decode_snapshot(disk.read(f"{folder}/{name}"))
        except CorruptSnapshotError:
            if readable:
                continue
        snapshots.append(parsed[0])
    return sorted(snapshots)


def _salvage_snapshot(
    disk: Disk, folder: str, segments: list[MetadataSegment], now_ms: int, dry_run: bool
) -> list[Step]:
    """Write a snapshot of the readable records if the log does not begin at 0 and no readable snapshot covers that."""
    begin = segments[0].base_offset if segments else 0
    if begin == 0 or any(snapshot.offset >= begin for snapshot in _snapshots(disk, folder)):
        return []
    damaged = [snapshot for snapshot in _snapshots(disk, folder, readable=False) if snapshot.offset >= begin]
    chosen = damaged[-1] if damaged else SnapshotId(begin, 0)
    path = f"{folder}/{chosen.file_name}"
    records = list(_readable_records(disk.read(path))) if damaged else []
    level = next(
        (
            record.feature_level
            for record in records
            if isinstance(record, FeatureLevelRecord) and record.name == _METADATA_VERSION
        ),
        _OLDEST_WITH_NO_OP,
    )
    if not dry_run:
        parts = encode_snapshot(records, level, epoch=chosen.epoch, timestamp=now_ms, last_contained_timestamp=now_ms)
        write_atomic(disk, path, b"".join(parts))
    return [Step(path, f"write again with the {len(records)} records that can be read")]
