"""`__cluster_metadata-0`: the metadata log, its snapshots and epochs (Kafka's KafkaRaftLog with a quorum of one).

An epoch begins with a LeaderChange record, each change is one batch, and the image is written as a snapshot from
time to time, so that old records can be deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.configs.effective import broker_value
from ottla.cluster.features import ELR_VERSION, KRAFT_VERSION, METADATA_VERSION
from ottla.cluster.image import ClusterImage, ImageChanges, ReplayError
from ottla.cluster.internal_topics import CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC_ID
from ottla.cluster.metadata.damage import DamagedMetadataError, find_damage, read_segments
from ottla.cluster.metadata.format import bootstrap_records
from ottla.cluster.metadata.quorum import (
    QUORUM_STATE_FILE,
    QuorumState,
    Voter,
    control_batch,
    decode_quorum_state,
    encode_quorum_state,
    is_quorum_state,
    kraft_version_record,
    leader_change,
    voters_of,
    voters_record,
)
from ottla.cluster.metadata.snapshot_records import snapshot_records
from ottla.cluster.metadata.snapshots import (
    BOOTSTRAP_FILE,
    DAMAGED_SUFFIX,
    DELETED_SUFFIX,
    SNAPSHOT_SUFFIX,
    CorruptSnapshotError,
    Snapshot,
    SnapshotId,
    decode_snapshot,
    encode_snapshot,
    metadata_batches,
    parse_snapshot_name,
)
from ottla.protocol.errors import ProtocolError
from ottla.protocol.record_schemas.control import KRaftVersionRecord, VotersRecord
from ottla.protocol.record_schemas.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
)
from ottla.protocol.record_values import (
    ControlRecordType,
    UnknownRecord,
    decode_control_key,
    decode_control_value,
    decode_metadata_record,
)
from ottla.records.batch import iter_batches
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records
from ottla.storage.checkpoints import encode_partition_metadata
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log
from ottla.storage.names import PARTITION_METADATA, TopicPartition
from ottla.world.disk import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.cluster.configs.effective import BrokerLayers
    from ottla.protocol.schema import Message
    from ottla.records.batch import BatchHeader
    from ottla.storage.directory import LogDirectory
    from ottla.world.disk import Disk

_PARTITION: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
_READ_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class MetadataLogConfig:
    """Limits at which the metadata log rolls, writes snapshots and deletes old records."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3_600_000
    bytes_between_snapshots: int = 20 << 20
    snapshot_interval_ms: int = 3_600_000
    retention_bytes: int = 100 << 20
    retention_ms: int = 7 * 24 * 3_600_000

    @classmethod
    def from_broker(cls, layers: BrokerLayers) -> MetadataLogConfig:
        """Read the limits from the broker's configs (`metadata.log.segment.bytes` and others)."""

        def number(name: str) -> int:
            value = broker_value(layers, name)
            assert isinstance(value, int)
            return value

        return cls(
            segment_bytes=number("metadata.log.segment.bytes"),
            segment_ms=number("metadata.log.segment.ms"),
            bytes_between_snapshots=number("metadata.log.max.record.bytes.between.snapshots"),
            snapshot_interval_ms=number("metadata.log.max.snapshot.interval.ms"),
            retention_bytes=number("metadata.max.retention.bytes"),
            retention_ms=number("metadata.max.retention.ms"),
        )


class Appended(NamedTuple):
    """Offsets of appended records, and what they changed."""

    first_offset: int
    last_offset: int
    changes: ImageChanges


@dataclass(slots=True)
class _Kept:
    """A snapshot file: id, size and the last timestamp it contains."""

    id: SnapshotId
    size: int
    last_contained_timestamp: int


