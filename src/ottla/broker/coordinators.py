"""What the group and transaction coordinators ask of the broker: logs, topics, configs, producer ids, markers.

And the other way round: partitions of the coordinators' topics are loaded when this node begins to lead them and
forgotten when it stops. What coordinators decide is not decided here.
"""

from __future__ import annotations

import logging
from itertools import zip_longest
from typing import TYPE_CHECKING

from ottla.cluster.brokers import allocate_producer_ids
from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.configs.effective import group_values
from ottla.cluster.coordinator_loading import UnreadableRecord, unreadable
from ottla.cluster.features import TRANSACTION_VERSION
from ottla.cluster.registrations import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.groups.environment import Appended
from ottla.groups.settings import CoordinatorSettings, GroupSettings
from ottla.pending import Pending, kept
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import check_crc, iter_batches
from ottla.records.builder import BatchBuilder
from ottla.records.control import ControlType
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records
from ottla.storage.errors import CorruptLogError
from ottla.storage.log.producer_state import AppendOrigin
from ottla.transactions.environment import NO_LEADER, ProducerIdBlock, TransactionConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ottla.broker.broker import Broker
    from ottla.broker.partition import Partition
    from ottla.broker.runtime import BrokerRuntime
    from ottla.cluster.registrations import Topic as TopicState
    from ottla.groups.environment import Topic
    from ottla.protocol.schema import Uuid
    from ottla.records.batch import BatchHeader
    from ottla.records.iterate import Record
    from ottla.storage.names import TopicPartition
    from ottla.transactions.environment import LogRecord, TransactionMarker

log = logging.getLogger(__name__)

READ_BYTES = 1024 * 1024
REPORTED_RECORDS = 10
"""How many unreadable records of a partition are logged one by one."""


class CoordinatorLogs:
    """The partitions of `__consumer_offsets` and `__transaction_state` that one node leads."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def append(self, partition: int, batch: bytearray) -> Appended:
        """Append a batch of group records."""
        return Appended(*append_own(self._broker, GROUP_METADATA_TOPIC, partition, batch))

    def write(self, partition: int, records: Sequence[LogRecord]) -> Pending[ErrorCode]:
        """Append a batch of transaction records."""
        batch = BatchBuilder()
        for each in records:
            batch.append(each.key, each.value, (), each.timestamp_ms)
        try:
            _, durable = append_own(self._broker, TRANSACTION_STATE_TOPIC, partition, batch.build())
        except KafkaError as error:
            return kept(error.code)
        return durable or kept(ErrorCode.NONE)


def append_own(broker: Broker, topic: str, partition: int, batch: bytearray) -> tuple[int, Pending[ErrorCode] | None]:
    """Append a coordinator's batch: its first offset, and the promise of an fsync where one is wanted."""
    found = broker.leader_partition(topic, partition)
    offset = found.append(batch, origin=AppendOrigin.COORDINATOR).first_offset
    if not broker.cluster.sync:
        return offset, None
    return offset, broker.when_durable([found.log], ErrorCode.NONE, lambda: ErrorCode.KAFKA_STORAGE_ERROR)


class GroupTopic:
    """One topic as the groups see it."""

    __slots__ = ("_cluster", "_state")

    def __init__(self, cluster: BrokerRuntime, state: TopicState) -> None:
        self._cluster = cluster
        self._state = state

    @property
    def id(self) -> Uuid:
        """The topic's id."""
        return self._state.id

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._state.name

    @property
    def partition_count(self) -> int:
        """How many partitions it has."""
        return len(self._state.partitions)

    def racks(self, partition: int) -> Sequence[str]:
        """The racks of a partition's replicas."""
        nodes = self._cluster.nodes
        racks = [nodes[replica].rack for replica in self._state.partitions[partition].replicas if replica in nodes]
        return [rack for rack in racks if rack is not None]


