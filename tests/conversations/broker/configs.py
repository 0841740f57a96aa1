"""Configs: described, replaced, changed one by one, listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.k33_alter_configs import (
    AlterableConfig as OldConfig,
)
from ottla.protocol.messages.k33_alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
)
from ottla.protocol.messages.k33_alter_configs import (
    AlterConfigsResource as OldResource,
)
from ottla.protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.k74_list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

from . import script

if TYPE_CHECKING:
    from tests.conversations.side_by_side import Talk

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def caught_up(talk: Talk, before: str) -> None:
    """Wait until a broker has read all changes so far: Kafka's answers come from what its broker half has read."""
    talk.create(before.replace(" ", "-"))


def describe(
    *resources: tuple[int, str], keys: list[str] | None = None, synonyms: bool = True, documentation: bool = False
) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name in resources
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )


@script()
def describe_topic_configs(talk: Talk) -> None:
    talk.create("plain")
    talk.create("set", retention_ms="1000", cleanup_policy="compact,delete", min_insync_replicas="2")
    for version in talk.versions[32]:
        for name in ("plain", "set"):
            talk.ask(
                f"{name} v{version}",
                describe((TOPIC, name), documentation=version >= 3),
                DescribeConfigsResponse,
                version=version,
                unordered=("configs",),
            )
    talk.ask("no synonyms", describe((TOPIC, "set"), synonyms=False), DescribeConfigsResponse, unordered=("configs",))
    for label, keys in (
        ("one", ["retention.ms"]),
        ("none", []),
        ("unknown", ["no.such"]),
        ("twice", ["flush.ms", "flush.ms"]),
    ):
        talk.ask(f"keys {label}", describe((TOPIC, "set"), keys=keys), DescribeConfigsResponse, unordered=("configs",))
    for label, name in (("unknown", "nowhere"), ("empty", ""), ("bad", "a b"), ("internal", "__consumer_offsets")):
        talk.ask(f"topic {label}", describe((TOPIC, name), keys=["flush.ms"]), DescribeConfigsResponse)
    talk.ask("nothing", describe(), DescribeConfigsResponse)
    talk.ask(
        "several",
        describe((TOPIC, "plain"), (TOPIC, "nowhere"), (TOPIC, "plain"), keys=["flush.ms"]),
        DescribeConfigsResponse,
        unordered=("results",),
    )


@script()
def describe_broker_configs(talk: Talk) -> None:
    talk.ask("all", describe((BROKER, "1"), keys=_described(talk)), DescribeConfigsResponse, unordered=("configs",))
    talk.ask("default", describe((BROKER, "")), DescribeConfigsResponse)
    for name in ("2", "-1", "one", "01", " 1"):
        talk.ask(f"broker {name!r}", describe((BROKER, name), keys=["node.id"]), DescribeConfigsResponse)
    for kind in (0, 1, 3, 5, 64, -1):
        talk.ask(f"type {kind}", describe((kind, "x")), DescribeConfigsResponse)
        talk.ask(f"type {kind} and another", describe((BROKER, ""), (kind, "x")), DescribeConfigsResponse)
    for version in talk.versions[32]:
        keys = ["log.retention.ms", "log.retention.hours", "compression.type", "sasl.jaas.config", "log.dirs"]
        talk.ask(
            f"some v{version}",
            describe((BROKER, "1"), keys=keys),
            DescribeConfigsResponse,
            version=version,
            unordered=("configs",),
        )
    loggers = talk.quietly(describe((BROKER_LOGGER, "1")), DescribeConfigsResponse).results[0]
    talk.note("loggers", (loggers.error_code, loggers.error_message, len(loggers.configs) > 0))
    talk.note(
        "logger",
        sorted(
            {
                (config.read_only, config.config_source, config.is_sensitive, config.config_type)
                for config in loggers.configs
            }
        ),
    )
    talk.ask("loggers of another", describe((BROKER_LOGGER, "2")), DescribeConfigsResponse)
    talk.ask("loggers of nobody", describe((BROKER_LOGGER, "")), DescribeConfigsResponse)
    talk.ask("loggers of a word", describe((BROKER_LOGGER, "x")), DescribeConfigsResponse)