@dataclass(slots=True)
class MetadataLog:
    """The metadata log of a quorum of one, and the image replayed from it."""

    directory: LogDirectory
    node_id: int
    config: MetadataLogConfig
    log: Log
    image: ClusterImage = field(default_factory=ClusterImage)
    epoch: int = 0
    kraft_version: int = 0
    voters: tuple[Voter, ...] = ()
    problems: list[str] = field(default_factory=list)
    """What loading could not make sense of, in words for the operator; the rest was loaded."""
    was_cut: bool = False
    """Whether opening cut a torn tail (`storage.log.recovery`), or the log ended before its snapshot.

    Reported in `problems`, which `broker.start` logs. The image may lack topics whose folders are on disk.
    """
    snapshots: list[_Kept] = field(default_factory=list)
    last_timestamp: int = 0
    _bytes_since_snapshot: int = 0
    _last_snapshot_ms: int = 0
    _changed_since_snapshot: bool = False
    _lacks_snapshot: bool = False
    """Whether a damaged snapshot was set aside, so that the next one is due at once."""

    # Opening.

    @classmethod
    def open(cls, directory: LogDirectory, node_id: int, config: MetadataLogConfig | None = None) -> MetadataLog:
        """Load the newest readable snapshot and the records after it; raise DamagedMetadataError before losing any."""
        config = config or MetadataLogConfig()
        folder = _find_folder(directory)
        damage = find_damage(read_segments(directory.env.disk, folder))
        if damage is not None and damage.following:
            raise DamagedMetadataError(
                f"{damage.describe()} and would be lost by a cut; run `ottla log repair {directory.path} --metadata "
                "skip` to replace only the damaged records, or with `truncate` to end the metadata before them"
            )
        log = Log.open(
            directory.env,
            folder,
            _PARTITION,
            LogConfig(
                segment_bytes=config.segment_bytes,
                segment_ms=config.segment_ms,
                # Only snapshots allow deletion; retention by age or size would lose state.
                retention_ms=-1,
                retention_bytes=-1,
            ),
            clean=False,
            hold_high_watermark=directory.sync,
        )
        metadata_log = cls(directory, node_id, config, log)
        if log.report is not None:
            metadata_log.problems += log.report.losses()
            metadata_log.was_cut = log.report.lost_end
        metadata_log._load()
        return metadata_log

    @property
    def folder(self) -> str:
        """Return the folder of the log."""
        return self.log.folder

    @property
    def next_offset(self) -> int:
        """Return the log end offset; a broker that registers there has it as its broker epoch."""
        return self.log.log_end_offset

    @property
    def empty(self) -> bool:
        """Whether the log holds no records: a new cluster."""
        return self.next_offset == 0

    def _load(self) -> None:
        start = self._load_snapshot()
        root = self.directory.path
        if start < self.log.log_start_offset:
            raise DamagedMetadataError(
                f"{self.folder}: the log begins at offset {self.log.log_start_offset} and no readable snapshot covers "
                f"the offsets before it; run `ottla log repair {root} --metadata skip` to continue with the records "
                "that can be read"
            )
        if start > self.log.log_end_offset:
            self.problems.append(
                f"{self.folder}: the log ends at offset {self.log.log_end_offset}, before the snapshot at {start}; it "
                "continues at the snapshot, and records after that are lost"
            )
            self.was_cut = True
            self.log.truncate_fully_and_start_at(start)
        self._replay_from(start)
        state = self._read_quorum_state()
        latest = max(self.epoch, self.log.epochs.latest or 0)
        if self.empty and state.leader_epoch > 0:
            raise DamagedMetadataError(
                f"{self.folder}: the log is empty, although {QUORUM_STATE_FILE} names leader epoch "
                f"{state.leader_epoch}: all metadata is lost; restore the log, or run "
                f"`ottla log repair {root} --metadata truncate` to begin a new cluster in this directory"
            )
        self.epoch = max(state.leader_epoch, latest)

    def _load_snapshot(self) -> int:
        """Load the newest readable snapshot, and return the offset at which replay begins."""
        disk = self.directory.env.disk
        snapshot_ids: list[SnapshotId] = []
        for name in disk.list(self.folder):
            parsed = parse_snapshot_name(name)
            if parsed is None:
                continue
            if parsed[1] == SNAPSHOT_SUFFIX:
                snapshot_ids.append(parsed[0])
            else:
                disk.remove(f"{self.folder}/{name}")
        loaded: SnapshotId | None = None
        damaged: list[str] = []
        for snapshot_id in sorted(snapshot_ids, reverse=True):
            path = f"{self.folder}/{snapshot_id.file_name}"
            try:
                data = disk.read(path)
                snapshot = decode_snapshot(data)
            except CorruptSnapshotError as error:
                self.problems.append(f"{path}: {error}; renamed to {snapshot_id.file_name}{DAMAGED_SUFFIX}")
                damaged.append(path)
                continue
            self.snapshots.insert(0, _Kept(snapshot_id, len(data), snapshot.last_contained_timestamp))
            if loaded is None:
                loaded = snapshot_id
                self._take_snapshot(snapshot_id, snapshot)
        start = 0 if loaded is None else loaded.offset
        if start >= self.log.log_start_offset:  # otherwise the start is refused, and repair needs the file
            for path in damaged:
                disk.rename(path, path + DAMAGED_SUFFIX)
            self._lacks_snapshot = bool(damaged)
        return start

    def _take_snapshot(self, snapshot_id: SnapshotId, snapshot: Snapshot) -> None:
        self.kraft_version, self.voters = snapshot.kraft_version, snapshot.voters
        self.last_timestamp = snapshot.last_contained_timestamp
        self.epoch = snapshot_id.epoch
        for record in snapshot.records:
            self._replay_leniently(record, snapshot_id.offset - 1, ImageChanges())

    def _replay_from(self, offset: int) -> None:
        changes = ImageChanges()
        while offset < self.log.log_end_offset:
            result = self.log.read(offset, _READ_BYTES, self.log.log_end_offset)
            if result.records is None:
                break
            with result.records as piece:
                data = piece.read_all()
            for header in iter_batches(data):
                if header.last_offset >= offset:
                    self._replay_batch(data, header, changes)
                    self._bytes_since_snapshot += header.size
                offset = max(offset, header.next_offset)
        self._changed_since_snapshot = self._bytes_since_snapshot > 0

    def _replay_batch(self, data: bytes, header: BatchHeader, changes: ImageChanges) -> None:
        self.last_timestamp = max(self.last_timestamp, header.max_timestamp)
        try:
            for record in iter_records(data, header):
                if header.is_control:
                    self._replay_control(record.key or b"", record.value or b"")
                else:
                    self._replay_leniently(decode_metadata_record(record.value or b""), record.offset, changes)
        except (InvalidRecords, ProtocolError) as error:
            self.problems.append(f"{self.folder}: batch at offset {header.base_offset}: {error}")

    def _replay_control(self, key: bytes, value: bytes) -> None:
        kind = decode_control_key(key)
        if not isinstance(kind, ControlRecordType):
            self.problems.append(
                f"{self.folder}: a control record of type {kind.type} is not known and was passed over"
            )
            return
        control = decode_control_value(kind, value)
        if isinstance(control, KRaftVersionRecord):
            self.kraft_version = control.kraft_version
        elif isinstance(control, VotersRecord):
            self.voters = voters_of(control)

    def _replay_leniently(self, record: Message | UnknownRecord, offset: int, changes: ImageChanges) -> None:
        if isinstance(record, UnknownRecord):
            what = f"a record of type {record.type} version {record.version} is not known; it is kept"
            self.problems.append(f"{self.folder}: offset {offset}: {what}")
        try:
            self.image.replay(record, changes)
        except ReplayError as error:
            self.problems.append(f"{self.folder}: offset {offset}: {error}")

    def _read_quorum_state(self) -> QuorumState:
        disk = self.directory.env.disk
        path = f"{self.folder}/{QUORUM_STATE_FILE}"
        if not disk.exists(path):
            return QuorumState()
        data = disk.read(path)
        if not is_quorum_state(data):
            self.problems.append(f"{path}: not a JSON object; written again")
        return decode_quorum_state(data)

    # Appending.

    def start_epoch(self, bootstrap: Sequence[Message] | None = None, *, min_insync_replicas: int = 1) -> ImageChanges:
        """Start a new leader epoch; a new cluster gets its bootstrap records.

        They come from `bootstrap`, else from `bootstrap.checkpoint`, else they are the latest feature levels. If they
        enable ELR, `min.insync.replicas` of the properties file becomes the cluster-wide value, as KIP-966 requires.
        A metadata transaction that a crash left open is aborted.
        """
        first = self.empty
        self.epoch += 1
        env = self.directory.env
        write_atomic(
            env.disk,
            f"{self.folder}/{QUORUM_STATE_FILE}",
            encode_quorum_state(
                QuorumState(leader_id=self.node_id, leader_epoch=self.epoch), self.kraft_version, [self.node_id]
            ),
        )
        data = encode_partition_metadata(CLUSTER_METADATA_TOPIC_ID)
        if not holds(env.disk, f"{self.folder}/{PARTITION_METADATA}", data):
            env.write_file(f"{self.folder}/{PARTITION_METADATA}", data, sync=True)
        opening: list[Message] = [leader_change(self.node_id)]
        if first and self.kraft_version >= 1:
            opening += [kraft_version_record(self.kraft_version), voters_record(self.voters)]
        self._append_batch(control_batch(opening, self.next_offset, self.epoch, env.clock.now_ms()))
        changes = ImageChanges()
        if self.image.transaction is not None:
            self._append_records([AbortTransactionRecord(reason="Controller failover")], changes)
        if not self.image.features:
            records = self._bootstrap() if bootstrap is None else list(bootstrap)
            if any(isinstance(record, FeatureLevelRecord) and record.name == ELR_VERSION for record in records):
                records.append(
                    ConfigRecord(
                        resource_type=ConfigResourceType.BROKER,
                        resource_name="",
                        name="min.insync.replicas",
                        value=str(min_insync_replicas),
                    )
                )
            whole = [BeginTransactionRecord(name="Bootstrap records"), *records, EndTransactionRecord()]
            self._append_records(whole, changes, _level_of(records))
        return changes

    def _bootstrap(self) -> list[Message]:
        path = self.directory.file(BOOTSTRAP_FILE)
        disk = self.directory.env.disk
        if disk.exists(path):
            try:
                records = decode_snapshot(disk.read(path)).records
            except CorruptSnapshotError:
                pass  # `check_bootstrap` has reported and rewritten it
            else:
                known = [record for record in records if not isinstance(record, UnknownRecord)]
                # kraft.version is a control record of the quorum, not a metadata record.
                return [
                    record
                    for record in known
                    if not (isinstance(record, FeatureLevelRecord) and record.name == KRAFT_VERSION)
                ]
        return bootstrap_records()

    def append(self, records: Sequence[Message]) -> Appended:
        """Append records as one batch, replay them, and return what changed; an empty list writes nothing."""
        changes = ImageChanges()
        first = self.next_offset
        if records:
            self._append_records(records, changes)
        return Appended(first, self.next_offset - 1, changes)

    def _append_records(
        self, records: Sequence[Message], changes: ImageChanges, metadata_version: int | None = None
    ) -> None:
        level = self.image.metadata_version if metadata_version is None else metadata_version
        now = self.directory.env.clock.now_ms()
        batches = metadata_batches(records, level, base_offset=self.next_offset, epoch=self.epoch, timestamp=now)
        for batch in batches:
            self._append_batch(batch)
        if self.directory.sync:
            # Records in a topic depend on the topic and on producer id blocks, which therefore become durable first.
            self.log.sync_now()
        for record in records:
            self.image.replay(record, changes)

    def _append_batch(self, batch: bytearray) -> None:
        self.log.append_raw(batch)
        self.last_timestamp = max(self.last_timestamp, self.directory.env.clock.now_ms())
        self._bytes_since_snapshot += len(batch)
        self._changed_since_snapshot = True

    def close(self) -> None:
        """Flush and close the log."""
        self.log.close()

    # Snapshots.

    def snapshot_due(self) -> bool:
        """Return whether enough bytes, or enough time with changes, have passed since the last snapshot."""
        if not self._changed_since_snapshot or self.image.transaction is not None:
            return False
        if self._lacks_snapshot:
            return True
        if self._bytes_since_snapshot >= self.config.bytes_between_snapshots:
            return True
        interval = self.config.snapshot_interval_ms
        since = self.directory.env.clock.now_ms() - self._last_snapshot_ms
        return interval > 0 and self._last_snapshot_ms > 0 and since >= interval

    def write_snapshot(self) -> SnapshotId:
        """Write the image as a snapshot at the log end offset, and apply retention."""
        assert self.image.transaction is None, "a snapshot inside a metadata transaction would lose it"
        env = self.directory.env
        now = env.clock.now_ms()
        snapshot_id = SnapshotId(self.next_offset, self.epoch)
        parts = encode_snapshot(
            snapshot_records(self.image),
            self.image.metadata_version,
            epoch=self.epoch,
            timestamp=now,
            last_contained_timestamp=self.last_timestamp,
            kraft_version=self.kraft_version,
            voters=self.voters,
        )
        data = b"".join(parts)
        try:
            write_atomic(env.disk, f"{self.folder}/{snapshot_id.file_name}", data)
        except OSError as error:
            raise env.fail(error) from error
        self.snapshots = [kept for kept in self.snapshots if kept.id != snapshot_id]
        self.snapshots.append(_Kept(snapshot_id, len(data), self.last_timestamp))
        self._bytes_since_snapshot = 0
        self._last_snapshot_ms = now
        self._changed_since_snapshot = False
        self._lacks_snapshot = False
        self.clean()
        return snapshot_id

    def clean(self) -> None:
        """Delete snapshots, and records before them, beyond retention size and age; keep the newest snapshot."""
        now = self.directory.env.clock.now_ms()
        while len(self.snapshots) > 1:
            total = self.log.size + sum(kept.size for kept in self.snapshots)
            oldest, following = self.snapshots[0], self.snapshots[1]
            too_large = 0 <= self.config.retention_bytes < total
            too_old = 0 <= self.config.retention_ms < now - oldest.last_contained_timestamp
            if not too_large and not too_old:
                return
            if following.id.offset > self.log.high_watermark:
                return
            self._delete_snapshot(oldest)
            del self.snapshots[0]
            self.log.advance_log_start(following.id.offset)
            self.log.delete_old_segments()

    def _delete_snapshot(self, kept: _Kept) -> None:
        env = self.directory.env
        path = f"{self.folder}/{kept.id.file_name}"
        gone = path.removesuffix(SNAPSHOT_SUFFIX) + DELETED_SUFFIX
        try:
            env.disk.rename(path, gone)
        except OSError as error:
            raise env.fail(error) from error
        env.later(self.log.config.file_delete_delay_ms, lambda: _forget(self.directory, gone))


