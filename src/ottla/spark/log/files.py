"""Read a log directory beside its broker: partitions, the offsets up to which it is safe to read, times, transactions.

Reads only what is needed: names first, then indexes, then the part of the log behind the last index entry.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from ottla.protocol.errors import ProtocolError
from ottla.protocol.record_schemas.metadata import PartitionRecord, RemoveTopicRecord, TopicRecord
from ottla.protocol.record_values import decode_metadata_record
from ottla.records.batch import check_crc
from ottla.records.columnar import MAX_OFFSET, AbortedTransaction, iter_arrow
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records
from ottla.spark.log.disk import disk_of, plain_path
from ottla.spark.options import OptionError
from ottla.storage.check.scan import METADATA_SNAPSHOT_SUFFIX, read_folder, replay_batch, scan_batches
from ottla.storage.checkpoints import CorruptCheckpointError, decode_offsets
from ottla.storage.errors import CorruptIndexError, CorruptLogError, CorruptSnapshotError
from ottla.storage.log.indexes import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex, TransactionIndex
from ottla.storage.log.producer_state import ProducerState, decode_snapshot
from ottla.storage.names import (
    CLEAN_SHUTDOWN_FILE,
    INDEX_SUFFIX,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    METADATA_TOPIC,
    REPLICATION_CHECKPOINT,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    offset_name,
    parse_numbered,
    parse_partition_dir,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.protocol.uuids import Uuid
    from ottla.records.batch import BatchHeader
    from ottla.spark.offsets import Selection
    from ottla.storage.check.scan import PartitionFolder, SegmentFiles
    from ottla.world.disk import Disk

# A batch found through an index is one of the first few at that position.
_FIRST_READ: Final = 32 << 10
_FEW_RECORDS: Final = 128
LAST_BATCH: Final = "lastBatch"
READ_UP_TO: Final = ("auto", "highWatermark", LAST_BATCH)


@dataclass(slots=True)
class LogDirectory:
    """One log directory of a broker, with its checkpoints."""

    path: str
    high_watermarks: dict[TopicPartition, int]
    start_offsets: dict[TopicPartition, int]
    closed: bool

    @classmethod
    def open(cls, path: str) -> LogDirectory:
        """Read the checkpoints; a missing or incomplete one is empty."""
        return cls(
            path,
            read_checkpoint(path, REPLICATION_CHECKPOINT),
            read_checkpoint(path, LOG_START_CHECKPOINT),
            disk_of(path).exists(f"{path}/{CLEAN_SHUTDOWN_FILE}"),
        )

    def replicas(self) -> dict[TopicPartition, int]:
        """Return the replication factor of each partition by this directory's metadata log, if it has one."""
        topics: dict[Uuid, str] = {}
        counts: dict[tuple[Uuid, int], int] = {}
        for value in metadata_values(self.path):
            try:
                record = decode_metadata_record(value)
            except ProtocolError:
                continue
            if isinstance(record, TopicRecord):
                topics[record.topic_id] = record.name
            elif isinstance(record, RemoveTopicRecord):
                topics.pop(record.topic_id, None)
            elif isinstance(record, PartitionRecord):
                counts[record.topic_id, record.partition_id] = len(record.replicas)
        return {
            TopicPartition(topics[topic_id], number): count
            for (topic_id, number), count in counts.items()
            if topic_id in topics
        }


def read_checkpoint(path: str, name: str) -> dict[TopicPartition, int]:
    """Return the offsets of a checkpoint file; a missing or incomplete one is empty."""
    try:
        return decode_offsets(disk_of(path).read(f"{path}/{name}"))
    except (FileNotFoundError, CorruptCheckpointError):
        return {}


def metadata_values(path: str) -> Iterator[bytes]:
    """Yield the values of the metadata log's records, from its newest snapshot on."""
    disk = disk_of(path)
    try:
        folder = read_folder(disk, f"{path}/{METADATA_TOPIC}-0")
    except FileNotFoundError:
        return
    snapshots = sorted(name for name in folder.others if name.endswith(METADATA_SNAPSHOT_SUFFIX))[-1:]
    for file in [f"{folder.path}/{name}" for name in snapshots] + [segment.path() for segment in folder.segments]:
        try:
            for header, data in scan_batches(disk, file):
                if not header.is_control:
                    yield from (record.value or b"" for record in iter_records(data, header._replace(position=0)))
        except (CorruptLogError, InvalidRecords, FileNotFoundError):
            continue


