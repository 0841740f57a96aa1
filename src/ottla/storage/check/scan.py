"""Read-only access to a log directory for tools: folders, segments and batches as they are on disk.

A broker opens logs through `directory` and `log`, which create missing files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.protocol.errors import KafkaError, ProtocolError
from ottla.protocol.record_schemas.metadata import ConfigRecord, RemoveTopicRecord, TopicRecord
from ottla.protocol.record_values import decode_metadata_record
from ottla.records.batch import HEADER_SIZE, MAGIC, MAGIC_POSITION, check_crc
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records
from ottla.storage.errors import CorruptIndexError, CorruptLogError
from ottla.storage.log.indexes import OffsetIndex, TimeIndex
from ottla.storage.log.producer_state import AppendOrigin, read_marker
from ottla.storage.log.segment import MIN_BATCH, parse_header
from ottla.storage.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    METADATA_TOPIC,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    offset_name,
    parse_numbered,
    parse_partition_dir,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.protocol.uuids import Uuid
    from ottla.records.batch import BatchHeader
    from ottla.storage.log.producer_state import CompletedTxn, ProducerState
    from ottla.world.disk import Disk

CHUNK = 4 << 20
METADATA_SNAPSHOT_SUFFIX = ".checkpoint"
INTERNAL_COMPACTED = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_TOPIC_RESOURCE = 2


@dataclass(slots=True)
class SegmentFiles:
    """Files of one segment; `size` is that of the `.log` file when it was listed."""

    folder: str
    base_offset: int
    kinds: set[str]
    size: int = 0

    def path(self, suffix: str = LOG_SUFFIX) -> str:
        """Return the path of one of the segment's files."""
        return f"{self.folder}/{offset_name(self.base_offset, suffix)}"


@dataclass(slots=True)
class PartitionFolder:
    """Contents of a partition's folder: segments in order, snapshots, and other names."""

    path: str
    partition: TopicPartition
    mark: str = ""
    segments: list[SegmentFiles] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return the number of bytes of records."""
        return sum(segment.size for segment in self.segments)

    @property
    def name(self) -> str:
        """Return the folder's name."""
        return self.path.rpartition("/")[2]


def read_folder(disk: Disk, path: str) -> PartitionFolder:
    """List a partition's folder; raise `ValueError` for other folders."""
    name = path.rstrip("/").rpartition("/")[2]
    named = parse_partition_dir(name)
    if named is None and name == METADATA_TOPIC:
        named = parse_partition_dir(f"{name}-0")
    if named is None:
        raise ValueError(f"{path} is not the folder of a partition")
    folder = PartitionFolder(path.rstrip("/"), named.topic_partition, named.mark)
    kinds: dict[int, set[str]] = {}
    for name_in_folder in disk.list(folder.path):
        file = parse_numbered(name_in_folder)
        if file is None or file.mark:
            folder.others.append(name_in_folder)
        elif file.kind == SNAPSHOT_SUFFIX:
            folder.snapshots.append(file.offset)
        else:
            kinds.setdefault(file.offset, set()).add(file.kind)
    folder.snapshots.sort()
    for base, suffixes in sorted(kinds.items()):
        if LOG_SUFFIX in suffixes:
            segment = SegmentFiles(folder.path, base, suffixes)
            segment.size = disk.size(segment.path())
            folder.segments.append(segment)
        else:
            folder.orphans += [offset_name(base, kind) for kind in sorted(suffixes)]
    return folder


def find_partitions(disk: Disk, root: str) -> list[PartitionFolder]:
    """Return the partition folders of a log directory, sorted by topic and number."""
    root = root.rstrip("/") or "/"
    folders = []
    for name in disk.list(root):
        path = f"{root}/{name}"
        if (parse_partition_dir(name) is not None or name == METADATA_TOPIC) and disk.is_dir(path):
            folders.append(read_folder(disk, path))
    return sorted(folders, key=lambda folder: (folder.partition, folder.mark))