class GroupTopics:
    """The topics of the cluster, as they are now."""

    def __init__(self, cluster: BrokerRuntime) -> None:
        self._cluster = cluster

    @property
    def version(self) -> int:
        """The offset of the last metadata record."""
        return self._cluster.metadata_offset

    def by_name(self, name: str) -> Topic | None:
        """The topic of that name."""
        found = self._cluster.image.topic(name)
        return None if found is None else GroupTopic(self._cluster, found)

    def by_id(self, topic_id: Uuid) -> Topic | None:
        """The topic with that id."""
        found = self._cluster.image.topics.get(topic_id)
        return None if found is None else GroupTopic(self._cluster, found)

    def names(self) -> Iterable[str]:
        """All names, in the order of creation."""
        return self._cluster.image.topic_ids


class GroupConfigs:
    """The configs that rule groups on one node, parsed once per change."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._coordinator: CoordinatorSettings | None = None
        self._groups: dict[str, GroupSettings] = {}

    def coordinator(self) -> CoordinatorSettings:
        """Those of the broker."""
        if self._coordinator is None:
            self._coordinator = CoordinatorSettings.read(self._broker.config)
        return self._coordinator

    def group(self, group_id: str) -> GroupSettings:
        """Those of one group."""
        own = self._broker.cluster.image.config(ConfigResourceType.GROUP, group_id)
        name = group_id if own else ""
        found = self._groups.get(name)
        if found is None:
            values = group_values(own, self._broker.layers)
            found = self._groups[name] = GroupSettings.read(values.__getitem__)
        return found

    def changed(self) -> None:
        """Look everything up again."""
        self._coordinator = None
        self._groups.clear()


class TransactionWorld:
    """The cluster as the transaction coordinator of one node sees it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def config(self) -> TransactionConfig:
        """The broker's configs that rule transactions."""
        broker = self._broker
        return TransactionConfig(
            transaction_max_timeout_ms=broker.config_int("transaction.max.timeout.ms"),
            transactional_id_expiration_ms=broker.config_int("transactional.id.expiration.ms"),
            abort_timed_out_transaction_cleanup_interval_ms=broker.config_int(
                "transaction.abort.timed.out.transaction.cleanup.interval.ms"
            ),
            remove_expired_transaction_cleanup_interval_ms=broker.config_int(
                "transaction.remove.expired.transaction.cleanup.interval.ms"
            ),
            two_phase_commit_enable=broker.config_bool("transaction.two.phase.commit.enable"),
            partition_verification_enable=broker.config_bool("transaction.partition.verification.enable"),
            add_partitions_to_txn_retry_backoff_ms=broker.config_int("add.partitions.to.txn.retry.backoff.ms"),
            add_partitions_to_txn_retry_backoff_max_ms=broker.config_int("add.partitions.to.txn.retry.backoff.max.ms"),
        )

    def allocate_producer_ids(self) -> Pending[ProducerIdBlock | None]:
        """The next block of producer ids, recorded in the metadata log."""
        cluster = self._broker.cluster
        try:
            block, records = allocate_producer_ids(cluster.image, self._broker.node_id)
            cluster.change(records)
        except KafkaError as error:
            log.warning("no producer ids: %s", error)
            return kept(None)
        return kept(ProducerIdBlock(block.start, len(block)))

    def send_markers(
        self, marker: TransactionMarker, partitions: Sequence[TopicPartition]
    ) -> Pending[dict[TopicPartition, ErrorCode]]:
        """Write the end of a transaction to its partitions, wherever they are led."""
        results: dict[TopicPartition, ErrorCode] = {}
        written = []
        for place in partitions:
            results[place] = self._broker.cluster.write_marker(place, marker)
            if results[place] is ErrorCode.NONE:
                written.append(self._broker.cluster.partitions[place.topic, place.partition].log)
        if written and self._broker.cluster.sync:
            failed = dict.fromkeys(results, ErrorCode.KAFKA_STORAGE_ERROR)
            return self._broker.when_durable(written, results, lambda: failed)
        return kept(results)

    def leader_of(self, partition: TopicPartition) -> int | None:
        """A partition's leader."""
        state = self._broker.cluster.image.partition(partition.topic, partition.partition)
        if state is None:
            return None
        return state.leader if state.leader >= 0 else NO_LEADER

    def transaction_partition_count(self) -> int:
        """How many partitions `__transaction_state` has, or would be created with."""
        return self._broker.cluster.transaction_partition_count()

    def transaction_version(self) -> int:
        """The finalized level of transaction.version."""
        return self._broker.cluster.image.features.get(TRANSACTION_VERSION, 0)