def _described(talk: Talk) -> list[str]:
    """Every config but those that say where a process is: both must list the same others."""
    configs = talk.quietly(describe((BROKER, "1")), DescribeConfigsResponse).results[0].configs
    topic_partition = {
        "listeners",
        "advertised.listeners",
        "controller.quorum.bootstrap.servers",
        "listener.security.protocol.map",
    }
    return sorted(entry.name for entry in configs if entry.name not in topic_partition)


@script()
def describe_other_configs(talk: Talk) -> None:
    for label, kind, name in (
        ("group", GROUP, "some-group"),
        ("group without a name", GROUP, ""),
        ("metrics", CLIENT_METRICS, "some-metrics"),
        ("metrics without a name", CLIENT_METRICS, ""),
    ):
        talk.ask(label, describe((kind, name)), DescribeConfigsResponse, unordered=("configs",))


def change(
    kind: int, name: str, *changes: tuple[str, int, str | None], dry: bool = False
) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(resources=[resource(kind, name, *changes)], validate_only=dry)


def resource(kind: int, name: str, *changes: tuple[str, int, str | None]) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in changes
        ],
    )


@script(
    differs={
        "unknown operation": "Kafka trips over it with UNKNOWN_SERVER_ERROR; here it is INVALID_REQUEST",
        "negative operation": "Kafka trips over it with UNKNOWN_SERVER_ERROR; here it is INVALID_REQUEST",
        "broker unknown operation": "other words",
        **dict.fromkeys(
            (
                "broker too small",
                "broker too many threads",
                "broker too many network threads",
                "broker too many fetchers",
                "broker too many recovery threads",
                "broker too many background threads",
                "broker too many cleaners",
                "broker small cleaner buffer",
                "broker bad overrides",
            ),
            "the same error; Kafka wraps the words in those of its exceptions",
        ),
        "broker listeners": "refused by both; here listeners are bound at start and stay",
    }
)
def incremental_alter_configs(talk: Talk) -> None:
    talk.create("t")

    def ask(label: str, kind: int, name: str, *changes: tuple[str, int, str | None], dry: bool = False) -> None:
        talk.ask(label, change(kind, name, *changes, dry=dry), IncrementalAlterConfigsResponse)

    for version in talk.versions[44]:
        talk.ask(
            f"v{version}",
            change(TOPIC, "t", ("flush.ms", SET, f"{version + 5}")),
            IncrementalAlterConfigsResponse,
            version=version,
        )
    table: dict[str, tuple[int, str, list[tuple[str, int, str | None]]]] = {
        "nothing": (TOPIC, "t", []),
        "set": (TOPIC, "t", [("retention.ms", SET, "5000")]),
        "set again": (TOPIC, "t", [("retention.ms", SET, "5000")]),
        "delete": (TOPIC, "t", [("retention.ms", DELETE, None)]),
        "delete with a value": (TOPIC, "t", [("retention.ms", DELETE, "7")]),
        "delete what is not set": (TOPIC, "t", [("segment.ms", DELETE, None)]),
        "delete what does not exist": (TOPIC, "t", [("no.such", DELETE, None)]),
        "set to null": (TOPIC, "t", [("retention.ms", SET, None)]),
        "append null": (TOPIC, "t", [("cleanup.policy", APPEND, None)]),
        "set to nothing": (TOPIC, "t", [("retention.ms", SET, "")]),
        "append": (TOPIC, "t", [("cleanup.policy", APPEND, "compact")]),
        "append again": (TOPIC, "t", [("cleanup.policy", APPEND, "compact")]),
        "append nonsense": (TOPIC, "t", [("cleanup.policy", APPEND, "shred")]),
        "subtract": (TOPIC, "t", [("cleanup.policy", SUBTRACT, "delete")]),
        "subtract what is not there": (TOPIC, "t", [("cleanup.policy", SUBTRACT, "delete")]),
        "subtract all": (TOPIC, "t", [("cleanup.policy", SUBTRACT, "compact")]),
        "append to a number": (TOPIC, "t", [("retention.ms", APPEND, "1")]),
        "append to what does not exist": (TOPIC, "t", [("no.such", APPEND, "1")]),
        "unknown operation": (TOPIC, "t", [("retention.ms", 4, "1")]),
        "negative operation": (TOPIC, "t", [("retention.ms", -1, "1")]),
        "twice": (TOPIC, "t", [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)]),
        "unknown config": (TOPIC, "t", [("no.such", SET, "1")]),
        "wrong type": (TOPIC, "t", [("retention.ms", SET, "soon")]),
        "too small": (TOPIC, "t", [("segment.bytes", SET, "1")]),
        "no choice": (TOPIC, "t", [("compression.type", SET, "tar")]),
        "one good one bad": (TOPIC, "t", [("flush.ms", SET, "77"), ("retention.ms", SET, "x")]),
        "unknown topic": (TOPIC, "nowhere", [("retention.ms", SET, "1")]),
        "unknown topic, nothing": (TOPIC, "nowhere", []),
        "no topic": (TOPIC, "", [("retention.ms", SET, "1")]),
        "bad topic": (TOPIC, "a b", [("retention.ms", SET, "1")]),
        "throttled replicas": (TOPIC, "t", [("leader.replication.throttled.replicas", SET, "0:1,1:1")]),
        "throttled nonsense": (TOPIC, "t", [("leader.replication.throttled.replicas", SET, "abc")]),
        "broker": (BROKER, "1", [("log.cleaner.threads", SET, "2")]),
        "broker back": (BROKER, "1", [("log.cleaner.threads", DELETE, None)]),
        "other broker": (BROKER, "2", [("log.cleaner.threads", SET, "2")]),
        "broker of a word": (BROKER, "x", [("log.cleaner.threads", SET, "2")]),
        "broker read-only": (BROKER, "1", [("node.id", SET, "2")]),
        "broker unknown": (BROKER, "1", [("no.such", SET, "2")]),
        "broker unknown back": (BROKER, "1", [("no.such", DELETE, None)]),
        "broker wrong type": (BROKER, "1", [("log.cleaner.threads", SET, "many")]),
        "broker too small": (BROKER, "1", [("log.cleaner.threads", SET, "0")]),
        "broker too many threads": (BROKER, "1", [("num.io.threads", SET, "5")]),
        "broker no threads": (BROKER, "1", [("num.io.threads", SET, "0")]),
        "broker too many network threads": (BROKER, "1", [("num.network.threads", SET, "50")]),
        "broker too many fetchers": (BROKER, "1", [("num.replica.fetchers", SET, "50")]),
        "broker too many recovery threads": (BROKER, "1", [("num.recovery.threads.per.data.dir", SET, "50")]),
        "broker too many background threads": (BROKER, "1", [("background.threads", SET, "50")]),
        "broker too many cleaners": (BROKER, "1", [("log.cleaner.threads", SET, "50")]),
        "broker unclean election": (BROKER, "1", [("unclean.leader.election.enable", SET, "perhaps")]),
        "broker bad overrides": (BROKER, "1", [("max.connections.per.ip.overrides", SET, "nonsense")]),
        "broker listeners": (BROKER, "1", [("listeners", SET, "NOPE://x:1")]),
        "broker small cleaner buffer": (BROKER, "1", [("log.cleaner.dedupe.buffer.size", SET, "1000")]),
        "broker unknown operation": (BROKER, "1", [("log.cleaner.threads", 9, "2")]),
        "broker append to a number": (BROKER, "1", [("log.cleaner.threads", APPEND, "2")]),
        "all brokers": (BROKER, "", [("log.retention.ms", SET, "123456789")]),
        "all brokers back": (BROKER, "", [("log.retention.ms", DELETE, None)]),
        "all brokers per-broker only": (BROKER, "", [("ssl.keystore.location", SET, "/x")]),
        "all brokers listener": (BROKER, "", [("listener.name.plaintext.ssl.keystore.type", SET, "PEM")]),
        "all brokers quota": (BROKER, "", [("leader.replication.throttled.rate", SET, "1000")]),
        "all brokers quota back": (BROKER, "", [("leader.replication.throttled.rate", DELETE, None)]),
        "broker quota": (BROKER, "1", [("leader.replication.throttled.rate", SET, "1000")]),
        "broker quota back": (BROKER, "1", [("leader.replication.throttled.rate", DELETE, None)]),
        "min.insync of one broker": (BROKER, "1", [("min.insync.replicas", SET, "2")]),
        "min.insync of all brokers": (BROKER, "", [("min.insync.replicas", SET, "1")]),
        "min.insync of all brokers away": (BROKER, "", [("min.insync.replicas", DELETE, None)]),
        "group": (GROUP, "g", [("consumer.session.timeout.ms", SET, "50000")]),
        "group back": (GROUP, "g", [("consumer.session.timeout.ms", DELETE, None)]),
        "group too small": (GROUP, "g", [("consumer.session.timeout.ms", SET, "1")]),
        "group too large": (GROUP, "g", [("consumer.session.timeout.ms", SET, "9999999")]),
        "group unknown": (GROUP, "g", [("no.such", SET, "1")]),
        "group without a name": (GROUP, "", [("consumer.session.timeout.ms", SET, "50000")]),
        "metrics": (CLIENT_METRICS, "m", [("metrics", SET, "*"), ("interval.ms", SET, "1000")]),
        "metrics too often": (CLIENT_METRICS, "m", [("interval.ms", SET, "1")]),
        "metrics matching": (CLIENT_METRICS, "m", [("match", SET, "client_id=.*")]),
        "metrics matching nonsense": (CLIENT_METRICS, "m", [("match", SET, "nonsense")]),
        "metrics unknown": (CLIENT_METRICS, "m", [("no.such", SET, "1")]),
        "metrics without a name": (CLIENT_METRICS, "", [("metrics", SET, "*")]),
        "metrics back": (
            CLIENT_METRICS,
            "m",
            [("metrics", DELETE, None), ("interval.ms", DELETE, None), ("match", DELETE, None)],
        ),
        "logger that is not there": (BROKER_LOGGER, "1", [("no.such.logger", SET, "DEBUG")]),
        "logger append": (BROKER_LOGGER, "1", [("kafka", APPEND, "DEBUG")]),
        "logger subtract": (BROKER_LOGGER, "1", [("kafka", SUBTRACT, "DEBUG")]),
        "logger of another": (BROKER_LOGGER, "2", [("kafka", SET, "DEBUG")]),
        "logger of nobody": (BROKER_LOGGER, "", [("kafka", SET, "DEBUG")]),
        "type 0": (0, "x", [("a", SET, "b")]),
        "type 3": (3, "x", [("a", SET, "b")]),
        "type 64": (64, "x", [("a", SET, "b")]),
    }
    for label, (kind, name, changes) in table.items():
        ask(label, kind, name, *changes)
    ask("dry", TOPIC, "t", ("flush.messages", SET, "9"), dry=True)
    ask("dry and wrong", TOPIC, "t", ("flush.messages", SET, "x"), dry=True)
    twins = IncrementalAlterConfigsRequest(
        resources=[
            resource(TOPIC, "t", ("flush.ms", SET, "1")),
            resource(GROUP, "t", ("consumer.session.timeout.ms", SET, "46000")),
            resource(TOPIC, "t", ("flush.ms", SET, "2")),
        ]
    )
    talk.ask("one resource twice", twins, IncrementalAlterConfigsResponse)
    talk.ask("empty", IncrementalAlterConfigsRequest(), IncrementalAlterConfigsResponse)
    ask("group of the twins back", GROUP, "t", ("consumer.session.timeout.ms", DELETE, None))
    caught_up(talk, "what became of it")
    talk.ask("what became of it", describe((TOPIC, "t")), DescribeConfigsResponse, unordered=("configs",))