def scan_batches(
    disk: Disk, path: str, size: int | None = None, start: int = 0, *, first_read: int = CHUNK
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield each batch of a file with its bytes; `header.position` is that in the file.

    Reads grow from `first_read` to `CHUNK`, so that callers that need little read little.
    Bytes that are no batch raise `CorruptLogError` with their position. The caller checks CRCs.
    """
    file = disk.open(path, writable=False)
    try:
        if size is None:
            size = file.size()
        position, want = start, first_read
        while position < size:
            chunk = memoryview(file.read_at(position, min(want, size - position)))
            at_end = position + len(chunk) >= size
            at = 0
            while (left := len(chunk) - at) >= HEADER_SIZE or (at_end and left >= MIN_BATCH):
                if left < HEADER_SIZE and chunk[at + MAGIC_POSITION] == MAGIC:
                    break
                header = parse_header(chunk, at, position)
                if header.size > left:
                    break
                yield header, chunk[at : at + header.size]
                at += header.size
            if at == 0:
                if at_end:
                    raise CorruptLogError("the last batch is cut off", position)
                want = max(2 * want, 12 + int.from_bytes(chunk[8:12]))
            else:
                want = min(max(4 * len(chunk), first_read), CHUNK)
            position += at
    finally:
        file.close()


@dataclass(slots=True, frozen=True)
class LogBounds:
    """Bounds of a log in offsets and time; a missing time is -1."""

    start_offset: int
    end_offset: int
    first_timestamp: int
    max_timestamp: int
    leader_epoch: int


def log_bounds(disk: Disk, folder: PartitionFolder) -> LogBounds:
    """Return the bounds of a log from its indexes, reading as little of its segments as possible."""
    if not folder.segments:
        return LogBounds(0, 0, -1, -1, -1)
    first_timestamp = max_timestamp = epoch = -1
    start = folder.segments[0].base_offset
    end = folder.segments[-1].base_offset
    for segment in folder.segments:
        last = segment is folder.segments[-1]
        offset_index, time_index = _indexes(disk, segment)
        if first_timestamp < 0 and segment.size:
            first_timestamp = _first_timestamp(disk, segment)
        latest = time_index.last[0] if time_index is not None else -1
        max_timestamp = max(max_timestamp, latest)
        if last or latest < 0:
            position = offset_index.lookup(offset_index.last_offset) if offset_index is not None and latest >= 0 else 0
            try:
                for header, _ in scan_batches(disk, segment.path(), segment.size, position):
                    max_timestamp = max(max_timestamp, header.max_timestamp)
                    end, epoch = header.next_offset, header.partition_leader_epoch
            except CorruptLogError:
                pass  # the log ends after the last whole batch
    return LogBounds(start, end, first_timestamp, max_timestamp, epoch)


def _indexes(disk: Disk, segment: SegmentFiles) -> tuple[OffsetIndex | None, TimeIndex | None]:
    if not {INDEX_SUFFIX, TIME_INDEX_SUFFIX} <= segment.kinds:
        return None, None
    try:
        return (
            OffsetIndex.decode(segment.base_offset, disk.read(segment.path(INDEX_SUFFIX)), segment.size),
            TimeIndex.decode(segment.base_offset, disk.read(segment.path(TIME_INDEX_SUFFIX))),
        )
    except (CorruptIndexError, FileNotFoundError):
        return None, None


def _first_timestamp(disk: Disk, segment: SegmentFiles) -> int:
    try:
        for header, data in scan_batches(disk, segment.path(), min(segment.size, CHUNK)):
            if not header.has_delete_horizon:
                return header.base_timestamp
            record = next(iter_records(data, header._replace(position=0)), None)
            if record is not None:
                return record.timestamp
    except (CorruptLogError, InvalidRecords):
        pass
    return -1


def replay_batch(state: ProducerState, header: BatchHeader, data: memoryview) -> CompletedTxn | None:
    """Replay a batch into the producer state; return the transaction that it completes, if any."""
    if header.producer_id >= 0:
        append = state.prepare(header.producer_id, AppendOrigin.REPLICATION)
        completed = None
        try:
            if header.is_control:
                marker = read_marker(data, header._replace(position=0))
                if marker is not None:
                    completed = append.append_marker(marker[0], header.producer_epoch, header.base_offset, marker[1])
            else:
                append.append_data(header, header.base_offset, header.max_timestamp)
        except KafkaError:
            return None  # the batch is in the log already: validation is too late
        state.update(append)
        return completed
    return None


@dataclass(slots=True)
class MetadataFacts:
    """Topic ids and compacted topics from the metadata log; empty without one."""

    topic_ids: dict[str, Uuid] = field(default_factory=dict)
    compacted: set[str] = field(default_factory=lambda: set(INTERNAL_COMPACTED))
    known: bool = False


def read_metadata_facts(disk: Disk, root: str) -> MetadataFacts:
    """Read topic ids and compacted topics from the newest snapshot and the log after it."""
    facts = MetadataFacts()
    folders = [folder for folder in find_partitions(disk, root) if folder.partition.topic == METADATA_TOPIC]
    if not folders:
        return facts
    folder = folders[-1]
    snapshots = sorted(name for name in folder.others if name.endswith(METADATA_SNAPSHOT_SUFFIX))
    paths = [f"{folder.path}/{name}" for name in snapshots[-1:]]
    paths += [segment.path() for segment in folder.segments]
    for path in paths:
        try:
            for header, data in scan_batches(disk, path):
                if not header.is_control and check_crc(data, header._replace(position=0)):
                    for record in iter_records(data, header._replace(position=0)):
                        _learn(facts, record.value or b"")
        except (CorruptLogError, InvalidRecords, FileNotFoundError):
            continue  # use what can be read; `verify` reports damage
    facts.known = True
    return facts


def _learn(facts: MetadataFacts, value: bytes) -> None:
    try:
        record = decode_metadata_record(value)
    except ProtocolError:
        return
    if isinstance(record, TopicRecord):
        facts.topic_ids[record.name] = record.topic_id
    elif isinstance(record, RemoveTopicRecord):
        gone = [name for name, topic_id in facts.topic_ids.items() if topic_id == record.topic_id]
        for name in gone:
            del facts.topic_ids[name]
    elif isinstance(record, ConfigRecord) and record.resource_type == _TOPIC_RESOURCE:
        compacts = record.name == "cleanup.policy" and "compact" in (record.value or "")
        if compacts:  # also if it is no longer compacted: gaps remain
            facts.compacted.add(record.resource_name)