def write_marker(cluster: BrokerRuntime, place: TopicPartition, marker: TransactionMarker) -> ErrorCode:
    """Write a marker to one partition, and let offsets that were part of the transaction count or go."""
    partition = cluster.partitions.get((place.topic, place.partition))
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        partition.log.append_marker(
            ControlType.COMMIT if marker.committed else ControlType.ABORT,
            partition.state.leader_epoch,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
        )
    except KafkaError as error:
        _tell_marker(cluster, place, marker, error.code)
        return error.code
    _tell_marker(cluster, place, marker, ErrorCode.NONE)
    partition.verifications.appended(marker.producer_id, marker.producer_epoch, control=True)
    if place.topic == GROUP_METADATA_TOPIC:
        leader = cluster.nodes.get(partition.state.leader)
        if leader is not None:
            leader.groups.complete_transaction(place.partition, marker.producer_id, committed=marker.committed)
    return ErrorCode.NONE


def _tell_marker(cluster: BrokerRuntime, place: TopicPartition, marker: TransactionMarker, code: ErrorCode) -> None:
    cluster.events.of_node(cluster.partitions[place.topic, place.partition].state.leader).emit(
        "transaction.marker",
        topic=place.topic,
        partition=place.partition,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        committed=marker.committed,
        **({} if code is ErrorCode.NONE else {"error": code.name}),
    )


def load_coordinator(broker: Broker, partition: Partition) -> None:
    """Load the coordinator's state of a partition that this node now leads.

    A record that cannot be loaded fails this partition alone: the coordinator refuses what belongs to it, and the
    record and the command that removes it are logged. The broker and all other partitions go on.
    """
    unreadable: list[UnreadableRecord] = []
    if partition.topic == GROUP_METADATA_TOPIC:
        unreadable = broker.groups.load(partition.index, read_batches(partition))
    elif partition.topic == TRANSACTION_STATE_TOPIC:
        unreadable = broker.transactions.load(
            partition.index, partition.state.leader_epoch, read_records(read_batches(partition))
        )
    elif partition.topic == SHARE_GROUP_STATE_TOPIC:
        unreadable = broker.share_coordinator.load(partition.index, read_records(read_batches(partition)))
    if unreadable:
        _report_unreadable(partition, unreadable)
    broker.events.emit(
        "coordinator.failed" if unreadable else "coordinator.loaded",
        topic=partition.topic,
        partition=partition.index,
        leader_epoch=partition.state.leader_epoch,
        **({"offset": unreadable[0].offset, "reason": unreadable[0].reason} if unreadable else {}),
    )


def _report_unreadable(partition: Partition, unreadable: list[UnreadableRecord]) -> None:
    name = f"{partition.topic}-{partition.index}"
    log.error(
        "%s: not loaded, because %d of its records cannot be; its coordinator answers NOT_COORDINATOR",
        name,
        len(unreadable),
    )
    directory = partition.log.folder.rpartition("/")[0]
    for offset, reason in unreadable[:REPORTED_RECORDS]:
        log.error(
            "%s: the record at offset %d cannot be loaded: %s; to remove it, stop the broker and run "
            "ottla log repair %s --drop-record %s@%d",
            name,
            offset,
            reason,
            directory,
            name,
            offset,
        )
    if len(unreadable) > REPORTED_RECORDS:
        log.error("%s: %d more records cannot be loaded", name, len(unreadable) - REPORTED_RECORDS)


