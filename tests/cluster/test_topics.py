"""Creation, growth and deletion of topics; errors have the messages of Apache Kafka 4.3.1."""

from __future__ import annotations

import pytest

from ottla.cluster.configs.effective import BrokerLayers
from ottla.cluster.image import ClusterImage
from ottla.cluster.partitions.placement import place_replicas
from ottla.cluster.topics import create_partitions, create_topics, delete_topics
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
)
from ottla.protocol.messages.k20_delete_topics import DeleteTopicState
from ottla.protocol.messages.k37_create_partitions import CreatePartitionsAssignment, CreatePartitionsTopic
from ottla.protocol.record_schemas.metadata import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from ottla.protocol.schema import Uuid
from ottla.world.random import SeededRandom


def cluster(brokers: int = 1, racks: list[str | None] | None = None) -> ClusterImage:
    image = ClusterImage()
    image.replay(FeatureLevelRecord(name="metadata.version", feature_level=30))
    for broker_id in range(brokers):
        image.replay(
            RegisterBrokerRecord(
                broker_id=broker_id,
                log_dirs=[Uuid(bytes([7] * 15 + [broker_id]))],
                rack=racks[broker_id] if racks else None,
                fenced=False,
            )
        )
    return image


def created(image: ClusterImage, *topics: CreatableTopic, **static: str) -> list[CreatableTopicResult]:
    layers = BrokerLayers(static={key.replace("_", "."): value for key, value in static.items()})
    results, records = create_topics(image, topics, layers=layers, random=SeededRandom(3))
    image.replay_all(records)
    return results


def topic(name: str, partitions: int = 1, factor: int = 1, **configs: str | None) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def manual(name: str, *assignments: tuple[int, list[int]]) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in assignments],
    )


def test_topic_records_equal_kafka() -> None:
    image = cluster()
    results, records = create_topics(
        image, [topic("t", 2, cleanup_policy="compact")], layers=BrokerLayers(), random=SeededRandom(1)
    )
    topic_id = results[0].topic_id
    assert records == [
        TopicRecord(name="t", topic_id=topic_id),
        ConfigRecord(resource_type=2, resource_name="t", name="cleanup.policy", value="compact"),
        *(
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=[0],
                isr=[0],
                leader=0,
                leader_epoch=0,
                partition_epoch=0,
                directories=[Uuid(bytes([7] * 15 + [0]))],
            )
            for index in range(2)
        ),
    ]
    assert (results[0].error_code, results[0].num_partitions, results[0].replication_factor) == (0, 2, 1)


def test_topic_defaults_come_from_broker() -> None:
    image = cluster(3)
    result = created(image, topic("t", -1, -1), num_partitions="4", default_replication_factor="2")[0]
    assert (result.num_partitions, result.replication_factor) == (4, 2)


