"""Removes single records from a partition's log on disk: the way out when a coordinator cannot load one.

Offsets stay as they are: the batch is written again without the record, as compaction does it. A batch that is damaged
is replaced by an empty one. The caller holds the directory's lock and verifies afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.records.batch import (
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    check_crc,
)
from ottla.records.builder import seal_batch
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records, record_bytes
from ottla.storage.check.scan import read_folder
from ottla.storage.cleaner.cleaner import empty_batch, keep_marked_records
from ottla.storage.errors import CorruptLogError
from ottla.storage.log.segment import Segment
from ottla.storage.names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, parse_partition_dir
from ottla.world.disk import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.storage.check.scan import PartitionFolder, SegmentFiles
    from ottla.storage.environment import StorageEnvironment
    from ottla.storage.names import TopicPartition

NOTHING = "no record at offset {}: nothing to drop"
LARGEST_GAP = 1 << 31
"""Offsets of a segment are relative to its base offset and have 31 bits."""


class RecordLocation(NamedTuple):
    """A record by its partition and offset."""

    partition: TopicPartition
    offset: int

    @classmethod
    def parse(cls, text: str) -> RecordLocation:
        """Parse TOPIC-PARTITION@OFFSET; raise ValueError for anything else."""
        name, _, offset = text.rpartition("@")
        folder = parse_partition_dir(name)
        if folder is None or folder.mark or not offset.isdecimal():
            raise ValueError(f"{text!r} is not TOPIC-PARTITION@OFFSET, for example __consumer_offsets-3@17")
        return cls(folder.topic_partition, int(offset))


class Region(NamedTuple):
    """Bytes of a segment, from `start` to `end`: one batch, or a damaged part (`header` is None) between batches.

    `first_offset` to `last_offset` are the offsets that it has, or that a damaged part had. `leader_epoch` is that of
    the batch, or of the batch next to a damaged part.
    """

    start: int
    end: int
    first_offset: int
    last_offset: int
    leader_epoch: int
    header: BatchHeader | None


def remove_record(
    env: StorageEnvironment, root: str, record: RecordLocation, *, dry_run: bool = False
) -> tuple[str, str]:
    """Remove a record from its segment and rebuild the segment's indexes; return the file and what was done to it.

    Raise LookupError if the directory has no such partition, or the partition no such offset.
    """
    path = f"{root}/{record.partition}"
    if not env.disk.is_dir(path):
        raise LookupError(f"{root} has no partition {record.partition}")
    folder = read_folder(env.disk, path)
    for number, segment in enumerate(folder.segments):
        limit = _limit(folder, number)
        if segment.base_offset <= record.offset < limit:
            data = env.disk.read(segment.path())
            for region in regions(data, segment.base_offset, limit):
                if region.first_offset <= record.offset <= region.last_offset:
                    replacement, action = _without_record(data, region, record.offset)
                    if not dry_run:
                        _write(env, segment, data[: region.start] + replacement + data[region.end :])
                    return segment.path(), action
            return segment.path(), NOTHING.format(record.offset)
    raise LookupError(f"{record.partition} has no offset {record.offset}")


def regions(data: bytes, base_offset: int, limit: int) -> Iterator[Region]:
    """Divide a segment into its batches and the damaged parts between them; offsets lie from `base_offset` to `limit`.

    A damaged part ends where the next batch with a right CRC and a later offset begins.
    """
    position, offset, epoch = 0, base_offset, -1
    while position < len(data):
        header = _batch_at(data, position, offset, limit)
        if header is not None and not _is_misplaced(data, header, offset, limit):
            epoch = header.partition_leader_epoch
            yield Region(position, header.end, header.base_offset, header.last_offset, epoch, header)
            position, offset = header.end, header.next_offset
            continue
        following = _next_batch(data, position + 1, offset, limit)
        if following is None:
            last = _claimed_last_offset(data, position, offset, limit)
            yield Region(position, len(data), offset, last, max(epoch, 0), None)
            return
        epoch = following.partition_leader_epoch if epoch < 0 else epoch
        yield Region(position, following.position, offset, max(offset, following.base_offset - 1), epoch, None)
        position = following.position


def _limit(folder: PartitionFolder, number: int) -> int:
    """Return the first offset that a segment cannot have."""
    base = folder.segments[number].base_offset
    return folder.segments[number + 1].base_offset if number + 1 < len(folder.segments) else base + LARGEST_GAP


def _batch_at(data: bytes, position: int, offset: int, limit: int) -> BatchHeader | None:
    """Return the header of an undamaged batch at a position, with offsets from `offset` on, or None."""
    if len(data) - position < HEADER_SIZE or data[position + MAGIC_POSITION] != MAGIC:
        return None
    header = BatchHeader._make((*HEADER.unpack_from(data, position), position))
    fits = HEADER_SIZE <= header.size <= len(data) - position
    in_order = offset <= header.base_offset <= header.last_offset < limit
    return header if fits and in_order and check_crc(data, header) else None


def _is_misplaced(data: bytes, header: BatchHeader, offset: int, limit: int) -> bool:
    """Return whether the next batch contradicts this one's base offset, which its CRC does not cover."""
    if header.base_offset == offset:
        return False
    following = _batch_at(data, header.end, offset, limit)
    return following is not None and following.base_offset <= header.last_offset


