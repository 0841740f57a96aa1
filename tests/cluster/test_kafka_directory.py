"""A directory of Apache Kafka 4.3.1: contents equal the output of Kafka's tools, written files equal its bytes."""

from __future__ import annotations

import base64
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ottla.cluster.brokers import begin_controlled_shutdown, fence_broker, register_broker, unfence_broker
from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.configs.effective import BrokerLayers, describe_topic
from ottla.cluster.image import ClusterImage
from ottla.cluster.metadata.format import bootstrap_records, format_directory
from ottla.cluster.metadata.log import MetadataLog
from ottla.cluster.metadata.meta_properties import read_meta_properties
from ottla.cluster.metadata.snapshot_records import snapshot_records
from ottla.cluster.metadata.snapshots import decode_snapshot, encode_snapshot
from ottla.cluster.registrations import Listener
from ottla.cluster.security.acls import AclOperation, AclPermission, PatternType, ResourceType
from ottla.cluster.security.delegation_tokens import TokenRules, find_token
from ottla.protocol.record_schemas.metadata import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    NoOpRecord,
    RegisterBrokerRecord,
)
from ottla.protocol.record_values import UnknownRecord
from ottla.protocol.schema import Message, Uuid
from ottla.records.batch import iter_batches

from .fixture import KAFKA, METADATA, facts, log_records, on_disk

if TYPE_CHECKING:
    from pathlib import Path

NODES = {"data": 1, "data-static": 3}
TOKEN_KEY = "a secret for fixtures"
SNAPSHOTS = sorted(KAFKA.glob(f"*/{METADATA}/*.checkpoint")) + sorted(KAFKA.glob("*/bootstrap.checkpoint"))


def without_time(data: bytes) -> bytes:
    """Return batches with timestamps and checksums zeroed, so that two runs are comparable."""
    blanked = bytearray(data)
    for header in iter_batches(data):
        struct.pack_into(">I", blanked, header.position + 17, 0)
        struct.pack_into(">qq", blanked, header.position + 27, 0, 0)
    return bytes(blanked)


@pytest.fixture(scope="module")
def running() -> ClusterImage:
    """Return the image when the facts were collected: before the records of the last shutdown."""
    image = ClusterImage()
    for record in running_records():
        image.replay(record)
    return image


def running_records() -> list[Message | UnknownRecord]:
    records = log_records("data")
    end = last_shutdown(records)
    return [record for _, record in records[:end]]


def last_shutdown(records: list[tuple[int, Message | UnknownRecord]]) -> int:
    return max(
        position
        for position, (_, record) in enumerate(records)
        if isinstance(record, BrokerRegistrationChangeRecord) and record.in_controlled_shutdown
    )


def test_snapshot_and_tail_equal_whole_log() -> None:
    loaded = MetadataLog.open(on_disk("data"), 1)
    assert loaded.problems == []
    assert [kept.id.offset for kept in loaded.snapshots] == [0, 254]
    whole = ClusterImage()
    for _, record in log_records("data"):
        whole.replay(record)
    assert settled(loaded.image) == settled(whole)


def settled(image: ClusterImage) -> ClusterImage:
    """Sort the features of each broker by name: Kafka writes them in the order of a hash map."""
    for broker_id, broker in image.brokers.items():
        image.brokers[broker_id] = replace(broker, features=tuple(sorted(broker.features)))
    for node_id, controller in image.controllers.items():
        image.controllers[node_id] = replace(controller, features=tuple(sorted(controller.features)))
    return image


@pytest.mark.parametrize(("name", "kraft_version"), [("data", 1), ("data-static", 0)])
def test_quorum_state_is_read(name: str, kraft_version: int) -> None:
    loaded = MetadataLog.open(on_disk(name), NODES[name])
    assert loaded.problems == []
    assert loaded.kraft_version == kraft_version
    assert [voter.id for voter in loaded.voters] == ([1] if kraft_version else [])
    assert loaded.epoch >= 1


def test_topics_equal_kafka_description(running: ClusterImage) -> None:
    described = facts()["topics"]
    assert set(described) == set(running.topic_ids)
    for name, topic in described.items():
        ours = running.topic(name)
        assert ours is not None
        assert ours.internal == topic["isInternal"]
        assert [
            (index, part.leader, list(part.replicas), list(part.isr)) for index, part in ours.partitions.items()
        ] == [
            (
                part["partition"],
                part["leader"]["id"],
                [n["id"] for n in part["replicas"]],
                [n["id"] for n in part["isr"]],
            )
            for part in topic["partitions"]
        ]


