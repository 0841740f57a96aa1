"""Third-party clients authenticate with every mechanism, with and without TLS, and are authorized."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from ottla.protocol.messages.k68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.security.dev_tls import Authority, write_private
from ottla.spark.connect import open_client, security_settings
from ottla.testing.security import allow
from tests.security.clusters import MECHANISMS, USERS, librdkafka, secured
from tests.security.clusters import client as ottla_client
from tests.testing.clients import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ottla.testing import Cluster

pytestmark = pytest.mark.xdist_group("security clients")  # one worker, one cluster


SETTINGS = {"ssl.keystore.location": "server.pem", "ssl.truststore.location": "ca.pem"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority()
    write_private(str(directory / "server.pem"), authority.server().pem)
    write_private(str(directory / "ca.pem"), authority.certificate_pem)
    client = authority.client("alice")
    write_private(str(directory / "alice.crt"), client.certificate_pem)
    write_private(str(directory / "alice.key"), client.key_pem)
    return directory


@pytest.fixture(scope="module")
def cluster(certificates: Path) -> Iterator[Cluster]:
    with secured(
        acls=[
            allow("alice", "all", topic="orders"),
            allow("alice", "read", group="billing-", prefixed=True),
            allow("CN=alice", "all", topic="orders"),
            allow("CN=alice", "read", group="billing-", prefixed=True),
        ],
        configs={
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0,SSL://127.0.0.1:0",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": _jaas(),
            "listener.name.ssl.ssl.client.auth": "required",
            **{key: str(certificates / value) for key, value in SETTINGS.items()},
        },
    ) as cluster:
        yield cluster


def _jaas() -> str:
    users = " ".join(
        f"user_{name}='{password.replace(chr(39), chr(92) + chr(39))}'" for name, password in USERS.items()
    )
    return f"PlainLoginModule required {users};"


def address(cluster: Cluster, protocol: str) -> str:
    port = cluster.call(lambda broker: broker.nodes[1].endpoints[protocol].port)
    return f"localhost:{port}"


def confluent(cluster: Cluster, protocol: str, mechanism: str | None, certificates: Path) -> dict[str, Any]:
    result: dict[str, Any] = {"bootstrap.servers": address(cluster, protocol), "security.protocol": protocol}
    if mechanism is not None:
        result |= {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": USERS["alice"]}
    if protocol.endswith("SSL"):
        result["ssl.ca.location"] = str(certificates / "ca.pem")
    if protocol == "SSL":
        result["ssl.certificate.location"] = str(certificates / "alice.crt")
        result["ssl.key.location"] = str(certificates / "alice.key")
    return result


WAYS = [(protocol, mechanism) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS]
WAYS.append(("SSL", None))  # type: ignore[arg-type]


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_confluent_kafka(cluster: Cluster, certificates: Path, protocol: str, mechanism: str | None) -> None:
    settings = confluent(cluster, protocol, mechanism, certificates)
    value = f"{protocol} {mechanism}".encode()
    producer = Producer({**settings, "enable.idempotence": True})
    producer.produce("orders", value)
    assert producer.flush(60) == 0
    group = f"billing-{protocol}-{mechanism}"
    consumer = Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    try:
        seen: list[bytes | None] = []
        for _ in range(300):
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                seen.append(message.value())
            if value in seen:
                break
        assert value in seen
    finally:
        consumer.close()


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
async def test_aiokafka(cluster: Cluster, certificates: Path, protocol: str, mechanism: str | None) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": address(cluster, protocol),
        "security_protocol": protocol,
        "request_timeout_ms": 60_000,
    }
    if mechanism is not None:
        settings |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "alice",
            "sasl_plain_password": USERS["alice"],
        }
    if protocol.endswith("SSL"):
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        if protocol == "SSL":
            context.load_cert_chain(certificates / "alice.crt", certificates / "alice.key")
        settings["ssl_context"] = context
    value = f"aio {protocol} {mechanism}".encode()
    async with AIOKafkaProducer(**settings) as producer:
        await producer.send_and_wait("orders", value)
    consumer = AIOKafkaConsumer(
        "orders", group_id=f"billing-aio-{protocol}-{mechanism}", auto_offset_reset="earliest", **settings
    )
    await consumer.start()
    try:
        async with asyncio.timeout(300):
            async for message in consumer:
                if message.value == value:
                    break
    finally:
        await consumer.stop()


def test_denied_operations_are_refused(cluster: Cluster) -> None:
    consumer = Consumer(librdkafka(cluster, "bob", **{"group.id": "billing-bob", "auto.offset.reset": "earliest"}))
    consumer.subscribe(["orders"])
    try:
        codes = set()
        for _ in range(300):
            message = consumer.poll(0.2)
            if message is not None and message.error() is not None:
                codes.add(message.error().name())
            if codes:
                break
        assert codes <= {"GROUP_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"}
        assert codes
    finally:
        consumer.close()


def test_acls_through_an_admin_client(cluster: Cluster) -> None:
    admin = AdminClient(librdkafka(cluster, "admin"))
    binding = AclBinding(
        ResourceType.TOPIC,
        "payments",
        ResourcePatternType.LITERAL,
        "User:bob",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([binding], request_timeout=60).values():
        future.result(60)
    expected = AclBindingFilter(
        ResourceType.TOPIC,
        "payments",
        ResourcePatternType.MATCH,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.describe_acls(expected, request_timeout=60).result(60) == [binding]
    assert next(iter(admin.delete_acls([expected], request_timeout=60).values())).result(60) == [binding]
    assert admin.describe_acls(expected, request_timeout=60).result(60) == []


def test_acl_changes_require_alter_on_cluster(cluster: Cluster) -> None:
    admin = AdminClient(librdkafka(cluster, "bob"))
    binding = AclBinding(
        ResourceType.TOPIC,
        "*",
        ResourcePatternType.LITERAL,
        "User:bob",
        "*",
        AclOperation.ALL,
        AclPermissionType.ALLOW,
    )
    with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        admin.create_acls([binding], request_timeout=60)[binding].result(60)


def test_metadata_has_authorized_operations_of_topic(cluster: Cluster) -> None:
    admin = AdminClient(librdkafka(cluster, "alice"))
    described = admin.describe_topics(TopicCollection(["orders"]), include_authorized_operations=True)
    operations = described["orders"].result(60).authorized_operations
    assert {AclOperation.READ, AclOperation.WRITE, AclOperation.ALTER_CONFIGS} <= set(operations)


def test_subscription_regex_matches_only_described_topics() -> None:
    with (
        secured(
            topics=["seen-1:1", "unseen-1:1"],
            acls=[allow("alice", "describe", topic="seen", prefixed=True), allow("alice", "read", group="regex")],
        ) as cluster,
        ottla_client(cluster, "alice") as alice,
    ):
        node = alice.coordinator("regex")
        member = ConsumerGroupHeartbeatRequest(
            group_id="regex",
            member_id="4c2dQd5pQ2yLXoaqqJ1i4g",
            member_epoch=0,
            rebalance_timeout_ms=10_000,
            subscribed_topic_regex=".*seen.*",
            topic_partitions=[],
        )
        assigned: set[object] = set()

        def beat() -> bool:
            nonlocal assigned, member
            response = alice.to_node(node, member, ConsumerGroupHeartbeatResponse)
            assert not response.error_code, response
            if response.assignment is not None and response.assignment.topic_partitions:
                assigned = {topic_partition.topic_id for topic_partition in response.assignment.topic_partitions}
            member = ConsumerGroupHeartbeatRequest(
                group_id="regex", member_id=response.member_id or member.member_id, member_epoch=response.member_epoch
            )
            return bool(assigned)

        eventually(beat, "an assignment")
        assert assigned == {cluster.call(lambda broker: broker.image.topic_ids["seen-1"])}


def test_spark_authenticates_with_kafka_options(cluster: Cluster, certificates: Path) -> None:
    """The formats of Spark open their client with this, on driver and executors."""
    options = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f"username='admin' password='{USERS['admin']}';",
        "kafka.ssl.truststore.location": str(certificates / "ca.pem"),
    }
    provided = security_settings(options)
    with open_client(address(cluster, "SASL_SSL"), provided, client_id="spark", timeout=60) as client:
        assert "orders" in [topic.name for topic in client.topics()]
    with pytest.raises(ValueError, match=r"kafka\.sasl\.mechanism"):
        open_client("x:1", provided | {"sasl.mechanism": "GSSAPI"}, client_id="spark", timeout=1)
