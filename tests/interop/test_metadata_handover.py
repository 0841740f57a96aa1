"""Cluster metadata that ottla wrote, read by Apache Kafka, and back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ottla.cluster.brokers import (
    begin_controlled_shutdown,
    fence_broker,
    register_broker,
    register_controller,
    unfence_broker,
)
from ottla.cluster.configs import ConfigResource, ConfigResourceType
from ottla.cluster.configs.alter import AlterOperation
from ottla.cluster.configs.changes import ConfigChange, alter_resource
from ottla.cluster.configs.effective import BrokerLayers
from ottla.cluster.metadata.format import format_directory
from ottla.cluster.metadata.log import MetadataLog
from ottla.cluster.metadata.meta_properties import MetaProperties
from ottla.cluster.metadata.quorum import Voter
from ottla.cluster.registrations import Listener
from ottla.cluster.security.acls import create_acls
from ottla.cluster.security.client_quotas import alter_client_quotas
from ottla.cluster.security.scram import SCRAM_SHA_512, credential_from_password
from ottla.cluster.topics import create_topics
from ottla.protocol.messages.k19_create_topics import CreatableTopic, CreatableTopicConfig
from ottla.protocol.messages.k30_create_acls import AclCreation
from ottla.protocol.messages.k49_alter_client_quotas import EntityData, OpData, RequestEntryData
from ottla.protocol.schema import Uuid
from ottla.storage.config import LogConfig
from ottla.storage.directory import LogDirectory
from ottla.storage.names import TopicPartition
from ottla.world.clock import VirtualClock
from ottla.world.disk_real import RealDisk
from ottla.world.random import SeededRandom

from .apache_kafka import dump_log
from .java_client import sasl_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ottla.protocol.schema import Message

    from .apache_kafka import ApacheKafka
    from .java_client import JavaClients

pytestmark = pytest.mark.interop

LAYERS = BrokerLayers()
SECURED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


class Controller:
    """The metadata of one node on a real disk, from its registration to its clean stop; no sockets."""

    def __init__(self, path: Path, clock: VirtualClock, random: SeededRandom) -> None:
        self.random = random
        self.directory = LogDirectory(RealDisk(), clock, random, str(path))
        self.directory.open()
        self.directory.load()
        self.log = MetadataLog.open(self.directory, 1)
        self.log.start_epoch()
        self.append(register_controller(1, Uuid(random.uuid()), [Listener("CONTROLLER", "localhost", 9093, 0)]))
        meta = self.directory.env.disk.read(f"{path}/meta.properties").decode()
        directory_id = next(line for line in meta.splitlines() if line.startswith("directory.id=")).partition("=")[2]
        self.epoch, records = register_broker(
            self.log.image,
            broker_id=1,
            incarnation_id=Uuid(random.uuid()),
            listeners=[Listener("PLAINTEXT", "localhost", 9092, 0)],
            directories=[Uuid.parse(directory_id)],
            next_offset=self.log.next_offset,
            layers=LAYERS,
            previous_epoch=self.directory.previous_broker_epoch or -1,
        )
        self.append(records)
        self.append(unfence_broker(self.log.image, 1, layers=LAYERS))

    def append(self, records: list[Message]) -> None:
        for topic, index, before, _ in self.log.append(records).changes.partitions:
            if before is None:
                self.directory.create_log(TopicPartition(topic.name, index), LogConfig(), topic.id)

    def create_topic(self, name: str, partitions: int, **configs: str) -> None:
        expected = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key.replace("_", "."), value=text) for key, text in configs.items()],
        )
        results, records = create_topics(self.log.image, [expected], layers=LAYERS, random=self.random)
        assert results[0].error_code == 0, results
        self.append(records)

    def stop(self) -> None:
        self.append(begin_controlled_shutdown(self.log.image, 1, layers=LAYERS))
        self.append(fence_broker(self.log.image, 1, layers=LAYERS))
        self.log.close()
        self.directory.close(self.epoch)


class _Now(VirtualClock):
    """Real time for the records: Kafka compares them with its own clock."""

    def now_ms(self) -> int:
        return int(time.time() * 1000)


@pytest.mark.parametrize(("dynamic", "snapshot"), [(True, False), (True, True), (False, True)])
def test_kafka_and_ottla_continue_each_others_metadata(
    tmp_path: Path,
    apache_kafka_factory: Callable[..., ApacheKafka],
    java_clients: JavaClients,
    dynamic: bool,
    snapshot: bool,
) -> None:
    path, clock, random = tmp_path / "data", _Now(), SeededRandom(23)
    directory_id = Uuid(random.uuid())
    voters = (Voter(1, directory_id, (("CONTROLLER", "localhost", 9093),)),) if dynamic else ()
    meta = MetaProperties(str(Uuid(random.uuid())), 1, directory_id)
    format_directory(RealDisk(), str(path), meta, now_ms=clock.now_ms(), voters=voters)

    ottla = Controller(path, clock, random)
    ottla.create_topic("plain", 3)
    ottla.create_topic("compacted", 1, cleanup_policy="compact", retention_ms="12345")
    image = ottla.log.image
    everyone = ConfigResource(ConfigResourceType.BROKER, "")
    change = ConfigChange("log.retention.ms", AlterOperation.SET, "777000")
    ottla.append(alter_resource(image, everyone, [change], layers=LAYERS))
    acl = AclCreation(
        resource_type=2,
        resource_name="plain",
        resource_pattern_type=4,
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=3,
    )
    ottla.append(create_acls(image, [acl], random=random)[1])
    quota = RequestEntryData(
        entity=[EntityData(entity_type="user", entity_name="alice")], ops=[OpData(key="producer_byte_rate", value=5e6)]
    )
    ottla.append(alter_client_quotas(image, [quota])[1])
    credential = credential_from_password(SCRAM_SHA_512, b"alice-secret", b"some salt", 4096)
    ottla.append([credential.to_record("alice", SCRAM_SHA_512)])
    if snapshot:
        ottla.log.write_snapshot()
        ottla.create_topic("after-the-snapshot", 1)
    names = set(image.topic_ids)
    ottla.stop()

    kafka = apache_kafka_factory(path, settings=SECURED, dynamic_quorum=dynamic, sasl=True)
    kafka.start()
    admin = java_clients.admin(kafka.bootstrap)
    assert set(admin.call("list_topics")) == names
    described = admin.call("describe_configs", resources=[["TOPIC", "compacted"], ["BROKER", ""]], synonyms=False)
    assert described["TOPIC:compacted"]["cleanup.policy"]["value"] == "compact"
    assert described["TOPIC:compacted"]["retention.ms"]["value"] == "12345"
    assert described["BROKER:"]["log.retention.ms"]["value"] == "777000"
    assert admin.call("describe_acls") == [
        {
            "host": "*",
            "name": "plain",
            "operation": "READ",
            "pattern": "PREFIXED",
            "permission": "ALLOW",
            "principal": "User:alice",
            "type": "TOPIC",
        }
    ]
    assert admin.call("describe_quotas") == [{"entity": {"user": "alice"}, "quotas": {"producer_byte_rate": 5e6}}]
    alice = java_clients.admin(kafka.sasl_bootstrap, **sasl_config("SCRAM-SHA-512", "alice", "alice-secret"))
    assert "plain" in alice.call("list_topics")
    alice.close()
    admin.create_topic("by-kafka", 2)
    admin.close()
    assert kafka.complaints() == []
    kafka.stop()

    again = Controller(path, clock, random)
    assert again.log.problems == []
    assert set(again.log.image.topic_ids) == {*names, "by-kafka"}
    assert all(
        part.leader == 1 and part.isr == (1,) and part.leader_recovery_state == 0
        for topic in again.log.image.topics.values()
        for part in topic.partitions.values()
    )
    again.create_topic("by-ottla-again", 1)
    again.stop()

    kafka.start()
    admin = java_clients.admin(kafka.bootstrap)
    assert set(admin.call("list_topics")) == {*names, "by-kafka", "by-ottla-again"}
    admin.close()
    assert kafka.complaints() == []
    kafka.stop()
    files = sorted((path / "__cluster_metadata-0").glob("*.log"))
    dumped = dump_log(*files, options=("--cluster-metadata-decoder", "--deep-iteration"))
    assert "isvalid: false" not in dumped
    assert "by-ottla-again" in dumped
