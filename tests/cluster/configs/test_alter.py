"""Config changes: the four operations, and errors with the messages of Apache Kafka 4.3.1."""

from __future__ import annotations

import pytest

from ottla.cluster.configs import ConfigResource, ConfigResourceType
from ottla.cluster.configs.alter import AlterOperation, altered_value
from ottla.cluster.configs.changes import ConfigChange, alter_resource, replace_resource
from ottla.cluster.configs.effective import BrokerLayers
from ottla.cluster.image import ClusterImage
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas.metadata import (
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from ottla.protocol.schema import Uuid

SET, DELETE, APPEND, SUBTRACT = AlterOperation
TOPIC, BROKER, GROUP = ConfigResourceType.TOPIC, ConfigResourceType.BROKER, ConfigResourceType.GROUP
CLIENT_METRICS = ConfigResourceType.CLIENT_METRICS


@pytest.fixture
def image() -> ClusterImage:
    image = ClusterImage()
    image.replay_all(
        [
            FeatureLevelRecord(name="metadata.version", feature_level=30),
            RegisterBrokerRecord(broker_id=1),
            TopicRecord(name="plain", topic_id=Uuid(bytes(range(16)))),
            ConfigRecord(resource_type=TOPIC, resource_name="plain", name="retention.ms", value="1000"),
        ]
    )
    return image


@pytest.mark.parametrize(
    ("operation", "operand", "current", "expected"),
    [
        (SET, "compact", "delete", "compact"),
        (DELETE, None, "delete", None),
        (APPEND, "compact", None, "delete,compact"),
        (APPEND, "delete,compact", "delete", "delete,compact"),
        (SUBTRACT, "delete", None, ""),
        (SUBTRACT, "compact,other", "delete,compact", "delete"),
    ],
)
def test_list_operations_change_value(
    operation: AlterOperation, operand: str | None, current: str | None, expected: str | None
) -> None:
    assert altered_value(TOPIC, "cleanup.policy", operation, operand, current) == expected


REFUSED = [
    ((TOPIC, "plain"), (SET, "retention.ms", "x"), ErrorCode.INVALID_CONFIG,
     "Invalid value x for configuration retention.ms: Not a number of type LONG"),
    ((TOPIC, "plain"), (APPEND, "retention.ms", "1"), ErrorCode.INVALID_CONFIG,
     "Can't APPEND to key retention.ms because its type is not LIST."),
    ((TOPIC, "nope"), (SET, "retention.ms", "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
     "The topic 'nope' does not exist."),
    ((TOPIC, ""), (SET, "retention.ms", "1"), ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed."),
    ((BROKER, "1"), (SET, "node.id", "3"), ErrorCode.INVALID_REQUEST,
     "Cannot update these configs dynamically: [node.id]"),
    ((BROKER, ""), (SET, "sasl.enabled.mechanisms", "PLAIN"), ErrorCode.INVALID_REQUEST,
     "Cannot update these configs at default cluster level, broker id must be specified: [sasl.enabled.mechanisms]"),
    ((BROKER, ""), (SET, "log.cleaner.threads", "x"), ErrorCode.INVALID_REQUEST,
     "Invalid value x for configuration log.cleaner.threads: Not a number of type INT"),
    ((BROKER, "1"), (SET, "ssl.keystore.location", "x"), ErrorCode.INVALID_REQUEST,
     "These security configs can be dynamically updated only per-listener using the listener prefix: "
     "[ssl.keystore.location]"),
    ((BROKER, "9"), (SET, "log.cleaner.threads", "1"), ErrorCode.BROKER_ID_NOT_REGISTERED, "No node with id 9 found."),
    ((BROKER, "one"), (SET, "log.cleaner.threads", "1"), ErrorCode.INVALID_REQUEST,
     "Unable to parse broker name as a base 10 number."),
    ((GROUP, "g"), (SET, "consumer.session.timeout.ms", "1"), ErrorCode.INVALID_CONFIG,
     "consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms"),
    ((GROUP, ""), (SET, "consumer.session.timeout.ms", "1"), ErrorCode.INVALID_REQUEST,
     "Default group resources are not allowed."),
    ((GROUP, "g"), (SET, "zz", "1"), ErrorCode.INVALID_CONFIG, "Unknown group config name: zz"),
    ((CLIENT_METRICS, "m"), (SET, "interval.ms", "1"), ErrorCode.INVALID_REQUEST,
     "Invalid value 1 for interval.ms, interval must be between 100 and 3600000 (1 hour)"),
    ((CLIENT_METRICS, "m"), (SET, "match", "a=b"), ErrorCode.INVALID_CONFIG,
     "Illegal client matching pattern: a=b"),
    ((TOPIC, "plain"), (SET, "remote.storage.enable", "true"), ErrorCode.INVALID_CONFIG,
     "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."),
    ((TOPIC, "plain"), (SET, "max.compaction.lag.ms", "0"), ErrorCode.INVALID_CONFIG,
     "Invalid value 0 for configuration max.compaction.lag.ms: Value must be at least 1"),
    ((TOPIC, "plain"), (SET, "retention.ms", "1" * 40_000), ErrorCode.INVALID_CONFIG,
     "The configuration value cannot be added because it exceeds the maximum value size of 32767 bytes."),
]  # fmt: skip


@pytest.mark.parametrize(("resource", "change", "code", "message"), REFUSED)
def test_errors_have_kafkas_messages(
    image: ClusterImage,
    resource: tuple[ConfigResourceType, str],
    change: tuple[AlterOperation, str, str],
    code: ErrorCode,
    message: str,
) -> None:
    operation, name, value = change
    with pytest.raises(KafkaError) as caught:
        alter_resource(image, ConfigResource(*resource), [ConfigChange(name, operation, value)], layers=BrokerLayers())
    assert (caught.value.code, caught.value.message) == (code, message)


def test_max_compaction_lag_below_min_is_refused(image: ClusterImage) -> None:
    changes = [ConfigChange("min.compaction.lag.ms", SET, "10"), ConfigChange("max.compaction.lag.ms", SET, "5")]
    with pytest.raises(KafkaError, match=r"min\.compaction\.lag\.ms \(10\) > max\.compaction\.lag\.ms \(5\)"):
        alter_resource(image, ConfigResource(TOPIC, "plain"), changes, layers=BrokerLayers())


def test_unchanged_topic_value_writes_nothing(image: ClusterImage) -> None:
    change = [ConfigChange("retention.ms", SET, "1000")]
    assert alter_resource(image, ConfigResource(TOPIC, "plain"), change, layers=BrokerLayers()) == []


def test_alter_configs_removes_unnamed_configs(image: ClusterImage) -> None:
    records = replace_resource(image, ConfigResource(TOPIC, "plain"), {"flush.ms": "5"}, layers=BrokerLayers())
    assert records == [
        ConfigRecord(resource_type=TOPIC, resource_name="plain", name="flush.ms", value="5"),
        ConfigRecord(resource_type=TOPIC, resource_name="plain", name="retention.ms", value=None),
    ]


def test_duplicate_name_is_refused(image: ClusterImage) -> None:
    twice = [ConfigChange("flush.ms", SET, "1"), ConfigChange("flush.ms", DELETE, None)]
    with pytest.raises(KafkaError, match="duplicate config keys"):
        alter_resource(image, ConfigResource(TOPIC, "plain"), twice, layers=BrokerLayers())


def test_changed_min_insync_replicas_clears_elr(image: ClusterImage) -> None:
    image.replay(FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1))
    change = [ConfigChange("min.insync.replicas", SET, "2")]
    topic = alter_resource(image, ConfigResource(TOPIC, "plain"), change, layers=BrokerLayers())
    assert topic[-1] == ClearElrRecord(topic_name="plain")
    everyone = alter_resource(image, ConfigResource(BROKER, ""), change, layers=BrokerLayers())
    assert everyone[-1] == ClearElrRecord(topic_name="")
    with pytest.raises(KafkaError, match="cannot be altered while ELR is enabled"):
        alter_resource(image, ConfigResource(BROKER, "1"), change, layers=BrokerLayers())