def test_dynamic_configs_equal_kafka_description(running: ClusterImage) -> None:
    own = {"TOPIC": "DYNAMIC_TOPIC_CONFIG", "GROUP": "DYNAMIC_GROUP_CONFIG"}
    for resource, entries in facts()["configs"].items():
        kind, _, name = resource.partition(":")
        if kind == "BROKER":
            source = "DYNAMIC_BROKER_CONFIG" if name else "DYNAMIC_DEFAULT_BROKER_CONFIG"
        else:
            source = own.get(kind, f"DYNAMIC_{kind}_CONFIG")
        kafkas = {key: entry["value"] for key, entry in entries.items() if entry["source"] == source}
        ours = dict(running.config(ConfigResourceType[kind], name))
        shown = {key: value for key, value in ours.items() if key in kafkas and kafkas[key] is not None}
        assert shown == {key: value for key, value in kafkas.items() if value is not None}, resource
        assert set(ours) == set(kafkas), resource


def test_effective_configs_equal_kafka_description(running: ClusterImage) -> None:
    broker = facts()["configs"]["BROKER:1"]
    layers = BrokerLayers(
        running.config(ConfigResourceType.BROKER, "1"), running.config(ConfigResourceType.BROKER, ""), _static(broker)
    )
    for resource, entries in facts()["configs"].items():
        kind, _, name = resource.partition(":")
        if kind == "TOPIC":
            ours = {
                entry.name: entry for entry in describe_topic(running.config(ConfigResourceType.TOPIC, name), layers)
            }
            assert {key: ours[key].value for key in entries} == {key: entry["value"] for key, entry in entries.items()}


