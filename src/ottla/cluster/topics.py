"""Create and delete topics and add partitions: checks, responses and records.

Each function returns the parts of the response and the records for the caller to append and replay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.cluster.configs import ConfigResource, ConfigResourceType
from ottla.cluster.configs.alter import AlterOperation
from ottla.cluster.configs.changes import ConfigChange, alter_resource
from ottla.cluster.configs.effective import BrokerLayers, broker_value, created_topic_configs
from ottla.cluster.features import DIRECTORIES_FROM
from ottla.cluster.internal_topics import CLUSTER_METADATA_TOPIC
from ottla.cluster.partitions.placement import directories_for, place_replicas
from ottla.cluster.partitions.state import Partition
from ottla.cluster.topic_names import colliding_topic, validate_topic_name
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k19_create_topics import CreatableTopicConfigs, CreatableTopicResult
from ottla.protocol.messages.k20_delete_topics import DeletableTopicResult
from ottla.protocol.messages.k37_create_partitions import CreatePartitionsTopicResult
from ottla.protocol.record_schemas.metadata import RemoveTopicRecord, TopicRecord
from ottla.protocol.schema import ZERO_UUID, Uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ottla.cluster.image import ClusterImage
    from ottla.protocol.messages.k19_create_topics import CreatableTopic
    from ottla.protocol.messages.k20_delete_topics import DeleteTopicState
    from ottla.protocol.messages.k37_create_partitions import CreatePartitionsTopic
    from ottla.protocol.schema import Message
    from ottla.world.random import Random

MAX_PARTITIONS_PER_REQUEST: Final = 10_000
_NO_SUCH_TOPIC: Final = "This server does not host this topic-partition."
_NO_SUCH_ID: Final = "This server does not host this topic ID."


def create_topics(
    image: ClusterImage,
    topics: Sequence[CreatableTopic],
    *,
    layers: BrokerLayers,
    random: Random,
    authorized: Callable[[str], bool] = lambda name: True,
    describable: Callable[[str], bool] = lambda name: True,
    charge: Callable[[int], None] = lambda partitions: None,
) -> tuple[list[CreatableTopicResult], list[Message]]:
    """Create topics independently: a failure affects only its topic.

    `layers` are the broker configs for defaults; `authorized` and `describable` check a topic name;
    `charge` counts partitions against the quota for changes and raises THROTTLING_QUOTA_EXCEEDED.
    """
    results: list[CreatableTopicResult] = []
    unique = _refuse_duplicates(topics, results)
    allowed: list[CreatableTopic] = []
    for topic in unique:
        if topic.name == CLUSTER_METADATA_TOPIC:
            message = f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
            results.append(_creation_failed(topic.name, ErrorCode.INVALID_REQUEST, message))
        elif not authorized(topic.name):
            results.append(_creation_failed(topic.name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed."))
        else:
            allowed.append(topic)
    check_total_partitions(allowed, layers)
    records: list[Message] = []
    for topic in allowed:
        try:
            result, new_records = _create_topic(image, topic, layers, random, charge, describable(topic.name))
        except KafkaError as error:
            results.append(_creation_failed(topic.name, error.code, error.message))
            continue
        results.append(result)
        records += new_records
    return results, records


def _refuse_duplicates(topics: Sequence[CreatableTopic], results: list[CreatableTopicResult]) -> list[CreatableTopic]:
    counts: dict[str, int] = {}
    for topic in topics:
        counts[topic.name] = counts.get(topic.name, 0) + 1
    for name, count in counts.items():
        if count > 1:
            results.append(_creation_failed(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
    return [topic for topic in topics if counts[topic.name] == 1]


def _creation_failed(name: str, code: ErrorCode, message: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=message)


def check_total_partitions(topics: Iterable[CreatableTopic], layers: BrokerLayers) -> None:
    """Raise POLICY_VIOLATION if the topics of one request have too many partitions."""
    total = 0
    for topic in topics:
        if topic.assignments:
            total += len(topic.assignments)
        else:
            total += _default_partitions(layers) if topic.num_partitions == -1 else max(topic.num_partitions, 0)
        if total > MAX_PARTITIONS_PER_REQUEST:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def _default_partitions(layers: BrokerLayers) -> int:
    value = broker_value(layers, "num.partitions")
    assert isinstance(value, int)
    return value


def _create_topic(
    image: ClusterImage,
    topic: CreatableTopic,
    layers: BrokerLayers,
    random: Random,
    charge: Callable[[int], None],
    describable: bool,
) -> tuple[CreatableTopicResult, list[Message]]:
    if topic.name in image.topic_ids:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
    validate_topic_name(topic.name)
    colliding = colliding_topic(image, topic.name)
    if colliding is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{topic.name}' collides with existing topic: {colliding}"
        )
    nulls = [config.name for config in topic.configs if config.value is None]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    configs = {config.name: config.value for config in topic.configs if config.value is not None}
    config_records = alter_resource(
        image,
        ConfigResource(ConfigResourceType.TOPIC, topic.name),
        [ConfigChange(name, AlterOperation.SET, value) for name, value in configs.items()],
        layers=layers,
        newly_created=True,
    )
    partitions = (
        _manual_partitions(image, topic) if topic.assignments else _placed_partitions(image, topic, layers, random)
    )
    charge(len(partitions))
    topic_id = Uuid(random.uuid())
    result = CreatableTopicResult(name=topic.name, topic_id=topic_id, error_message=None)
    if describable:
        result.num_partitions = len(partitions)
        result.replication_factor = len(partitions[0].replicas)
        result.configs = [
            CreatableTopicConfigs(
                name=entry.name,
                value=None if entry.sensitive else entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in created_topic_configs(configs, layers)
        ]
    else:
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    records: list[Message] = [TopicRecord(name=topic.name, topic_id=topic_id), *config_records]
    records += _partition_records(image, topic_id, 0, partitions)
    return result, records


def _partition_records(
    image: ClusterImage, topic_id: Uuid, first: int, partitions: Sequence[Partition]
) -> list[Message]:
    return [
        partition.to_record(
            topic_id, first + index, directories=image.metadata_version >= DIRECTORIES_FROM, elr=image.elr_enabled
        )
        for index, partition in enumerate(partitions)
    ]


def _new_partition(image: ClusterImage, replicas: Sequence[int]) -> Partition | None:
    """Return a new partition led by its first active broker; None if no broker is active."""
    isr = tuple(broker_id for broker_id in replicas if image.broker_is_active(broker_id))
    if not isr:
        return None
    return Partition(
        tuple(replicas), directories_for(image, replicas), isr, leader=isr[0], leader_epoch=0, partition_epoch=0
    )


def _placed_partitions(
    image: ClusterImage, topic: CreatableTopic, layers: BrokerLayers, random: Random
) -> list[Partition]:
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    count = _default_partitions(layers) if topic.num_partitions == -1 else topic.num_partitions
    factor = topic.replication_factor
    if factor == -1:
        default = broker_value(layers, "default.replication.factor")
        assert isinstance(default, int)
        factor = default
    try:
        placed = place_replicas(image, random, count, factor)
    except KafkaError as error:
        raise KafkaError(error.code, f"Unable to replicate the partition {factor} time(s): {error.message}") from error
    return _new_partitions(image, placed, factor)


def _new_partitions(image: ClusterImage, placed: Iterable[Sequence[int]], factor: int) -> list[Partition]:
    partitions: list[Partition] = []
    for replicas in placed:
        partition = _new_partition(image, replicas)
        if partition is None:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {factor} time(s): All brokers are currently fenced or in "
                "controlled shutdown.",
            )
        partitions.append(partition)
    return partitions


def _manual_partitions(image: ClusterImage, topic: CreatableTopic) -> list[Partition]:
    for field, value in (("replication factor", topic.replication_factor), ("numPartitions", topic.num_partitions)):
        if value != -1:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {field} was not set to -1.",
            )
    partitions: dict[int, Partition] = {}
    factor: int | None = None
    for assignment in topic.assignments:
        index = assignment.partition_index
        if index in partitions:
            raise _bad_assignment(f"Found multiple manual partition assignments for partition {index}")
        partitions[index] = _manual_partition(image, assignment.broker_ids, factor, index)
        factor = len(assignment.broker_ids)
    if sorted(partitions) != list(range(len(partitions))):
        raise _bad_assignment("partitions should be a consecutive 0-based integer sequence")
    return [partitions[index] for index in range(len(partitions))]


def _manual_partition(image: ClusterImage, replicas: Sequence[int], factor: int | None, index: int) -> Partition:
    validate_replicas(image, replicas, factor)
    partition = _new_partition(image, replicas)
    if partition is None:
        raise _bad_assignment(
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown."
        )
    return partition


def _bad_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def validate_replicas(image: ClusterImage, replicas: Sequence[int], factor: int | None) -> None:
    """Raise for a replica list that is not valid; `factor` is the replication factor of the other partitions."""
    if not replicas:
        raise _bad_assignment("The manual partition assignment includes an empty replica list.")
    previous: int | None = None
    for broker_id in sorted(replicas):
        if broker_id not in image.brokers:
            raise _bad_assignment(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if broker_id == previous:
            raise _bad_assignment(f"The manual partition assignment includes the broker {broker_id} more than once.")
        previous = broker_id
    if factor is not None and len(replicas) != factor:
        raise _bad_assignment(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {factor} replica(s)."
        )


def delete_topics(
    image: ClusterImage,
    topics: Sequence[DeleteTopicState],
    *,
    deletable: Callable[[str], bool] = lambda name: True,
    describable: Callable[[str], bool] = lambda name: True,
    charge: Callable[[int], None] = lambda partitions: None,
) -> tuple[list[DeletableTopicResult], list[Message]]:
    """Delete topics by name or id, without confirming the existence of topics that the caller may not describe."""
    results: list[DeletableTopicResult] = []
    names, ids = _named_and_identified(topics, results)
    chosen: dict[Uuid, str] = {}
    for topic_id in ids:
        topic = image.topics.get(topic_id)
        if topic is None:
            results.append(_not_deleted(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID, _NO_SUCH_ID))
        elif not deletable(topic.name):
            shown = topic.name if describable(topic.name) else None
            results.append(_not_deleted(shown, topic_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        else:
            chosen[topic_id] = topic.name
    for name in names:
        existing_id = image.topic_ids.get(name)
        if not describable(name):
            results.append(_not_deleted(name, ZERO_UUID, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        elif existing_id is None:
            results.append(_not_deleted(name, ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NO_SUCH_TOPIC))
        elif not deletable(name):
            results.append(_not_deleted(name, ZERO_UUID, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        elif existing_id in chosen:
            del chosen[existing_id]
            message = "The provided topic name maps to an ID that was already supplied."
            results.append(_not_deleted(name, existing_id, ErrorCode.INVALID_REQUEST, message))
        else:
            chosen[existing_id] = name
    records: list[Message] = []
    for topic_id, name in chosen.items():
        try:
            charge(len(image.topics[topic_id].partitions))
        except KafkaError as error:
            results.append(_not_deleted(name, topic_id, error.code, error.message))
            continue
        records.append(RemoveTopicRecord(topic_id=topic_id))
        results.append(DeletableTopicResult(name=name, topic_id=topic_id, error_message=None))
    return results, records


def _named_and_identified(
    topics: Sequence[DeleteTopicState], results: list[DeletableTopicResult]
) -> tuple[list[str], list[Uuid]]:
    names: dict[str, int] = {}
    ids: dict[Uuid, int] = {}
    for topic in topics:
        if topic.name is not None and topic.topic_id != ZERO_UUID:
            message = "You may not specify both topic name and topic id."
            results.append(_not_deleted(topic.name, topic.topic_id, ErrorCode.INVALID_REQUEST, message))
        elif topic.name is not None:
            names[topic.name] = names.get(topic.name, 0) + 1
        elif topic.topic_id != ZERO_UUID:
            ids[topic.topic_id] = ids.get(topic.topic_id, 0) + 1
        else:
            message = "Neither topic name nor id were specified."
            results.append(_not_deleted(None, ZERO_UUID, ErrorCode.INVALID_REQUEST, message))
    for name, count in names.items():
        if count > 1:
            results.append(_not_deleted(name, ZERO_UUID, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
    for topic_id, count in ids.items():
        if count > 1:
            results.append(_not_deleted(None, topic_id, ErrorCode.INVALID_REQUEST, "Duplicate topic id."))
    unique_names = [name for name, count in names.items() if count == 1]
    return unique_names, [topic_id for topic_id, count in ids.items() if count == 1]


def _not_deleted(name: str | None, topic_id: Uuid, code: ErrorCode, message: str | None = None) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)


def create_partitions(
    image: ClusterImage,
    topics: Sequence[CreatePartitionsTopic],
    *,
    random: Random,
    authorized: Callable[[str], bool] = lambda name: True,
    charge: Callable[[int], None] = lambda partitions: None,
) -> tuple[list[CreatePartitionsTopicResult], list[Message]]:
    """Add partitions to topics; topics succeed or fail independently."""
    results: list[CreatePartitionsTopicResult] = []
    records: list[Message] = []
    counts: dict[str, int] = {}
    for topic in topics:
        counts[topic.name] = counts.get(topic.name, 0) + 1
    for name, count in counts.items():
        if count > 1:
            results.append(_not_grown(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
    for topic in topics:
        if counts[topic.name] > 1:
            continue
        if not authorized(topic.name):
            results.append(_not_grown(topic.name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, None))
            continue
        try:
            records += _create_partitions(image, topic, random, charge)
        except KafkaError as error:
            results.append(_not_grown(topic.name, error.code, error.message))
        else:
            results.append(CreatePartitionsTopicResult(name=topic.name))
    return results, records


def _not_grown(name: str, code: ErrorCode, message: str | None) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=code, error_message=message)


def _create_partitions(
    image: ClusterImage, request: CreatePartitionsTopic, random: Random, charge: Callable[[int], None]
) -> list[Message]:
    topic = image.topic(request.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    have = len(topic.partitions)
    if request.count == have:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {have} partition(s).")
    if request.count < have:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {request.name} currently has {have} partition(s); {request.count} would not be an increase.",
        )
    additional = request.count - have
    if request.assignments is not None and len(request.assignments) != additional:
        raise _bad_assignment(
            f"Attempted to add {additional} additional partition(s), but only {len(request.assignments)} "
            "assignment(s) were specified."
        )
    if additional > MAX_PARTITIONS_PER_REQUEST:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    charge(additional)
    factor = len(topic.partitions[0].replicas)
    if request.assignments is not None:
        partitions = [
            _manual_partition(image, assignment.broker_ids, factor, have + index)
            for index, assignment in enumerate(request.assignments)
        ]
    else:
        partitions = _new_partitions(image, place_replicas(image, random, additional, factor), factor)
    return _partition_records(image, topic.id, have, partitions)
