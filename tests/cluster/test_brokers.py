"""Brokers that register, shut down and fail: leadership, ISR and ELR of their partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.cluster.brokers import (
    allocate_producer_ids,
    begin_controlled_shutdown,
    directories_offline,
    fence_broker,
    register_broker,
    unfence_broker,
    unregister_broker,
)
from ottla.cluster.configs.effective import BrokerLayers
from ottla.cluster.image import ClusterImage
from ottla.cluster.partitions.leadership import alter_reassignments, change_isr, elect_leaders, list_reassignments
from ottla.cluster.registrations import Listener
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k43_elect_leaders import TopicPartitions
from ottla.protocol.messages.k45_alter_partition_reassignments import ReassignablePartition, ReassignableTopic
from ottla.protocol.record_schemas.metadata import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
)
from ottla.protocol.schema import Message, Uuid

if TYPE_CHECKING:
    from ottla.cluster.partitions.state import Partition

LAYERS = BrokerLayers()
TOPIC = Uuid(bytes(range(16)))


def directory(broker_id: int) -> Uuid:
    return Uuid(bytes([9] * 15 + [broker_id]))


def cluster(brokers: int = 3, *, elr: bool = True) -> ClusterImage:
    """Return brokers 0.. and topic t with partition 0 on all of them, led by broker 0."""
    image = ClusterImage()
    image.replay(FeatureLevelRecord(name="metadata.version", feature_level=30))
    if elr:
        image.replay(FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1))
    for broker_id in range(brokers):
        arrive(image, broker_id, 10 + broker_id)
    image.replay(TopicRecord(name="t", topic_id=TOPIC))
    image.replay(
        PartitionRecord(
            partition_id=0,
            topic_id=TOPIC,
            replicas=list(range(brokers)),
            isr=list(range(brokers)),
            leader=0,
            leader_epoch=0,
            partition_epoch=0,
            directories=[directory(broker_id) for broker_id in range(brokers)],
        )
    )
    return image


def arrive(image: ClusterImage, broker_id: int, offset: int, previous_epoch: int = -1) -> list[Message]:
    _, records = register_broker(
        image,
        broker_id=broker_id,
        incarnation_id=Uuid(bytes([offset] * 16)),
        listeners=[Listener("PLAINTEXT", "localhost", 9092, 0)],
        directories=[directory(broker_id)],
        next_offset=offset,
        layers=LAYERS,
        previous_epoch=previous_epoch,
    )
    image.replay_all(records)
    unfenced = unfence_broker(image, broker_id, layers=LAYERS)
    image.replay_all(unfenced)
    return [*records, *unfenced]


def part(image: ClusterImage) -> Partition:
    result = image.partition("t", 0)
    assert result is not None
    return result


def test_registered_broker_is_fenced_until_unfenced() -> None:
    image = cluster()
    assert image.brokers[0].epoch == 10
    assert image.broker_is_active(0)
    assert image.brokers[0].cordoned_directories == ()


def test_directory_id_of_another_broker_is_refused() -> None:
    with pytest.raises(KafkaError, match="Broker 0 is already registered with directory"):
        register_broker(
            cluster(),
            broker_id=5,
            incarnation_id=Uuid(),
            listeners=[],
            directories=[directory(0)],
            next_offset=1,
            layers=LAYERS,
        )


def test_controlled_shutdown_moves_leadership() -> None:
    image = cluster()
    image.replay_all(begin_controlled_shutdown(image, 0, layers=LAYERS))
    assert (part(image).leader, part(image).isr, part(image).leader_epoch) == (1, (1, 2), 1)
    image.replay_all(fence_broker(image, 0, layers=LAYERS))
    assert not image.broker_is_active(0)


def test_last_broker_leaves_leaderless_partitions_with_elr() -> None:
    image = cluster(1)
    image.replay_all(begin_controlled_shutdown(image, 0, layers=LAYERS))
    image.replay_all(fence_broker(image, 0, layers=LAYERS))
    assert (part(image).leader, part(image).isr, part(image).elr, part(image).last_known_elr) == (-1, (), (0,), (0,))
    arrive(image, 0, 50, previous_epoch=10)
    assert (part(image).leader, part(image).isr, part(image).elr, part(image).leader_epoch) == (0, (0,), (), 2)
    assert part(image).leader_recovery_state == 0


def test_single_broker_leads_as_recovering_after_unclean_shutdown() -> None:
    image = cluster(1)
    arrive(image, 0, 50)
    assert (part(image).leader, part(image).isr) == (0, (0,))
    assert part(image).leader_recovery_state == 1


def test_isr_never_becomes_empty_without_elr() -> None:
    image = cluster(1, elr=False)
    image.replay_all(fence_broker(image, 0, layers=LAYERS))
    assert (part(image).leader, part(image).isr, part(image).elr) == (-1, (0,), ())


def test_replicas_that_leave_below_min_isr_join_the_elr() -> None:
    image = cluster()
    image.replay(ConfigRecord(resource_type=2, resource_name="t", name="min.insync.replicas", value="2"))
    for broker_id in (2, 1):
        image.replay_all(fence_broker(image, broker_id, layers=LAYERS))
    assert (part(image).isr, part(image).elr) == ((0,), (1,))


def test_unclean_election_requires_topic_config() -> None:
    image = cluster(2, elr=False)
    image.replay_all(change_isr(image, "t", 0, [0], layers=LAYERS))
    image.replay_all(fence_broker(image, 0, layers=LAYERS))
    assert part(image).leader == -1
    image.replay(ConfigRecord(resource_type=2, resource_name="t", name="unclean.leader.election.enable", value="true"))
    arrive(image, 1, 60)
    assert (part(image).leader, part(image).isr, part(image).leader_recovery_state) == (1, (1,), 1)


def test_failed_directory_moves_leadership() -> None:
    image = cluster()
    image.replay_all(directories_offline(image, 0, [directory(0)], layers=LAYERS))
    assert part(image).leader == 1
    assert directories_offline(image, 0, [Uuid(bytes([1] * 16))], layers=LAYERS) == []


def test_unregistered_broker_is_removed() -> None:
    image = cluster()
    image.replay_all(unregister_broker(image, 0, layers=LAYERS))
    assert 0 not in image.brokers
    assert part(image).leader == 1
    with pytest.raises(KafkaError) as caught:
        unregister_broker(image, 0, layers=LAYERS)
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_producer_ids_are_allocated_in_blocks_of_1000() -> None:
    image = cluster()
    for expected in (range(1000), range(1000, 2000)):
        block, records = allocate_producer_ids(image, 1)
        assert block == expected
        image.replay_all(records)
    image.replay(ProducerIdsRecord(next_producer_id=2**63 - 500))
    with pytest.raises(KafkaError, match="Exhausted all producerIds"):
        allocate_producer_ids(image, 1)


def test_preferred_leader_election() -> None:
    image = cluster()
    image.replay_all(fence_broker(image, 0, layers=LAYERS))
    arrive(image, 0, 70)
    image.replay_all(change_isr(image, "t", 0, [1, 2, 0], layers=LAYERS))
    assert part(image).leader == 1
    results, records = elect_leaders(image, 0, None, layers=LAYERS)
    assert [partition.error_code for partition in results[0].partition_result] == [0]
    image.replay_all(records)
    assert part(image).leader == 0
    results, records = elect_leaders(
        image,
        0,
        [TopicPartitions(topic="t", partitions=[0, 5]), TopicPartitions(topic="x", partitions=[0])],
        layers=LAYERS,
    )
    codes = [partition.error_code for result in results for partition in result.partition_result]
    assert codes == [
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert records == []


def reassign(image: ClusterImage, replicas: list[int] | None) -> int:
    topic = ReassignableTopic(name="t", partitions=[ReassignablePartition(partition_index=0, replicas=replicas)])
    responses, records = alter_reassignments(image, [topic], layers=LAYERS)
    image.replay_all(records)
    return responses[0].partitions[0].error_code


def test_reassignment_completes_when_new_replicas_are_in_sync() -> None:
    image = cluster(4)
    image.replay_all(change_isr(image, "t", 0, [0, 1, 2, 3], layers=LAYERS))
    arrive(image, 4, 80)
    assert reassign(image, [4, 1]) == 0
    assert (part(image).adding_replicas, part(image).removing_replicas) == ((4,), (0, 2, 3))
    ongoing = list_reassignments(image, None)
    assert ongoing[0].partitions[0].replicas == [4, 1, 0, 2, 3]
    image.replay_all(change_isr(image, "t", 0, [0, 1, 2, 3, 4], layers=LAYERS))
    assert (part(image).replicas, part(image).isr, part(image).reassigning) == ((4, 1), (1, 4), False)
    assert part(image).leader in (4, 1)
    assert list_reassignments(image, None) == []


def test_reassignment_is_cancelled() -> None:
    image = cluster(2)
    arrive(image, 2, 90)
    before = part(image)
    assert reassign(image, [2]) == 0
    assert reassign(image, None) == 0
    assert (part(image).replicas, part(image).isr, part(image).reassigning) == (before.replicas, before.isr, False)
    assert reassign(image, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert reassign(image, [77]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
