"""Leader elections, reassignments and ISR changes: responses and records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.partitions.change import Election, PartitionChange, unclean_election_enabled
from ottla.cluster.topics import validate_replicas
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k43_elect_leaders import PartitionResult, ReplicaElectionResult
from ottla.protocol.messages.k45_alter_partition_reassignments import (
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from ottla.protocol.messages.k46_list_partition_reassignments import (
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.cluster.configs.effective import BrokerLayers
    from ottla.cluster.image import ClusterImage
    from ottla.cluster.partitions.state import Partition, Topic
    from ottla.protocol.messages.k43_elect_leaders import TopicPartitions
    from ottla.protocol.messages.k45_alter_partition_reassignments import ReassignableTopic
    from ottla.protocol.messages.k46_list_partition_reassignments import ListPartitionReassignmentsTopics
    from ottla.protocol.schema import Message

_PREFERRED, _UNCLEAN = 0, 1


def elect_leaders(
    image: ClusterImage, election_type: int, topics: Sequence[TopicPartitions] | None, *, layers: BrokerLayers
) -> tuple[list[ReplicaElectionResult], list[Message]]:
    """Run preferred (type 0) or unclean (type 1) leader elections; None means all partitions.

    For all partitions, only those that needed an election are in the response.
    """
    if election_type not in (_PREFERRED, _UNCLEAN):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}")
    requested: list[tuple[str, list[int]]]
    if topics is None:
        requested = [(topic.name, list(topic.partitions)) for topic in image.topics.values()]
    else:
        requested = [(topic.topic, list(topic.partitions)) for topic in topics]
    results: list[ReplicaElectionResult] = []
    records: list[Message] = []
    for name, partitions in requested:
        partition_results: list[PartitionResult] = []
        for index in partitions:
            code, message = ErrorCode.NONE, None
            try:
                records.append(_elect_leader(image, name, index, election_type, layers))
            except KafkaError as error:
                code, message = error.code, error.message
            if topics is not None or code is not ErrorCode.ELECTION_NOT_NEEDED:
                partition_results.append(PartitionResult(partition_id=index, error_code=code, error_message=message))
        results.append(ReplicaElectionResult(topic=name, partition_result=partition_results))
    return results, records


def _elect_leader(image: ClusterImage, name: str, index: int, election_type: int, layers: BrokerLayers) -> Message:
    """Return the record of a preferred or unclean leader election of ElectLeaders; raise if it changes nothing."""
    topic = image.topic(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    partition = topic.partitions.get(index)
    if partition is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    preferred = election_type == _PREFERRED
    if partition.leader == partition.replicas[0] if preferred else partition.leader >= 0:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    election = Election.PREFERRED if preferred else Election.UNCLEAN
    record = PartitionChange(image, topic, index, layers, image.broker_is_active, election).build()
    if record is None:
        if preferred:
            raise KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
        raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    return record


def change_isr(
    image: ClusterImage, name: str, index: int, isr: Sequence[int], *, layers: BrokerLayers
) -> list[Message]:
    """Set the ISR of a partition, which may complete a reassignment."""
    topic = image.topic(name)
    if topic is None or index not in topic.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    election = Election.UNCLEAN if unclean_election_enabled(image, topic, layers) else Election.ONLINE
    change = PartitionChange(image, topic, index, layers, image.broker_is_active, election, isr=list(isr))
    record = change.build()
    return [] if record is None else [record]


def alter_reassignments(
    image: ClusterImage,
    topics: Sequence[ReassignableTopic],
    *,
    layers: BrokerLayers,
    allow_replication_factor_change: bool = True,
) -> tuple[list[ReassignableTopicResponse], list[Message]]:
    """Start, replace or (without replicas) cancel reassignments; partitions succeed or fail independently."""
    responses: list[ReassignableTopicResponse] = []
    records: list[Message] = []
    for request in topics:
        partitions: list[ReassignablePartitionResponse] = []
        for target in request.partitions:
            code, message = ErrorCode.NONE, None
            try:
                record = _alter_reassignment(
                    image,
                    request.name,
                    target.partition_index,
                    target.replicas,
                    layers,
                    allow_replication_factor_change,
                )
                if record is not None:
                    records.append(record)
            except KafkaError as error:
                code, message = error.code, error.message
            partitions.append(
                ReassignablePartitionResponse(
                    partition_index=target.partition_index, error_code=code, error_message=message
                )
            )
        responses.append(ReassignableTopicResponse(name=request.name, partitions=partitions))
    return responses, records


def _alter_reassignment(
    image: ClusterImage,
    name: str,
    index: int,
    replicas: Sequence[int] | None,
    layers: BrokerLayers,
    allow_factor_change: bool,
) -> Message | None:
    topic = image.topic(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    partition = topic.partitions.get(index)
    if partition is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    if replicas is None:
        return _cancel(image, topic, index, partition, layers)
    validate_replicas(image, replicas, None)
    if not allow_factor_change:
        _check_factor(partition, replicas)
    removing = sorted(set(partition.replicas) - set(replicas))
    adding = sorted(set(replicas) - set(partition.replicas))
    change = PartitionChange(image, topic, index, layers, image.broker_is_active)
    together = [*replicas, *removing]
    if together != list(partition.replicas):
        change.replicas = together
    if removing:
        change.removing = removing
    if adding:
        change.adding = adding
    return change.build()


def _check_factor(partition: Partition, replicas: Sequence[int]) -> None:
    current = set(partition.replicas) | set(partition.adding_replicas)
    if partition.reassigning:
        current -= set(partition.removing_replicas)
    if len(current) != len(replicas):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(current)} to {len(replicas)}",
        )


def _cancel(
    image: ClusterImage, topic: Topic, index: int, partition: Partition, layers: BrokerLayers
) -> Message | None:
    if not partition.reassigning:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    replicas = [replica for replica in partition.replicas if replica not in partition.adding_replicas]
    isr = [replica for replica in partition.isr if replica not in partition.adding_replicas]
    unclean = unclean_election_enabled(image, topic, layers)
    if not isr:
        if not replicas:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "Invalid replica assignment: addingReplicas contains all replicas.",
            )
        isr = [replicas[0]]
        if not unclean:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic.name}:{index} because it would require an unclean "
                "leader election.",
            )
    change = PartitionChange(
        image,
        topic,
        index,
        layers,
        image.broker_is_active,
        Election.UNCLEAN if unclean else Election.ONLINE,
        isr=isr,
        replicas=replicas,
        removing=[],
        adding=[],
    )
    return change.build()


def list_reassignments(
    image: ClusterImage, topics: Sequence[ListPartitionReassignmentsTopics] | None
) -> list[OngoingTopicReassignment]:
    """Return the reassignments in progress, of some partitions or of all."""
    requested: list[tuple[Topic, list[int]]]
    if topics is None:
        requested = [(topic, list(topic.partitions)) for topic in image.topics.values()]
    else:
        requested = [
            (topic, list(request.partition_indexes))
            for request in topics
            if (topic := image.topic(request.name)) is not None
        ]
    reassignments: list[OngoingTopicReassignment] = []
    for topic, indexes in requested:
        ongoing = [
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding_replicas),
                removing_replicas=list(partition.removing_replicas),
            )
            for index in indexes
            if (partition := topic.partitions.get(index)) is not None and partition.reassigning
        ]
        if ongoing:
            reassignments.append(OngoingTopicReassignment(name=topic.name, partitions=ongoing))
    return reassignments