def _static(entries: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the properties file of a described broker, as far as its synonyms show it."""
    return {
        synonym["name"]: synonym["value"]
        for entry in entries.values()
        for synonym in entry["synonyms"]
        if synonym["source"] == "STATIC_BROKER_CONFIG" and synonym["value"] is not None
    }


def test_acls_equal_kafka_description(running: ClusterImage) -> None:
    ours = [
        {
            "type": ResourceType(acl.resource_type).name,
            "name": acl.resource_name,
            "pattern": PatternType(acl.pattern_type).name,
            "principal": acl.principal,
            "host": acl.host,
            "operation": AclOperation(acl.operation).name,
            "permission": AclPermission(acl.permission_type).name,
        }
        for acl in running.acls.values()
    ]
    assert sorted(map(str, map(sorted, map(dict.items, ours)))) == sorted(
        map(str, map(sorted, map(dict.items, facts()["acls"])))
    )


def test_quotas_users_tokens_features_equal_kafka_description(running: ClusterImage) -> None:
    expected = facts()
    assert {
        tuple(sorted(quota["entity"].items())): quota["quotas"] for quota in expected["quotas"]
    } == running.client_quotas
    assert {
        (name, {"SCRAM_SHA_256": 1, "SCRAM_SHA_512": 2}[info["mechanism"]], info["iterations"])
        for name, user in expected["scram"].items()
        for info in user["credentialInfos"]
    } == {
        (name, mechanism, credential.iterations)
        for mechanism, users in running.scram.items()
        for name, credential in users.items()
    }
    assert {token["token_id"]: token["owner"] for token in expected["tokens"]} == {
        token.token_id: token.owner for token in running.delegation_tokens.values()
    }
    finalized = {name: level["maxVersionLevel"] for name, level in expected["features"]["finalized"].items()}
    assert finalized.pop("kraft.version") == 1
    assert finalized == running.features


def test_token_is_found_by_hmac_from_kafka(running: ClusterImage) -> None:
    assert facts()["tokens"]
    for expected in facts()["tokens"]:
        token = find_token(running, TokenRules(TOKEN_KEY, 0, 0), base64.b64decode(expected["hmac"]))
        assert token is not None
        assert token.token_id == expected["token_id"]


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: str(path.relative_to(KAFKA)))
def test_snapshot_round_trip_keeps_bytes(path: Path) -> None:
    data = path.read_bytes()
    snapshot = decode_snapshot(data)
    image = ClusterImage()
    for record in snapshot.records:
        image.replay(record)
    first = next(iter(iter_batches(data)))
    # An image sorts its features; the formatter writes them in another order.
    records = snapshot.records if not image.brokers else list(snapshot_records(image))
    assert records == snapshot.records
    ours = b"".join(
        encode_snapshot(
            records,
            image.metadata_version,
            epoch=first.partition_leader_epoch,
            timestamp=first.base_timestamp,
            last_contained_timestamp=snapshot.last_contained_timestamp,
            kraft_version=snapshot.kraft_version,
            voters=snapshot.voters,
        )
    )
    assert without_time(ours) == without_time(data)


@pytest.mark.parametrize("name", ["formatted", "formatted-static"])
def test_format_writes_kafka_files(name: str) -> None:
    kafkas = KAFKA / name
    meta = read_meta_properties(on_disk(name).env.disk, "/data")
    assert meta is not None
    records = decode_snapshot((kafkas / "bootstrap.checkpoint").read_bytes()).records
    bootstrap = [record for record in records if not isinstance(record, UnknownRecord)]
    features = [record for record in bootstrap if isinstance(record, FeatureLevelRecord)]
    assert features == bootstrap_records()
    now, voters = 1_700_000_000_000, ()
    first = kafkas / METADATA / "00000000000000000000-0000000000.checkpoint"
    if first.exists():
        snapshot = decode_snapshot(first.read_bytes())
        now, voters = snapshot.last_contained_timestamp, snapshot.voters
    disk = on_disk().env.disk
    format_directory(disk, "/data", meta, now_ms=now, records=bootstrap, voters=voters)
    for file in sorted(path for path in kafkas.rglob("*") if path.is_file()):
        ours, theirs = disk.read(f"/data/{file.relative_to(kafkas)}"), file.read_bytes()
        if file.suffix == ".checkpoint":
            assert without_time(ours) == without_time(theirs)
        else:
            assert ours.splitlines()[2:] == theirs.splitlines()[2:], "all but the comment with the time"


@pytest.mark.parametrize("name", ["data", "data-static"])
def test_first_epoch_writes_kafka_bytes(name: str) -> None:
    theirs = (KAFKA / name / METADATA / "00000000000000000000.log").read_bytes()
    directory = on_disk(name)
    disk = directory.env.disk
    for file in disk.list(f"/data/{METADATA}"):
        if file != "00000000000000000000-0000000000.checkpoint":
            disk.remove(f"/data/{METADATA}/{file}")
    log = MetadataLog.open(directory, NODES[name])
    log.start_epoch()
    stored = log.log.read(0, 1 << 20, log.next_offset).records
    assert stored is not None
    ours = stored.read_all()
    assert without_time(ours) == without_time(theirs[: len(ours)])
    assert (
        disk.read(f"/data/{METADATA}/partition.metadata")
        == (KAFKA / name / METADATA / "partition.metadata").read_bytes()
    )


@pytest.mark.parametrize("name", ["data", "data-static"])
def test_quorum_state_has_kafka_bytes(name: str) -> None:
    kafkas = (KAFKA / name / METADATA / "quorum-state").read_bytes()
    directory = on_disk(name)
    log = MetadataLog.open(directory, NODES[name])
    log.start_epoch()
    ours = directory.env.disk.read(f"/data/{METADATA}/quorum-state")
    before, after = f'"leaderEpoch":{log.epoch - 1}', f'"leaderEpoch":{log.epoch}'
    assert ours == kafkas.replace(before.encode(), after.encode())


def layers(image: ClusterImage) -> BrokerLayers:
    return BrokerLayers(image.config(ConfigResourceType.BROKER, "1"), image.config(ConfigResourceType.BROKER, ""), {})


def without_noops(records: list[tuple[int, Message | UnknownRecord]]) -> list[Message | UnknownRecord]:
    return [record for _, record in records if not isinstance(record, NoOpRecord)]


def in_any_order(records: list[Message] | list[Message | UnknownRecord]) -> list[str]:
    return sorted(map(repr, records))


def test_clean_shutdown_writes_kafka_records(running: ClusterImage) -> None:
    records = log_records("data")
    kafkas = without_noops(records[last_shutdown(records) :])
    image = ClusterImage()
    for record in running_records():
        image.replay(record)
    leaving = begin_controlled_shutdown(image, 1, layers=layers(image))
    image.replay_all(leaving)
    assert in_any_order(leaving + fence_broker(image, 1, layers=layers(image))) == in_any_order(kafkas)


def test_restart_writes_kafka_records() -> None:
    records = log_records("data")
    registrations = [
        position for position, (_, record) in enumerate(records) if isinstance(record, RegisterBrokerRecord)
    ]
    assert len(registrations) > 1, "the captured node was restarted"
    position = registrations[-1]
    image = ClusterImage()
    for _, record in records[:position]:
        image.replay(record)
    offset, kafkas = records[position]
    assert isinstance(kafkas, RegisterBrokerRecord)
    epoch, ours = register_broker(
        image,
        broker_id=1,
        incarnation_id=kafkas.incarnation_id,
        listeners=[
            Listener(endpoint.name, endpoint.host, endpoint.port, endpoint.security_protocol)
            for endpoint in kafkas.end_points
        ],
        directories=kafkas.log_dirs,
        next_offset=offset,
        layers=layers(image),
        rack=kafkas.rack,
        previous_epoch=image.brokers[1].epoch,
    )
    assert epoch == kafkas.broker_epoch
    assert len(ours) == 1
    registration = ours[0]
    assert isinstance(registration, RegisterBrokerRecord)
    registration.features.sort(key=lambda feature: feature.name)
    kafkas.features.sort(key=lambda feature: feature.name)
    assert registration == kafkas
    image.replay(registration)
    unfenced = unfence_broker(image, 1, layers=layers(image))
    after = list(without_noops(records[position + 1 :]))[: len(unfenced)]
    assert in_any_order(unfenced) == in_any_order(after)


def test_missing_directory_id_stays_none(running: ClusterImage) -> None:
    meta = read_meta_properties(on_disk("data").env.disk, "/data")
    assert meta is not None
    assert running.brokers[1].directories == (meta.directory_id,)
    assert isinstance(meta.directory_id, Uuid)