def _next_batch(data: bytes, start: int, offset: int, limit: int) -> BatchHeader | None:
    position = data.find(MAGIC, start + MAGIC_POSITION)
    while position >= 0:
        header = _batch_at(data, position - MAGIC_POSITION, offset, limit)
        if header is not None and not _is_misplaced(data, header, offset, limit):
            return header
        position = data.find(MAGIC, position + 1)
    return None


def _claimed_last_offset(data: bytes, position: int, offset: int, limit: int) -> int:
    """Return the last offset that damaged batches at a segment's end claim as far as that can be, else the first."""
    last = offset
    while len(data) - position >= HEADER_SIZE:
        header = BatchHeader._make((*HEADER.unpack_from(data, position), position))
        if header.size < HEADER_SIZE or header.end > len(data) or not last <= header.last_offset < limit:
            break
        last, position = header.last_offset, header.end
    return last


def _without_record(data: bytes, region: Region, offset: int) -> tuple[bytes | bytearray, str]:
    header = region.header
    if header is None:
        size = region.end - region.start
        replaced = f"replace {size} damaged bytes by an empty batch of offsets {region.first_offset} to"
        return _filler(region), f"{replaced} {region.last_offset}"
    batch = data[region.start : region.end]
    header = header._replace(position=0)
    try:
        offsets = [record.offset for record in iter_records(batch, header)]
    except InvalidRecords:
        action = f"drop the records {region.first_offset} to {region.last_offset}, which cannot be separated"
        return empty_batch(header), action
    if offset not in offsets:
        # Compaction removed it, or a damaged part was replaced that held it too.
        return batch, NOTHING.format(offset)
    action = f"drop the record at offset {offset}"
    if len(offsets) == 1:
        return empty_batch(header), action
    marks = bytearray(0 if record_offset == offset else 1 for record_offset in offsets)
    kept, _ = keep_marked_records(memoryview(record_bytes(batch, header)), header, marks, header.delete_horizon_ms)
    return kept, action


def _filler(region: Region) -> bytearray:
    return seal_batch(
        b"",
        base_offset=region.first_offset,
        partition_leader_epoch=region.leader_epoch,
        attributes=0,
        last_offset_delta=region.last_offset - region.first_offset,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=0,
    )


def _write(env: StorageEnvironment, files: SegmentFiles, data: bytes) -> None:
    write_atomic(env.disk, files.path(), data)
    env.files.drop(files.path())
    try:
        Segment(env, files.folder, files.base_offset).rebuild_indexes()
    except CorruptLogError:  # another damaged part: the next removal, or the next start, rebuilds them
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            env.remove_if_exists(files.path(suffix))
