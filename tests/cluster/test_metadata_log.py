"""The metadata log over restarts, crashes and snapshots: every way to load it gives the same image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.cluster.brokers import (
    allocate_producer_ids,
    begin_controlled_shutdown,
    fence_broker,
    register_broker,
    unfence_broker,
    unregister_broker,
)
from ottla.cluster.configs import ConfigResource, ConfigResourceType
from ottla.cluster.configs.alter import AlterOperation
from ottla.cluster.configs.changes import ConfigChange, alter_resource
from ottla.cluster.configs.effective import BrokerLayers
from ottla.cluster.image import ClusterImage, ReplayError
from ottla.cluster.metadata.damage import DamagedMetadataError
from ottla.cluster.metadata.format import bootstrap_records
from ottla.cluster.metadata.log import MetadataLog, MetadataLogConfig
from ottla.cluster.metadata.repair import MetadataChoice, repair_metadata
from ottla.cluster.metadata.snapshots import metadata_batches
from ottla.cluster.registrations import Listener
from ottla.cluster.security.acls import create_acls, delete_acls
from ottla.cluster.security.client_quotas import alter_client_quotas
from ottla.cluster.security.scram import alter_scram_credentials
from ottla.cluster.topics import create_partitions, create_topics, delete_topics
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.k19_create_topics import CreatableTopic
from ottla.protocol.messages.k20_delete_topics import DeleteTopicState
from ottla.protocol.messages.k30_create_acls import AclCreation
from ottla.protocol.messages.k31_delete_acls import DeleteAclsFilter
from ottla.protocol.messages.k37_create_partitions import CreatePartitionsTopic
from ottla.protocol.messages.k49_alter_client_quotas import EntityData, OpData, RequestEntryData
from ottla.protocol.messages.k51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.record_schemas.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from ottla.protocol.record_values import UnknownRecord, encode_metadata_record
from ottla.protocol.schema import Uuid
from ottla.records.batch import iter_batches
from ottla.records.builder import BatchBuilder
from ottla.storage.directory import LogDirectory
from ottla.world.disk import write_atomic
from ottla.world.random import SeededRandom

from .fixture import METADATA, on_disk

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.protocol.schema import Message

LAYERS = BrokerLayers()
FOLDER = f"/data/{METADATA}"


def fresh(config: MetadataLogConfig | None = None, metadata_version: int | None = None) -> MetadataLog:
    log = MetadataLog.open(on_disk(), 1, config)
    log.start_epoch(None if metadata_version is None else bootstrap_records(metadata_version))
    return log


def next_life(log: MetadataLog, config: MetadataLogConfig | None = None) -> MetadataLog:
    """Reopen the disk as a new process would."""
    old = log.directory
    old.abandon()
    directory = LogDirectory(old.env.disk, old.env.clock, SeededRandom(9), "/data")
    directory.open()
    try:
        return MetadataLog.open(directory, 1, config or log.config)
    except DamagedMetadataError:
        directory.abandon()
        raise


class Changes:
    """Random changes of a cluster; each returns its records."""

    def __init__(self, seed: int) -> None:
        self.random = SeededRandom(seed)

    def name(self) -> str:
        return self.random.choice(["a", "b", "c.d", "e-f"])

    def topics(self, image: ClusterImage) -> list[Message]:
        topic = CreatableTopic(name=self.name(), num_partitions=1 + self.random.below(3), replication_factor=1)
        return create_topics(image, [topic], layers=LAYERS, random=self.random)[1]

    def deletions(self, image: ClusterImage) -> list[Message]:
        return delete_topics(image, [DeleteTopicState(name=self.name())])[1]

    def partitions(self, image: ClusterImage) -> list[Message]:
        topic = CreatePartitionsTopic(name=self.name(), count=2 + self.random.below(4), assignments=None)
        return create_partitions(image, [topic], random=self.random)[1]

    def configs(self, image: ClusterImage) -> list[Message]:
        operation = self.random.choice([AlterOperation.SET, AlterOperation.DELETE])
        resource = self.random.choice(
            [
                ConfigResource(ConfigResourceType.TOPIC, self.name()),
                ConfigResource(ConfigResourceType.BROKER, ""),
                ConfigResource(ConfigResourceType.GROUP, "g"),
            ]
        )
        key = {
            ConfigResourceType.TOPIC: "retention.ms",
            ConfigResourceType.BROKER: "log.retention.ms",
            ConfigResourceType.GROUP: "consumer.session.timeout.ms",
        }[resource.type]
        value = str(50_000 + self.random.below(5)) if operation is AlterOperation.SET else None
        return alter_resource(image, resource, [ConfigChange(key, operation, value)], layers=LAYERS)

    def brokers(self, image: ClusterImage) -> list[Message]:
        broker_id = 1 + self.random.below(3)
        step = self.random.below(5)
        if broker_id not in image.brokers or step == 0:
            return register_broker(
                image,
                broker_id=broker_id,
                incarnation_id=Uuid(self.random.uuid()),
                listeners=[Listener("PLAINTEXT", "h", 9092, 0)],
                directories=[Uuid(bytes([3] * 15 + [broker_id]))],
                next_offset=self.random.below(1 << 40),
                layers=LAYERS,
                rack=self.random.choice([None, "r1"]),
            )[1]
        change = [unfence_broker, unfence_broker, begin_controlled_shutdown, fence_broker, unregister_broker][step]
        return change(image, broker_id, layers=LAYERS)

    def producer_ids(self, image: ClusterImage) -> list[Message]:
        return allocate_producer_ids(image, 1)[1]

    def acls(self, image: ClusterImage) -> list[Message]:
        if self.random.below(3) == 0:
            acl_filter = DeleteAclsFilter(
                resource_type_filter=1,
                resource_name_filter=self.name(),
                pattern_type_filter=1,
                principal_filter=None,
                host_filter=None,
                operation=1,
                permission_type=1,
            )
            return delete_acls(image, [acl_filter])[1]
        creation = AclCreation(
            resource_type=2,
            resource_name=self.name(),
            principal="User:u",
            host="*",
            operation=3 + self.random.below(2),
            permission_type=3,
        )
        return create_acls(image, [creation], random=self.random)[1]

    def quotas(self, image: ClusterImage) -> list[Message]:
        entity = [EntityData(entity_type="user", entity_name=self.random.choice([None, "u"]))]
        ops = [
            OpData(key="producer_byte_rate", value=float(1 + self.random.below(3)), remove=self.random.below(2) == 0)
        ]
        return alter_client_quotas(image, [RequestEntryData(entity=entity, ops=ops)])[1]

    def scram(self, image: ClusterImage) -> list[Message]:
        user, mechanism = self.name(), 1 + self.random.below(2)
        request = AlterUserScramCredentialsRequest(
            upsertions=[
                ScramCredentialUpsertion(
                    name=user, mechanism=mechanism, iterations=4096, salt=b"salt", salted_password=b"secret"
                )
            ]
        )
        if self.random.below(2):
            request = AlterUserScramCredentialsRequest(
                deletions=[ScramCredentialDeletion(name=user, mechanism=mechanism)]
            )
        return alter_scram_credentials(image, request)[1]

    def features(self, image: ClusterImage) -> list[Message]:
        return [FeatureLevelRecord(name="group.version", feature_level=self.random.below(2))]

    def aborted(self, image: ClusterImage) -> list[Message]:
        return [
            BeginTransactionRecord(name="x"),
            TopicRecord(name="never", topic_id=Uuid(self.random.uuid())),
            AbortTransactionRecord(reason="y"),
        ]

    def kinds(self) -> list[Callable[[ClusterImage], list[Message]]]:
        return [
            self.topics,
            self.topics,
            self.deletions,
            self.partitions,
            self.configs,
            self.brokers,
            self.brokers,
            self.producer_ids,
            self.acls,
            self.quotas,
            self.scram,
            self.features,
            self.aborted,
        ]

    def make(self, image: ClusterImage) -> list[Message]:
        try:
            return self.random.choice(self.kinds())(image)
        except KafkaError:
            return []


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    lives=st.lists(st.tuples(st.integers(0, 25), st.booleans()), min_size=1, max_size=4),
    metadata_version=st.sampled_from([None, 7, 14, 20, 25]),
)
def test_log_snapshot_and_live_image_are_equal(
    seed: int, lives: list[tuple[int, bool]], metadata_version: int | None
) -> None:
    changes = Changes(seed)
    log = fresh(metadata_version=metadata_version)
    for count, snapshot in lives:
        for _ in range(count):
            log.append(changes.make(log.image))
        live = log.image
        if snapshot:
            log.write_snapshot()
            for _ in range(count // 2):
                log.append(changes.make(log.image))
        log = next_life(log)
        assert log.problems == []
        assert log.image == live
        log.start_epoch()
        assert log.image == live
    disk = log.directory.env.disk
    if log.snapshots:
        for kept in log.snapshots:
            disk.remove(f"{FOLDER}/{kept.id.file_name}")
        assert next_life(log).image == live, "the log alone says the same"


def test_broker_epoch_is_registration_offset() -> None:
    log = fresh()
    epoch, records = register_broker(
        log.image,
        broker_id=1,
        incarnation_id=Uuid(),
        listeners=[],
        directories=[Uuid(bytes([1] * 16))],
        next_offset=log.next_offset,
        layers=LAYERS,
    )
    assert log.append(records).first_offset == epoch


def test_every_start_begins_new_leader_epoch() -> None:
    log = fresh()
    assert log.epoch == 1
    for expected in (2, 3):
        log = next_life(log)
        log.start_epoch()
        assert log.epoch == expected
    assert log.log.epochs.entries() == [(1, 0), (2, 10), (3, 11)]


def test_empty_change_writes_nothing() -> None:
    log = fresh()
    before = log.next_offset
    assert log.append([]).last_offset == before - 1
    assert log.next_offset == before


def test_metadata_transaction_applies_at_its_end() -> None:
    log = fresh()
    topic = TopicRecord(name="t", topic_id=Uuid(bytes(range(16))))
    log.append([BeginTransactionRecord(), topic])
    assert log.image.topic("t") is None
    assert not log.snapshot_due()
    assert [created_topic.name for created_topic in log.append([EndTransactionRecord()]).changes.created_topics] == [
        "t"
    ]


def test_open_metadata_transaction_is_aborted_at_start() -> None:
    log = fresh()
    log.append([BeginTransactionRecord(), TopicRecord(name="t", topic_id=Uuid(bytes(range(16))))])
    log = next_life(log)
    log.start_epoch()
    assert log.image.transaction is None
    assert log.image.topic("t") is None
    assert next_life(log).image.transaction is None


def test_inapplicable_record_raises_replay_error() -> None:
    image = ClusterImage()
    with pytest.raises(ReplayError, match="no topic has the id"):
        image.replay(RemoveTopicRecord(topic_id=Uuid(bytes(range(16)))))


def test_unknown_record_is_kept_in_snapshots_and_reported() -> None:
    log = fresh()
    stranger = UnknownRecord(999, 3, b"whatever it says")
    builder = BatchBuilder(log.next_offset, partition_leader_epoch=log.epoch)
    builder.append(None, encode_metadata_record(stranger), (), 0)
    log.log.append_raw(builder.build())
    log = next_life(log)
    assert log.image.unknown == [stranger]
    assert any("type 999 version 3 is not known; it is kept" in problem for problem in log.problems)
    log.start_epoch()
    log.write_snapshot()
    assert next_life(log).image.unknown == [stranger]


def test_damaged_snapshot_falls_back_to_older_one() -> None:
    log = fresh()
    log.append([TopicRecord(name="old", topic_id=Uuid(bytes([1] * 16)))])
    log.write_snapshot()
    log.append([TopicRecord(name="new", topic_id=Uuid(bytes([2] * 16)))])
    newest = log.write_snapshot()
    file = log.directory.env.disk.open(f"{FOLDER}/{newest.file_name}")
    file.write_at(200, b"\xff")
    file.close()
    log = next_life(log)
    assert list(log.image.topic_ids) == ["old", "new"]
    assert any(newest.file_name in problem for problem in log.problems)


def test_unfinished_snapshot_is_ignored() -> None:
    log = fresh()
    log.append([TopicRecord(name="t", topic_id=Uuid(bytes([1] * 16)))])
    snapshot = log.write_snapshot()
    disk = log.directory.env.disk
    data = disk.read(f"{FOLDER}/{snapshot.file_name}")
    write_atomic(disk, f"{FOLDER}/{snapshot.file_name}", data[:-20])
    write_atomic(disk, f"{FOLDER}/{snapshot.offset + 1:020d}-0000000001.checkpoint.part", data)
    log = next_life(log)
    assert list(log.image.topic_ids) == ["t"]
    assert not any(name.endswith(".part") for name in disk.list(FOLDER))


def test_log_continues_at_snapshot_beyond_its_end() -> None:
    log = fresh()
    log.append([TopicRecord(name="t", topic_id=Uuid(bytes([1] * 16)))])
    snapshot = log.write_snapshot()
    disk = log.directory.env.disk
    log.directory.abandon()
    for name in disk.list(FOLDER):
        if not name.endswith(".checkpoint"):
            disk.remove(f"{FOLDER}/{name}")
    log = next_life(log)
    assert (list(log.image.topic_ids), log.next_offset) == (["t"], snapshot.offset)
    log.start_epoch()
    assert log.epoch == 2
    assert next_life(log).next_offset == snapshot.offset + 1


def test_folder_without_partition_number_is_accepted() -> None:
    log = fresh()
    log.append([TopicRecord(name="t", topic_id=Uuid(bytes([1] * 16)))])
    log.close()
    log.directory.env.disk.rename(FOLDER, "/data/__cluster_metadata")
    assert list(next_life(log).image.topic_ids) == ["t"]


def test_log_starting_after_zero_without_snapshot_needs_repair() -> None:
    log = fresh()
    gone = Uuid(bytes([1] * 16))
    records: list[Message] = [
        PartitionChangeRecord(topic_id=gone, partition_id=0, leader=1),
        TopicRecord(name="t", topic_id=Uuid(bytes([2] * 16))),
    ]
    log.log.truncate_fully_and_start_at(500)
    for batch in metadata_batches(records, 30, base_offset=500, epoch=4, timestamp=0):
        log.log.append_raw(batch)
    log.close()
    disk = log.directory.env.disk
    for name in disk.list(FOLDER):
        if not name.endswith(".log"):
            disk.remove(f"{FOLDER}/{name}")
    with pytest.raises(DamagedMetadataError, match=r"begins at offset 500.*--metadata skip"):
        next_life(log)
    repair_metadata(log.directory.env, "/data", MetadataChoice.SKIP)
    log = next_life(log)
    assert list(log.image.topic_ids) == ["t"]
    assert len(log.problems) == 1
    assert "no topic has the id" in log.problems[0]
    log.start_epoch()
    assert log.epoch == 5


def log_with_topics(count: int = 6) -> MetadataLog:
    log = fresh()
    for number in range(count):
        log.append([TopicRecord(name=f"t{number}", topic_id=Uuid(bytes([number + 1] * 16)))])
    log.close()
    return log


def damage_batch(log: MetadataLog, number: int, *, offset: int = 0) -> None:
    """Flip a byte of the batch that holds topic `number`."""
    disk = log.directory.env.disk
    path = f"{FOLDER}/{0:020d}.log"
    file = disk.open(path)
    batch = next(
        header for header in iter_batches(disk.read(path)) if header.base_offset >= log.next_offset - 6 + number
    )
    position = batch.position + (offset or batch.size - 1)
    file.write_at(position, bytes([file.read_at(position, 1)[0] ^ 0x10]))


@pytest.mark.parametrize("offset", [0, 3, 7, 10, 15, 18], ids=["value", "base", "base-low", "length", "epoch", "crc"])
def test_damage_before_valid_batches_fails_and_names_losses(offset: int) -> None:
    log = log_with_topics()
    damage_batch(log, 2, offset=offset)
    before = log.directory.env.disk.read(f"{FOLDER}/{0:020d}.log")
    with pytest.raises(DamagedMetadataError, match=r"topics t3, t4, t5 .*--metadata skip") as refused:
        next_life(log)
    assert f"{FOLDER}/{0:020d}.log" in str(refused.value)
    assert log.directory.env.disk.read(f"{FOLDER}/{0:020d}.log") == before


def test_repair_skip_loses_only_damaged_batch_and_keeps_offsets() -> None:
    log = log_with_topics()
    end = log.next_offset
    damage_batch(log, 2)
    steps = repair_metadata(log.directory.env, "/data", MetadataChoice.SKIP)
    assert [step.action for step in steps] == ["replace 1 unreadable offsets by NoOpRecords"]
    log = next_life(log)
    assert list(log.image.topic_ids) == ["t0", "t1", "t3", "t4", "t5"]
    assert log.next_offset == end
    assert log.problems == []


def test_repair_truncate_ends_log_before_damage() -> None:
    log = log_with_topics()
    damage_batch(log, 2)
    assert repair_metadata(log.directory.env, "/data", MetadataChoice.TRUNCATE, dry_run=True)
    repair_metadata(log.directory.env, "/data", MetadataChoice.TRUNCATE)
    log = next_life(log)
    assert list(log.image.topic_ids) == ["t0", "t1"]
    assert log.problems == []
    assert not log.was_cut


def test_torn_tail_is_truncated_and_reported() -> None:
    log = log_with_topics()
    damage_batch(log, 5)
    log = next_life(log)
    assert list(log.image.topic_ids) == ["t0", "t1", "t2", "t3", "t4"]
    assert log.was_cut
    assert len(log.problems) == 1
    assert "bytes from there on are dropped" in log.problems[0]


def test_emptied_log_of_used_cluster_is_refused() -> None:
    log = log_with_topics()
    log.directory.env.disk.open(f"{FOLDER}/{0:020d}.log").truncate(0)
    with pytest.raises(DamagedMetadataError, match=r"the log is empty.*--metadata truncate"):
        next_life(log)
    repair_metadata(log.directory.env, "/data", MetadataChoice.TRUNCATE)
    assert next_life(log).empty


def test_snapshot_is_due_after_bytes_or_time() -> None:
    log = fresh(MetadataLogConfig(bytes_between_snapshots=2000, snapshot_interval_ms=60_000))
    assert not log.snapshot_due()
    for number in range(20):
        log.append([TopicRecord(name=f"t{number}", topic_id=Uuid(bytes([number] * 16)))])
    assert log.snapshot_due()
    log.write_snapshot()
    assert not log.snapshot_due()
    log.append([TopicRecord(name="late", topic_id=Uuid(bytes([99] * 16)))])
    assert not log.snapshot_due()
    log.directory.env.clock.advance(60)  # type: ignore[attr-defined]
    assert log.snapshot_due()


def test_retention_deletes_old_snapshots_and_records() -> None:
    log = fresh(MetadataLogConfig(segment_bytes=1000, retention_bytes=4000))
    for number in range(60):
        log.append([TopicRecord(name=f"t{number}", topic_id=Uuid(bytes([number] * 16)))])
        if number % 10 == 9:
            log.write_snapshot()
    assert len(log.snapshots) == 1
    assert 0 < log.log.log_start_offset <= log.snapshots[0].id.offset
    log.directory.env.run_all_now()
    assert not any(name.endswith(".deleted") for name in log.directory.env.disk.list(FOLDER))
    assert len(next_life(log).image.topics) == 60


def test_new_cluster_takes_features_from_bootstrap_checkpoint() -> None:
    assert fresh(metadata_version=25).image.features == {
        "metadata.version": 25,
        "group.version": 1,
        "transaction.version": 2,
    }


def test_metadata_log_limits_come_from_broker_configs() -> None:
    assert MetadataLogConfig.from_broker(BrokerLayers()) == MetadataLogConfig()
    static = {"metadata.log.max.snapshot.interval.ms": "0", "metadata.max.retention.bytes": "-1"}
    config = MetadataLogConfig.from_broker(BrokerLayers(static=static))
    assert (config.snapshot_interval_ms, config.retention_bytes) == (0, -1)
