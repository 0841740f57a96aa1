"""Effective values and their sources equal those of Apache Kafka 4.3.1 with the same settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ottla.cluster.configs.effective import (
    BrokerLayers,
    ConfigEntry,
    broker_default_of,
    broker_value,
    created_topic_configs,
    describe_broker,
    describe_client_metrics,
    describe_default_broker,
    describe_group,
    describe_topic,
    group_value,
    topic_value,
    topic_values,
)

KAFKA = json.loads((Path(__file__).parents[1] / "fixtures" / "describe_configs.json").read_text())
SOURCES = {
    "DYNAMIC_TOPIC_CONFIG": 1,
    "DYNAMIC_BROKER_CONFIG": 2,
    "DYNAMIC_DEFAULT_BROKER_CONFIG": 3,
    "STATIC_BROKER_CONFIG": 4,
    "DEFAULT_CONFIG": 5,
    "DYNAMIC_CLIENT_METRICS_CONFIG": 7,
    "DYNAMIC_GROUP_CONFIG": 8,
}
LAYERS = BrokerLayers(
    {"log.cleaner.threads": "2", "listener.name.sasl_plaintext.max.connections": "100"},
    {"min.insync.replicas": "1", "log.retention.ms": "5000", "message.max.bytes": "2000000", "my.own": "v"},
    {**KAFKA["server.properties"], "broker.id": "1"},
)
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "1048576"}
PLAIN = {"cleanup.policy": "delete", "retention.ms": "1000", "min.compaction.lag.ms": "9223372036854775807"}


def described(entries: list[ConfigEntry]) -> dict[str, Any]:
    return {
        entry.name: [
            entry.value,
            int(entry.source),
            entry.sensitive,
            entry.read_only,
            entry.type.name,
            [[synonym.name, synonym.value, int(synonym.source)] for synonym in entry.synonyms],
        ]
        for entry in entries
    }


def kafkas(resource: str) -> dict[str, Any]:
    return {
        name: [value, SOURCES[source], sensitive, read_only, kind, [[n, v, SOURCES[s]] for n, v, s in synonyms]]
        for name, (value, source, sensitive, read_only, kind, synonyms) in KAFKA["described"][resource].items()
    }


@pytest.mark.parametrize(
    ("resource", "entries"),
    [
        ("TOPIC:compacted", describe_topic(COMPACTED, LAYERS)),
        ("TOPIC:plain", describe_topic(PLAIN, LAYERS)),
        ("BROKER:1", describe_broker(LAYERS)),
        ("BROKER:", describe_default_broker(LAYERS)),
        ("GROUP:g", describe_group({"consumer.session.timeout.ms": "50000"}, LAYERS)),
        ("GROUP:other", describe_group({}, LAYERS)),
        ("CLIENT_METRICS:m", describe_client_metrics({"interval.ms": "5000", "metrics": "a,b"})),
    ],
)
def test_described_resource_equals_kafkas(resource: str, entries: list[ConfigEntry]) -> None:
    assert described(entries) == kafkas(resource)


@pytest.mark.parametrize(("topic", "overrides"), [("plain", {}), ("compacted", COMPACTED)])
def test_created_topic_configs_equal_kafkas(topic: str, overrides: dict[str, str]) -> None:
    layers = BrokerLayers({}, {"min.insync.replicas": "1"}, LAYERS.static)
    entries = {entry.name: [entry.value, int(entry.source)] for entry in created_topic_configs(overrides, layers)}
    assert entries == {name: [value, SOURCES[source]] for name, (value, source) in KAFKA["created"][topic].items()}


def test_milliseconds_override_minutes_and_minutes_override_hours() -> None:
    def retention(**static: str) -> object:
        return topic_value(
            {}, BrokerLayers(static={f"log.retention.{k}": v for k, v in static.items()}), "retention.ms"
        )

    assert retention() == 168 * 3_600_000
    assert retention(hours="1") == 3_600_000
    assert retention(hours="1", minutes="2") == 120_000
    assert retention(hours="1", minutes="2", ms="3") == 3
    assert retention(hours="-1") == -1


def test_dynamic_synonym_overrides_file_in_any_unit() -> None:
    layers = BrokerLayers(dynamic_default={"log.retention.ms": "7"}, static={"log.retention.hours": "2"})
    assert broker_default_of(layers, "log.retention.ms") == 7
    assert broker_value(layers, "log.retention.hours") == 168


def test_flush_ms_falls_back_to_scheduler_interval() -> None:
    assert topic_value({}, BrokerLayers(static={"log.flush.scheduler.interval.ms": "9"}), "flush.ms") == 9


def test_unparsable_stored_value_is_ignored() -> None:
    assert topic_value({"retention.ms": "soon"}, BrokerLayers(), "retention.ms") == 604_800_000


def test_every_topic_config_has_effective_value() -> None:
    values = topic_values({}, BrokerLayers())
    assert values["segment.bytes"] == 1_073_741_824
    assert [name for name, value in values.items() if value is None] == ["internal.segment.bytes"]


def test_group_value_is_clamped_to_broker_bounds() -> None:
    assert group_value({"consumer.session.timeout.ms": "1"}, BrokerLayers(), "consumer.session.timeout.ms") == 45_000
    assert group_value({"streams.num.standby.replicas": "9"}, BrokerLayers(), "streams.num.standby.replicas") == 2