def _forget(directory: LogDirectory, path: str) -> None:
    try:
        directory.env.remove_if_exists(path)
    except OSError as error:
        directory.env.fail(error)


def holds(disk: Disk, path: str, data: bytes) -> bool:
    """Return whether a file is there and holds exactly these bytes."""
    try:
        return disk.read(path) == data
    except FileNotFoundError:
        return False


def holds_metadata_log(disk: Disk, path: str) -> bool:
    """Return whether a log directory has a metadata log, under either of its names."""
    return disk.is_dir(f"{path}/{CLUSTER_METADATA_TOPIC}-0") or disk.is_dir(f"{path}/{CLUSTER_METADATA_TOPIC}")


def _find_folder(directory: LogDirectory) -> str:
    """Return the folder of the metadata log; one without the partition number is renamed."""
    folder = directory.file(f"{CLUSTER_METADATA_TOPIC}-0")
    bare = directory.file(CLUSTER_METADATA_TOPIC)
    disk = directory.env.disk
    if not disk.exists(folder) and disk.is_dir(bare):
        disk.rename(bare, folder)
    disk.make_dirs(folder)
    return folder


def _level_of(records: Iterable[Message]) -> int | None:
    for record in records:
        if isinstance(record, FeatureLevelRecord) and record.name == METADATA_VERSION:
            return record.feature_level
    return None