@pytest.mark.parametrize(
    ("requested", "code", "message"),
    [
        (topic("there"), ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'there' already exists."),
        (
            topic("a b"),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "Topic name is invalid: 'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' "
            "and '-'",
        ),
        (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: the empty string is not allowed"),
        (topic("."), ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: '.' is not allowed"),
        (topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: '..' is not allowed"),
        (
            topic("x" * 250),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic name is invalid: the length of '{'x' * 250}' is longer than the max allowed length 249",
        ),
        (topic("a_b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic 'a_b' collides with existing topic: a.b"),
        (
            topic("t", 0),
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        ),
        (
            topic("t", 1, 0),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            topic("t", 1, 3),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached "
            "because only 1 broker(s) are registered or some brokers have all their log directories cordoned.",
        ),
        (
            topic("t", retention_ms="abc"),
            ErrorCode.INVALID_CONFIG,
            "Invalid value abc for configuration retention.ms: Not a number of type LONG",
        ),
        (topic("t", nope="1"), ErrorCode.INVALID_CONFIG, "Unknown topic config name: nope"),
        (
            topic("t", retention_ms=None),
            ErrorCode.INVALID_CONFIG,
            "Null value not supported for topic configs: retention.ms",
        ),
        (
            manual("t", (0, [0]), (2, [0])),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            manual("t", (0, [])),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes an empty replica list.",
        ),
        (
            manual("t", (0, [9])),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes broker 9, but no such broker is registered.",
        ),
        (
            manual("t", (0, [0, 0])),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes the broker 0 more than once.",
        ),
        (
            topic("__cluster_metadata"),
            ErrorCode.INVALID_REQUEST,
            "Creation of internal topic __cluster_metadata is prohibited.",
        ),
    ],
)
def test_errors_have_kafkas_messages(requested: CreatableTopic, code: ErrorCode, message: str) -> None:
    image = cluster()
    created(image, topic("there"), topic("a.b"))
    before = dict(image.topic_ids)
    result = created(image, requested)[0]
    assert (result.error_code, result.error_message) == (code, message)
    assert image.topic_ids == before


def test_duplicate_topic_name_fails_alone() -> None:
    image = cluster()
    results = created(image, topic("twice"), topic("twice"), topic("once"))
    assert [(result.name, result.error_code) for result in results] == [("twice", 42), ("once", 0)]
    assert list(image.topic_ids) == ["once"]


def test_too_many_partitions_fail_the_request() -> None:
    with pytest.raises(KafkaError, match="Excessively large number of partitions per request") as caught:
        created(cluster(), topic("a", 6000), topic("b", 6000))
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


def test_unauthorized_create_is_refused() -> None:
    image = cluster()
    results, records = create_topics(
        image,
        [topic("hidden"), topic("shy")],
        layers=BrokerLayers(),
        random=SeededRandom(1),
        authorized=lambda name: name != "hidden",
        describable=lambda name: False,
    )
    assert [result.error_code for result in results] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0]
    assert results[1].topic_config_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (results[1].num_partitions, results[1].configs) == (-1, [])
    assert len(records) == 2


def test_mutation_quota_refuses_one_topic() -> None:
    def charge(partitions: int) -> None:
        if partitions > 2:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)

    results, _ = create_topics(
        cluster(), [topic("big", 3), topic("small", 1)], layers=BrokerLayers(), random=SeededRandom(1), charge=charge
    )
    assert [result.error_code for result in results] == [ErrorCode.THROTTLING_QUOTA_EXCEEDED, 0]


def test_leaders_are_spread_over_brokers_and_replicas_over_racks() -> None:
    image = cluster(6, ["a", "a", "b", "b", "c", "c"])
    placed = place_replicas(image, SeededRandom(11), 12, 3)
    assert all(len({broker // 2 for broker in replicas}) == 3 for replicas in placed), "one replica per rack"
    leaders = [replicas[0] for replicas in placed]
    assert {leaders.count(broker) for broker in range(6)} == {2}


def test_same_seed_gives_same_placement() -> None:
    image = cluster(5)
    assert place_replicas(image, SeededRandom(4), 20, 2) == place_replicas(image, SeededRandom(4), 20, 2)


def test_fenced_broker_follows_but_does_not_lead() -> None:
    image = cluster(3)
    image.replay(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=0, fenced=1))
    created(image, topic("t", 6, 3))
    parts = image.topics[image.topic_ids["t"]].partitions.values()
    assert all(1 not in part.isr and part.leader != 1 and 1 in part.replicas for part in parts)


def test_partitions_are_added_after_existing_ones() -> None:
    image = cluster()
    created(image, topic("t", 2))
    results, records = create_partitions(
        image, [CreatePartitionsTopic(name="t", count=4, assignments=None)], random=SeededRandom(1)
    )
    assert results[0].error_code == 0
    assert [record.partition_id for record in records if isinstance(record, PartitionRecord)] == [2, 3]


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (
            CreatePartitionsTopic(name="t", count=2, assignments=None),
            ErrorCode.INVALID_PARTITIONS,
            "Topic already has 2 partition(s).",
        ),
        (
            CreatePartitionsTopic(name="t", count=1, assignments=None),
            ErrorCode.INVALID_PARTITIONS,
            "The topic t currently has 2 partition(s); 1 would not be an increase.",
        ),
        (CreatePartitionsTopic(name="none", count=1, assignments=None), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
        (
            CreatePartitionsTopic(name="t", count=4, assignments=[CreatePartitionsAssignment(broker_ids=[0])]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
    ],
)
def test_invalid_partition_additions_are_refused(
    request_: CreatePartitionsTopic, code: ErrorCode, message: str | None
) -> None:
    image = cluster()
    created(image, topic("t", 2))
    results, records = create_partitions(image, [request_], random=SeededRandom(1))
    assert (results[0].error_code, results[0].error_message, records) == (code, message, [])


def test_topic_is_deleted_by_name_or_id() -> None:
    image = cluster()
    created(image, topic("by-name"), topic("by-id"), topic("stays"))
    results, records = delete_topics(
        image, [DeleteTopicState(name="by-name"), DeleteTopicState(name=None, topic_id=image.topic_ids["by-id"])]
    )
    assert [result.error_code for result in results] == [0, 0]
    image.replay_all(records)
    assert list(image.topic_ids) == ["stays"]


def test_deleted_topic_loses_its_configs() -> None:
    image = cluster()
    created(image, topic("t", flush_ms="5"))
    image.replay_all(delete_topics(image, [DeleteTopicState(name="t")])[1])
    assert image.configs == {}


def test_invalid_deletions_are_refused() -> None:
    image = cluster()
    created(image, topic("t"))
    topic_id = image.topic_ids["t"]
    cases = [
        ([DeleteTopicState(name="none")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([DeleteTopicState(name=None, topic_id=Uuid(bytes(range(16))))], ErrorCode.UNKNOWN_TOPIC_ID),
        ([DeleteTopicState(name=None)], ErrorCode.INVALID_REQUEST),
        ([DeleteTopicState(name="t", topic_id=topic_id)], ErrorCode.INVALID_REQUEST),
        ([DeleteTopicState(name="t"), DeleteTopicState(name="t")], ErrorCode.INVALID_REQUEST),
        ([DeleteTopicState(name=None, topic_id=topic_id), DeleteTopicState(name="t")], ErrorCode.INVALID_REQUEST),
    ]
    for states, code in cases:
        results, records = delete_topics(image, states)
        assert [result.error_code for result in results] == [code]
        assert records == []


def test_deletion_does_not_reveal_hidden_topics() -> None:
    image = cluster()
    created(image, topic("secret"))
    for name in ("secret", "nothing"):
        results, _ = delete_topics(image, [DeleteTopicState(name=name)], describable=lambda name: False)
        assert (results[0].name, results[0].error_code) == (name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
