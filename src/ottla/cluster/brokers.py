"""Broker lifecycle in the metadata: registration, fencing, unregistration, directories, producer id blocks.

Each function returns the records that Kafka's ClusterControlManager and ReplicationControlManager would write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.features import CORDONED_LOG_DIRS_FROM, DIRECTORIES_FROM, supported_features
from ottla.cluster.partitions.change import (
    Election,
    PartitionChange,
    has_online_directory,
    min_isr,
    unclean_election_enabled,
)
from ottla.cluster.partitions.state import Partition, Topic
from ottla.cluster.registrations import BrokerRegistration, ControllerRegistration, Listener, sorted_directories
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas.metadata import (
    BrokerRegistrationChangeRecord,
    ProducerIdsRecord,
    UnregisterBrokerRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ottla.cluster.configs.effective import BrokerLayers
    from ottla.cluster.image import ClusterImage
    from ottla.protocol.schema import Message, Uuid

PRODUCER_ID_BLOCK_SIZE: Final = 1000
UNKNOWN_EPOCH: Final = -1
_LONG_MAX: Final = 2**63 - 1
_FENCE, _UNFENCE, _IN_CONTROLLED_SHUTDOWN = 1, -1, 1

_Partitions = list[tuple[Topic, int]]


def _feature_ranges() -> tuple[tuple[str, int, int], ...]:
    return tuple((name, low, high) for name, (low, high) in sorted(supported_features().items()))


def register_controller(node_id: int, incarnation_id: Uuid, listeners: Iterable[Listener]) -> list[Message]:
    """Return the record that registers a controller."""
    registration = ControllerRegistration(node_id, incarnation_id, False, tuple(listeners), _feature_ranges())
    return [registration.to_record()]


def register_broker(
    image: ClusterImage,
    *,
    broker_id: int,
    incarnation_id: Uuid,
    listeners: Sequence[Listener],
    directories: Sequence[Uuid],
    next_offset: int,
    layers: BrokerLayers,
    rack: str | None = None,
    previous_epoch: int = UNKNOWN_EPOCH,
) -> tuple[int, list[Message]]:
    """Register a broker, fenced; return its broker epoch (`next_offset`) and the records to append there.

    `previous_epoch` comes from the clean shutdown file. If it is not the registered broker epoch, the shutdown was
    unclean, and the broker leaves ISR and ELR of its partitions (KIP-966).
    """
    if not directories or len(set(directories)) != len(directories):
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "A broker needs log directories, each with its own id")
    for other in image.brokers.values():
        for directory in directories:
            if other.id != broker_id and directory in other.directories:
                raise KafkaError(
                    ErrorCode.INVALID_REGISTRATION,
                    f"Broker {other.id} is already registered with directory {directory}",
                )
    existing = image.brokers.get(broker_id)
    records: list[Message] = []
    if existing is not None:
        records += _after_shutdown(image, broker_id, layers, clean=existing.epoch == previous_epoch)
    registration = BrokerRegistration(
        id=broker_id,
        epoch=next_offset,
        incarnation_id=incarnation_id,
        listeners=tuple(listeners),
        features=_feature_ranges(),
        rack=rack,
        fenced=True,
        in_controlled_shutdown=False,
        directories=sorted_directories(directories),
        cordoned_directories=None,
    )
    records.append(registration.to_record(directories=image.metadata_version >= DIRECTORIES_FROM, cordoned=False))
    return next_offset, records


def unfence_broker(
    image: ClusterImage, broker_id: int, *, layers: BrokerLayers, cordoned: Collection[Uuid] = ()
) -> list[Message]:
    """Unfence a registered broker and elect it for partitions without a leader."""
    broker = _registered(image, broker_id)
    records: list[Message] = [
        BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, fenced=_UNFENCE)
    ]
    leaderless = _partitions(image, lambda partition: partition.leader < 0)
    records += _elections(image, leaderless, layers, added=broker_id)
    return records + cordon_directories(image, broker_id, cordoned)


def cordon_directories(image: ClusterImage, broker_id: int, cordoned: Collection[Uuid]) -> list[Message]:
    """Set the cordoned directories of a broker, which get no new partitions (KIP-1066)."""
    broker = _registered(image, broker_id)
    known = broker.cordoned_directories
    if image.metadata_version < CORDONED_LOG_DIRS_FROM or (known is not None and set(known) == set(cordoned)):
        return []
    return [
        BrokerRegistrationChangeRecord(
            broker_id=broker_id, broker_epoch=broker.epoch, cordoned_log_dirs=list(sorted_directories(cordoned))
        )
    ]


def begin_controlled_shutdown(image: ClusterImage, broker_id: int, *, layers: BrokerLayers) -> list[Message]:
    """Start a controlled shutdown: move leadership to other replicas in the ISR, or leave the partition leaderless."""
    broker = _registered(image, broker_id)
    records: list[Message] = []
    if not broker.in_controlled_shutdown:
        records.append(
            BrokerRegistrationChangeRecord(
                broker_id=broker_id, broker_epoch=broker.epoch, in_controlled_shutdown=_IN_CONTROLLED_SHUTDOWN
            )
        )
    in_sync = _partitions(image, lambda partition: broker_id in partition.isr)
    return records + _elections(image, in_sync, layers, removed=broker_id)


def fence_broker(image: ClusterImage, broker_id: int, *, layers: BrokerLayers) -> list[Message]:
    """Fence a broker and move its leadership to other replicas."""
    broker = _registered(image, broker_id)
    in_sync = _partitions(image, lambda partition: broker_id in partition.isr)
    records = _elections(image, in_sync, layers, removed=broker_id)
    records.append(BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, fenced=_FENCE))
    return records


def unregister_broker(image: ClusterImage, broker_id: int, *, layers: BrokerLayers) -> list[Message]:
    """Unregister a broker."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")
    partitions = _partitions(image, lambda partition: broker_id in partition.isr)
    records = _elections(image, partitions, layers, removed=broker_id)
    partitions = _partitions(image, lambda partition: broker_id in partition.elr)
    records += _elections(image, partitions, layers, removed=broker_id)
    records.append(UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch))
    return records