def find_log_directories(text: str) -> list[LogDirectory]:
    """Return the log directories at a path, at several separated by commas, or one level below (one per broker)."""
    paths = []
    for path_text in text.split(","):
        path = plain_path(path_text)
        disk = disk_of(path)
        if not disk.is_dir(path):
            where = "there" if "://" in path else "on this machine"
            raise OptionError(f"{path!r} is not a folder {where}: give a broker's log directory")
        if _is_log_directory(disk, path):
            paths.append(path)
            continue
        below = [f"{path}/{name}" for name in disk.list(path)]
        below = [folder for folder in below if disk.is_dir(folder) and _is_log_directory(disk, folder)]
        if not below:
            raise OptionError(
                f"{path!r} is no log directory: it has neither {META_PROPERTIES} nor folders such as orders-0"
            )
        paths += below
    return [LogDirectory.open(path) for path in paths]


def _is_log_directory(disk: Disk, path: str) -> bool:
    if disk.exists(f"{path}/{META_PROPERTIES}"):
        return True
    # A broker's folder may be called node-1, like a partition of a topic called node: require a segment in it.
    folders = [f"{path}/{name}" for name in disk.list(path) if parse_partition_dir(name) is not None]
    return any(disk.is_dir(folder) and any(map(parse_numbered, disk.list(folder))) for folder in folders)


def find_logs(directories: list[LogDirectory], selection: Selection, read_up_to: str) -> list[PartitionFiles]:
    """Return the selected partitions in order; raise `OptionError` for one that is in two directories."""
    logs: dict[TopicPartition, PartitionFiles] = {}
    topics = set()
    for directory in directories:
        disk = disk_of(directory.path)
        replicas: dict[TopicPartition, int] | None = None
        for name in disk.list(directory.path):
            named = parse_partition_dir(name)
            if named is None or named.mark:
                continue
            key = named.topic_partition
            topics.add(key.topic)
            if not selection.topic(key.topic) or not selection.partition(key.topic, key.partition):
                continue
            path = f"{directory.path}/{name}"
            if key in logs:
                raise OptionError(
                    f"{key} is in {logs[key].folder.path} and in {path}: these are replicas; read one of them"
                )
            if read_up_to == "auto" and replicas is None:
                replicas = directory.replicas()
            single = read_up_to == LAST_BATCH or (replicas or {}).get(key) == 1
            try:
                folder = read_folder(disk, path)
            except FileNotFoundError:
                continue  # deleted since it was listed
            logs[key] = PartitionFiles(disk, directory, folder, None if single else directory.high_watermarks.get(key))
    for topic in selection.named:
        if topic not in topics:
            there = ", ".join(sorted(name for name in topics if not name.startswith("__"))) or "none"
            raise OptionError(
                f"there is no topic {topic} in {', '.join(d.path for d in directories)}; there are {there}"
            )
    for topic, partitions in (selection.partitions or {}).items():
        for partition in partitions:
            if TopicPartition(topic, partition) not in logs:
                raise OptionError(f"there is no partition {topic}-{partition}")
    return [logs[key] for key in sorted(logs)]