@script()
def alter_configs(talk: Talk) -> None:
    talk.create("t", retention_ms="1000", flush_ms="10")

    def replace(kind: int, name: str, *configs: tuple[str, str | None], dry: bool = False) -> AlterConfigsRequest:
        named = OldResource(
            resource_type=kind,
            resource_name=name,
            configs=[OldConfig(name=key, value=value) for key, value in configs],
        )
        return AlterConfigsRequest(resources=[named], validate_only=dry)

    for version in talk.versions[33]:
        talk.ask(f"v{version}", replace(TOPIC, "t", ("flush.ms", f"{version}")), AlterConfigsResponse, version=version)
    caught_up(talk, "it replaced")
    talk.ask("it replaced", describe((TOPIC, "t")), DescribeConfigsResponse, unordered=("configs",))
    table: dict[str, AlterConfigsRequest] = {
        "dry": replace(TOPIC, "t", ("segment.ms", "5"), dry=True),
        "null": replace(TOPIC, "t", ("segment.ms", None)),
        "twice": replace(TOPIC, "t", ("segment.ms", "5"), ("segment.ms", "6")),
        "unknown": replace(TOPIC, "t", ("no.such", "5")),
        "wrong": replace(TOPIC, "t", ("segment.ms", "x")),
        "unknown topic": replace(TOPIC, "nowhere", ("segment.ms", "5")),
        "no topic": replace(TOPIC, "", ("segment.ms", "5")),
        "broker": replace(BROKER, "1", ("log.cleaner.threads", "2")),
        "broker back": replace(BROKER, "1"),
        "other broker": replace(BROKER, "7", ("log.cleaner.threads", "2")),
        "broker read-only": replace(BROKER, "1", ("node.id", "2")),
        "logger": replace(BROKER_LOGGER, "1", ("kafka", "DEBUG")),
        "type 0": replace(0, "x", ("a", "b")),
        "group": replace(GROUP, "g", ("consumer.session.timeout.ms", "50000")),
        "group back": replace(GROUP, "g"),
        "all gone": replace(TOPIC, "t"),
    }
    for label, request in table.items():
        talk.ask(label, request, AlterConfigsResponse)
    caught_up(talk, "what became of it")
    talk.ask("what became of it", describe((TOPIC, "t")), DescribeConfigsResponse, unordered=("configs",))