def unload_coordinator(broker: Broker, partition: Partition) -> None:
    """This node does not lead a partition of a coordinator's topic any more."""
    if partition.topic == GROUP_METADATA_TOPIC:
        broker.groups.unload(partition.index)
    elif partition.topic == TRANSACTION_STATE_TOPIC:
        broker.transactions.unload(partition.index)
    elif partition.topic == SHARE_GROUP_STATE_TOPIC:
        broker.share_coordinator.unload(partition.index)
    broker.events.emit("coordinator.unloaded", topic=partition.topic, partition=partition.index)


def read_batches(partition: Partition) -> Iterator[bytes | UnreadableRecord]:
    """Read all batches of a partition in pieces, and what of the log cannot be read in its place.

    Unlike Kafka's CoordinatorLoaderImpl this checks CRCs, so that a flipped bit cannot change an offset silently.
    """
    offset = -1
    try:
        offset, end = partition.log.log_start_offset, partition.log.high_watermark
        while offset < end:
            data = _read_from(partition, offset, end)
            if not data:
                return  # the rest was compacted away
            headers, framing_error = _headers(data)
            start, first_offset = 0, offset
            for header, following in zip_longest(headers, headers[1:]):
                problem = _find_damage(data, header, following, offset, end)
                if problem is None:
                    offset = header.next_offset
                    continue
                if header.position > start:
                    yield data[start : header.position]
                start = header.end
                yield UnreadableRecord(offset, problem)
                next_offset = header.next_offset if following is None else following.base_offset
                offset = min(max(offset + 1, next_offset), end)
            if headers and start < headers[-1].end:
                yield data[start : headers[-1].end]
            if framing_error is not None:
                raise framing_error
            if offset == first_offset:
                raise InvalidRecords(ErrorCode.CORRUPT_MESSAGE, "the batch is longer than the log")
    except Exception as error:  # damage that the log cannot be read beyond
        yield unreadable(offset, error)


def _read_from(partition: Partition, offset: int, end: int) -> bytes:
    """Read whole batches from an offset on; if damage is in the way of a large read, read one batch."""
    try:
        read = partition.log.read(offset, READ_BYTES, end)
    except CorruptLogError:
        read = partition.log.read(offset, 1, end)
    if read.records is None or not len(read):
        return b""
    with read.records as records:
        return records.read_all()


def _headers(data: bytes) -> tuple[list[BatchHeader], InvalidRecords | None]:
    """Return the headers of the batches in a buffer up to one that cannot be a batch, and what is wrong with that."""
    headers: list[BatchHeader] = []
    try:
        headers.extend(iter_batches(data))
    except InvalidRecords as error:
        return headers, error
    return headers, None


def _find_damage(data: bytes, header: BatchHeader, following: BatchHeader | None, offset: int, end: int) -> str | None:
    """Return what is wrong with a batch of the log's part from `offset` to `end`, or None.

    The CRC does not cover the base offset, which is compared with that of the following batch.
    """
    highest = end if following is None or not offset < following.base_offset <= end else following.base_offset
    if header.last_offset < offset or header.next_offset > highest:
        claimed = f"offsets {header.base_offset} to {header.last_offset}"
        return f"the batch has {claimed}, expected offsets from {offset} to {highest - 1}"
    if not check_crc(data, header):
        return "the CRC of the batch is wrong"
    return None


def read_records(pieces: Iterable[bytes | UnreadableRecord]) -> Iterator[Record | UnreadableRecord]:
    """Read the records of batches, without control records."""
    for piece in pieces:
        if isinstance(piece, UnreadableRecord):
            yield piece
            continue
        for header in iter_batches(piece):
            next_offset = header.base_offset
            if header.is_control:
                continue
            try:
                for record in iter_records(piece, header):
                    yield record
                    next_offset = record.offset + 1
            except Exception as error:  # the batch cannot be decompressed, or its records cannot be told apart
                yield unreadable(next_offset, error)