def directories_offline(
    image: ClusterImage, broker_id: int, offline: Iterable[Uuid], *, layers: BrokerLayers
) -> list[Message]:
    """Handle failed log directories of a broker: elect other leaders for the partitions in them."""
    broker = _registered(image, broker_id)
    lost = [directory for directory in offline if directory in broker.directories]
    if not lost:
        return []

    def affected(partition: Partition) -> bool:
        return any(directory in lost for directory in partition.directories)

    records = _elections(image, _partitions(image, affected), layers, removed=broker_id)
    remaining = [directory for directory in broker.directories if directory not in lost]
    records.append(BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, log_dirs=remaining))
    return records


def assign_directories(
    image: ClusterImage,
    broker_id: int,
    directory_of: Mapping[tuple[str, int], Uuid],
    topics: Iterable[Topic],
    *,
    layers: BrokerLayers,
) -> list[Message]:
    """Assign partitions to the directory in which a broker holds them (`directory_of`), where the metadata differs.

    Differences come from a lost directory id, a moved log, or a new partition. A partition that is in no directory
    of the broker is assigned to the first one.
    """
    broker = _registered(image, broker_id)
    records: list[Message] = []
    if image.metadata_version < DIRECTORIES_FROM or not broker.directories:
        return records
    for topic, index in _among(topics, lambda partition: broker_id in partition.replicas):
        partition = topic.partitions[index]
        known = partition.directories[partition.replicas.index(broker_id)]
        directory = directory_of.get((topic.name, index))
        if directory is None:
            directory = known if has_online_directory(image, broker_id, known) else broker.directories[0]
        change = PartitionChange(
            image, topic, index, layers, image.broker_is_active, directories={broker_id: directory}
        )
        if directory != known and (record := change.build()) is not None:
            records.append(record)
    return records


def allocate_producer_ids(image: ClusterImage, broker_id: int) -> tuple[range, list[Message]]:
    """Allocate the next block of 1000 producer ids to a broker."""
    broker = _registered(image, broker_id)
    first = max(image.next_producer_id, 0)
    if first > _LONG_MAX - PRODUCER_ID_BLOCK_SIZE:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "Exhausted all producerIds as the next block's end producerId has exceeded the int64 type limit",
        )
    after = first + PRODUCER_ID_BLOCK_SIZE
    record = ProducerIdsRecord(broker_id=broker_id, broker_epoch=broker.epoch, next_producer_id=after)
    return range(first, after), [record]


def _registered(image: ClusterImage, broker_id: int) -> BrokerRegistration:
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}")
    return broker


def _after_shutdown(image: ClusterImage, broker_id: int, layers: BrokerLayers, *, clean: bool) -> list[Message]:
    in_sync = _partitions(image, lambda partition: broker_id in partition.isr)
    if clean or not image.elr_enabled:
        return _elections(image, in_sync, layers, removed=broker_id)
    eligible = _partitions(image, lambda partition: broker_id in partition.elr)
    return [
        *_elections(image, in_sync, layers, unclean_shutdown=broker_id),
        *_elections(image, eligible, layers, unclean_shutdown=broker_id),
    ]


def _partitions(image: ClusterImage, condition: Callable[[Partition], bool]) -> _Partitions:
    return _among(image.topics.values(), condition)


def _among(topics: Iterable[Topic], condition: Callable[[Partition], bool]) -> _Partitions:
    return [(topic, index) for topic in topics for index, partition in topic.partitions.items() if condition(partition)]


class _ElectionRules:
    """Kind of election and min.insync.replicas by topic; topics without configs of their own are looked up once."""

    def __init__(self, image: ClusterImage, layers: BrokerLayers) -> None:
        self._image = image
        self._layers = layers
        self._known: dict[tuple[str, int], tuple[Election, int]] = {}

    def of_topic(self, topic: Topic) -> tuple[Election, int]:
        has_configs = bool(self._image.config(ConfigResourceType.TOPIC, topic.name))
        replicas = len(topic.partitions[0].replicas) if 0 in topic.partitions else -1
        key = (topic.name if has_configs else "", replicas)
        rules = self._known.get(key)
        if rules is None:
            unclean = unclean_election_enabled(self._image, topic, self._layers)
            rules = Election.UNCLEAN if unclean else Election.ONLINE, min_isr(self._image, topic, self._layers)
            self._known[key] = rules
        return rules


def _elections(
    image: ClusterImage,
    partitions: _Partitions,
    layers: BrokerLayers,
    *,
    removed: int = -1,
    added: int = -1,
    unclean_shutdown: int = -1,
) -> list[Message]:
    def may_lead(broker_id: int) -> bool:
        if broker_id in (removed, unclean_shutdown):
            return False
        return broker_id == added or image.broker_is_active(broker_id)

    records: list[Message] = []
    rules = _ElectionRules(image, layers)
    for topic, index in partitions:
        election, lowest = rules.of_topic(topic)
        isr = [replica for replica in topic.partitions[index].isr if replica not in (removed, unclean_shutdown)]
        change = PartitionChange(image, topic, index, layers, may_lead, election, isr=isr, min_isr=lowest)
        if unclean_shutdown >= 0:
            change.unclean_shutdown = (unclean_shutdown,)
        record = change.build()
        if record is not None:
            records.append(record)
    return records