@script()
def list_config_resources(talk: Talk) -> None:
    talk.create("one")
    talk.create("two")
    talk.quietly(change(CLIENT_METRICS, "m", ("metrics", SET, "*")), IncrementalAlterConfigsResponse)
    talk.quietly(change(GROUP, "g", ("consumer.session.timeout.ms", SET, "50000")), IncrementalAlterConfigsResponse)

    def listed() -> bool:
        expected = ListConfigResourcesRequest(resource_types=[CLIENT_METRICS, GROUP])
        return len(talk.quietly(expected, ListConfigResourcesResponse).config_resources) >= 2

    talk.wait_until(listed, "the resources are not listed")
    talk.ask("v0", ListConfigResourcesRequest(), ListConfigResourcesResponse, version=0)
    loud = ("config_resources",)
    kinds: list[list[int]] = [[], [2], [4], [8], [16], [32], [2, 32], [2, 2], [0], [3], [2, 64], [-1]]
    for kind in kinds:
        request = ListConfigResourcesRequest(resource_types=kind)
        talk.ask(f"types {kind}", request, ListConfigResourcesResponse, version=1, unordered=loud)
    talk.quietly(change(CLIENT_METRICS, "m", ("metrics", DELETE, None)), IncrementalAlterConfigsResponse)
    talk.quietly(change(GROUP, "g", ("consumer.session.timeout.ms", DELETE, None)), IncrementalAlterConfigsResponse)