class PartitionFiles:
    """The files of one partition, read on demand."""

    def __init__(
        self, disk: Disk, directory: LogDirectory, folder: PartitionFolder, high_watermark: int | None
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.partition = folder.partition
        self._directory = directory
        self._high_watermark = high_watermark
        self._time_indexes: dict[int, TimeIndex | None] = {}
        self._offset_indexes: dict[int, OffsetIndex | None] = {}

    @property
    def segments(self) -> list[SegmentFiles]:
        """The segments, in order."""
        return self.folder.segments

    @property
    def start_offset(self) -> int:
        """The log start offset."""
        first = self.segments[0].base_offset if self.segments else 0
        return max(first, self._directory.start_offsets.get(self.partition, 0))

    @cached_property
    def tail(self) -> tuple[int, int]:
        """The offset and the position behind the last whole batch of the last segment."""
        if not self.segments:
            return 0, 0
        last = self.segments[-1]
        index = self.offset_index(last)
        # The last indexed batch may be incomplete: then scan from the one before.
        for position in (*(index.positions[:-3:-1] if index is not None else ()), 0):
            end, has_batch = self._scan_tail(last, position)
            if has_batch:
                return end
        return last.base_offset, 0

    def _scan_tail(self, last: SegmentFiles, position: int) -> tuple[tuple[int, int], bool]:
        """Return where the whole batches from a position on end, and whether there is one."""
        end = (last.base_offset, position)
        before, final = end, None
        try:
            for header, data in scan_batches(self.disk, last.path(), last.size, position):
                before, end, final = end, (header.next_offset, header.position + header.size), (header, data)
        except CorruptLogError:
            if self._directory.closed:
                return (end[0], last.size), True  # no broker writes here: the reader reports the damage
        # An incomplete write of a crashed or running broker has the length of a batch, but not its contents.
        if final is not None and not self._directory.closed:
            header, data = final
            if not check_crc(data, header._replace(position=0)):
                return before, before[1] > position
        return end, final is not None

    @cached_property
    def end_offset(self) -> int:
        """The offset up to which it is safe to read: the high watermark, or the log end offset."""
        end = self.tail[0]
        if self._high_watermark is None:
            return end
        return max(min(end, self._high_watermark), self.start_offset)

    def size_of(self, segment: SegmentFiles) -> int:
        """Return how many bytes of a segment may be read."""
        return self.tail[1] if segment is self.segments[-1] else segment.size

    def offset_index(self, segment: SegmentFiles) -> OffsetIndex | None:
        """Return a segment's offset index, or None if it is missing or damaged."""
        if segment.base_offset not in self._offset_indexes:
            index = None
            with contextlib.suppress(FileNotFoundError, CorruptIndexError):
                data = read_entries(segment.path(INDEX_SUFFIX), OFFSET_ENTRY)
                index = OffsetIndex.decode(segment.base_offset, data, segment.size)
            self._offset_indexes[segment.base_offset] = index
        return self._offset_indexes[segment.base_offset]

    def time_index(self, segment: SegmentFiles) -> TimeIndex | None:
        """Return a segment's time index, or None if it is missing or damaged."""
        if segment.base_offset not in self._time_indexes:
            index = None
            with contextlib.suppress(FileNotFoundError, CorruptIndexError):
                index = TimeIndex.decode(segment.base_offset, read_entries(segment.path(TIME_INDEX_SUFFIX), TIME_ENTRY))
            self._time_indexes[segment.base_offset] = index
        return self._time_indexes[segment.base_offset]

    def offset_at(self, timestamp: int) -> int | None:
        """Return the first offset with this timestamp or a later one, as Kafka's ListOffsets; None if there is none."""
        for segment in self.segments:
            active = segment is self.segments[-1]
            times = self.time_index(segment)
            if times is not None and not active and times.timestamps and times.timestamps[-1] < timestamp:
                continue
            position = 0
            if times is not None:
                index = self.offset_index(segment)
                position = index.lookup(times.lookup(timestamp)) if index is not None else 0
            try:
                for header, data in scan_batches(
                    self.disk, segment.path(), self.size_of(segment), position, first_read=_FIRST_READ
                ):
                    if header.max_timestamp < timestamp or header.next_offset <= self.start_offset:
                        continue
                    offset = _first_at(header, data, timestamp, self.start_offset)
                    if offset is not None:
                        return offset if offset < self.end_offset else None
            except (CorruptLogError, InvalidRecords) as error:
                raise OptionError(f"a point in time cannot be found in {segment.path()}: {error}") from error
        return None

    def transactions(self) -> tuple[int, list[AbortedTransaction], list[AbortedTransaction]]:
        """Return the last stable offset, all aborted transactions, and the open ones.

        Uses the transaction indexes, and the log itself behind the last producer snapshot: a running broker may not
        have written its index yet.
        """
        aborted: dict[tuple[int, int], AbortedTransaction] = {}
        for segment in self.segments:
            if TXN_INDEX_SUFFIX not in segment.kinds:
                continue
            try:
                index_data = self.disk.read(segment.path(TXN_INDEX_SUFFIX))
                entries = TransactionIndex.decode(segment.base_offset, index_data).entries
            except FileNotFoundError:
                continue
            except CorruptIndexError as error:
                raise OptionError(
                    f"{segment.path(TXN_INDEX_SUFFIX)} is damaged ({error}): read_committed cannot be decided"
                ) from error
            for entry in entries:
                key = (entry.producer_id, entry.last_offset)
                aborted[key] = AbortedTransaction(entry.producer_id, entry.first_offset, entry.last_offset)
        state, start = self._producers()
        for segment in self.segments:
            if segment is not self.segments[-1] and self._next_base(segment) <= start:
                continue
            index = self.offset_index(segment)
            position = index.lookup(start) if index is not None else 0
            for header, data in scan_batches(self.disk, segment.path(), self.size_of(segment), position):
                if header.base_offset < start or header.base_offset >= self.end_offset or not header.is_transactional:
                    continue
                completed = replay_batch(state, header, data)
                if completed is not None:
                    state.complete(completed, self.end_offset)
                    if completed.aborted:
                        key = (completed.producer_id, completed.last_offset)
                        aborted[key] = AbortedTransaction(*completed[:3])
        unstable = state.first_unstable_offset
        stable = self.end_offset if unstable is None else min(unstable, self.end_offset)
        undecided = [AbortedTransaction(producer, first, self.end_offset) for first, producer in state.ongoing.items()]
        decided = sorted(aborted.values(), key=lambda transaction: transaction.first_offset)
        return max(stable, self.start_offset), decided, undecided

    def _next_base(self, segment: SegmentFiles) -> int:
        return self.segments[self.segments.index(segment) + 1].base_offset

    def _producers(self) -> tuple[ProducerState, int]:
        """Return the newest producer snapshot that is not past the end, and its offset."""
        state = ProducerState()
        for offset in reversed(self.folder.snapshots):
            if offset > self.end_offset:
                continue
            try:
                data = self.disk.read(f"{self.folder.path}/{offset_name(offset, SNAPSHOT_SUFFIX)}")
                state.load(decode_snapshot(data), offset, 0)
            except (FileNotFoundError, CorruptSnapshotError):
                continue
            return state, offset
        return state, self.segments[0].base_offset if self.segments else 0


def _first_at(header: BatchHeader, data: memoryview, timestamp: int, first_offset: int) -> int | None:
    """Return the offset of a batch's first record with this timestamp or a later one."""
    # Kafka counts control batches too; and for a few records, columns cost more than they save.
    if header.is_control or header.record_count < _FEW_RECORDS:
        records = iter_records(data, header._replace(position=0))
        return next((r.offset for r in records if r.timestamp >= timestamp and r.offset >= first_offset), None)
    for batch in iter_arrow(data, first_offset=first_offset, headers=False, times=(timestamp, MAX_OFFSET)):
        if batch.num_rows:
            return int(batch.column("offset")[0].as_py())
    return None


def read_entries(path: str, size: int) -> bytes:
    """Return the entries of an index without the zeros behind them: a running Kafka preallocates 10 MiB."""
    file = disk_of(path).open(path, writable=False)
    try:
        count = file.size() // size
        zero = bytes(size)

        def entry(number: int) -> bytes:
            return file.read_at(number * size, size)

        if count > 1 and entry(count - 1) == zero:
            low, high = 1, count - 1  # the first entry may really be zero
            while low < high:
                middle = (low + high) // 2
                if entry(middle) == zero:
                    high = middle
                else:
                    low = middle + 1
            count = low
        return file.read_at(0, count * size)
    finally:
        file.close()
