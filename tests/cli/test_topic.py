"""`ottla topic`, `ottla config` and `ottla cluster` against a running cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .live import run

if TYPE_CHECKING:
    from ottla.testing import Cluster


def test_topic_is_created_described_grown_and_deleted(cluster: Cluster) -> None:
    where = cluster.bootstrap
    created = run(where, "topic", "create", "life", "-p", 3, "-r", 2, "-c", "retention.ms=1000", "--json").rows
    assert created[0] | {"id": ""} == {
        "topic": "life",
        "created": True,
        "id": "",
        "partitions": 3,
        "replication_factor": 2,
    }
    assert {"topic": "life", "partitions": 3, "replication_factor": 2, "internal": False}.items() <= next(
        row for row in run(where, "topic", "list", "--json").rows if row["topic"] == "life"
    ).items()
    described = run(where, "topic", "describe", "life", "--json").rows[0]
    assert described["id"] == created[0]["id"]
    assert described["configs"] == {"retention.ms": "1000"}
    assert sorted({partition["leader"] for partition in described["partitions"]}) == [1, 2]
    assert all((partition["start"], partition["end"]) == (0, 0) for partition in described["partitions"])
    assert run(where, "topic", "add-partitions", "life", 5).out == "life has 5 partitions\n"
    assert "5 partitions" in run(where, "topic", "describe", "life").out
    assert run(where, "topic", "delete", "--yes", "life", "--json").rows == [{"topic": "life", "deleted": True}]
    assert "life" not in run(where, "topic", "list").out


def test_refused_change_has_an_exit_code_and_no_effect(cluster: Cluster) -> None:
    where = cluster.bootstrap
    assert run(where, "topic", "create", "twice").code == 0
    again = run(where, "topic", "create", "twice")
    assert (again.code, again.out) == (1, "")
    assert again.err == "ottla: TOPIC_ALREADY_EXISTS (36): Topic 'twice' already exists.\n"
    assert run(where, "topic", "create", "twice", "--if-not-exists").code == 0
    assert run(where, "topic", "create", "bad name").code == 1
    assert run(where, "topic", "create", "odd", "-c", "retention.ms=soon").code == 1
    assert run(where, "topic", "create", "odd", "-c", "retention").code == 2
    assert run(where, "topic", "create", "odd", "--dry-run").out.startswith("would create odd")
    assert run(where, "topic", "describe", "odd").code == 4
    assert run(where, "topic", "delete", "--yes", "odd").code == 4
    assert run(where, "topic", "delete", "--yes", "odd", "--if-exists").code == 0
    assert run(where, "topic", "add-partitions", "twice", 1).code == 1


def test_refused_topic_does_not_stop_the_others(cluster: Cluster) -> None:
    where = cluster.bootstrap
    made = run(where, "topic", "create", "bad name", "good-name")
    assert (made.code, made.out) == (1, "created good-name with 1 partition\n")
    assert "'bad name'" in made.err
    gone = run(where, "topic", "delete", "--yes", "nowhere", "good-name", "--json")
    assert (gone.code, gone.out) == (4, '{"topic": "good-name", "deleted": true}\n')
    assert "topic nowhere" in gone.err
    assert run(where, "topic", "create", "shrinking", "-p", 2).code == 0
    run(where, "produce", "shrinking", "-v", "a", "-v", "b", "-p", 1)
    trimmed = run(where, "topic", "trim", "--yes", "shrinking", "--before", 1)
    assert (trimmed.code, trimmed.out) == (1, "shrinking-1 starts at offset 1\n")
    assert trimmed.err == "ottla: OFFSET_OUT_OF_RANGE (1): shrinking-0\n"


def test_unreachable_cluster_exits_with_3(cluster: Cluster) -> None:
    refused = run("127.0.0.1:1", "topic", "list")
    assert refused.code == 3
    assert "cannot connect to 127.0.0.1:1" in refused.err
    assert run("localhost:port", "topic", "list").code == 2
    assert run(cluster.bootstrap, "topic", "list", "-X", "security").code == 2


def test_trim_deletes_records_before_an_offset(cluster: Cluster) -> None:
    where = cluster.bootstrap
    cluster.create_topic("trimmed", 2)
    run(where, "produce", "trimmed", "-p", 1, stdin="a\nb\nc\n")
    assert run(where, "topic", "trim", "--yes", "trimmed", "-p", 1, "--before", 2, "--json").rows == [
        {"topic": "trimmed", "partition": 1, "start": 2}
    ]
    assert run(where, "consume", "trimmed", "-e").out == "c\n"
    assert (
        run(where, "topic", "trim", "--yes", "trimmed").out
        == "trimmed-0 starts at offset 0\ntrimmed-1 starts at offset 3\n"
    )


def test_configs_are_described_and_altered_atomically(cluster: Cluster) -> None:
    where = cluster.bootstrap
    cluster.create_topic("set", 1)
    changed = run(
        where, "config", "alter", "topic", "set", "--set", "retention.ms=60000", "--append", "cleanup.policy=compact"
    )
    assert changed.out == "topic set: changed 2 configs\n"
    rows = {row["key"]: row for row in run(where, "config", "describe", "topic", "set", "--json").rows}
    assert (rows["retention.ms"]["value"], rows["retention.ms"]["source"]) == ("60000", "topic")
    assert rows["cleanup.policy"]["value"] == "delete,compact"
    assert rows["retention.ms"]["synonyms"][0]["source"] == "topic"
    assert len(run(where, "config", "describe", "topic", "set", "--all", "--json").rows) > 20
    bad = run(where, "config", "alter", "topic", "set", "--delete", "retention.ms", "--set", "segment.bytes=none")
    assert bad.code == 1
    assert "retention.ms" in run(where, "config", "describe", "topic", "set").out
    assert run(where, "config", "alter", "topic", "set", "--delete", "retention.ms", "--dry-run").code == 0
    assert run(where, "config", "alter", "topic", "set", "--delete", "retention.ms").code == 0
    assert "retention.ms" not in run(where, "config", "describe", "topic", "set").out
    assert run(where, "config", "alter", "topic", "set").code == 2
    assert run(where, "config", "describe", "topic", "none").code == 4


def test_unknown_config_exits_with_4(cluster: Cluster) -> None:
    completed = run(cluster.bootstrap, "config", "describe", "broker", 1, "num.partitions", "num.partition")
    assert (completed.code, completed.out, completed.err) == (4, "", "ottla: broker 1 has no config num.partition\n")


def test_configs_of_brokers_groups_and_loggers(cluster: Cluster) -> None:
    where = cluster.bootstrap
    assert run(where, "config", "alter", "broker", "2", "--set", "log.cleaner.threads=2").code == 0
    assert run(where, "config", "describe", "broker", "2", "log.cleaner.threads", "--json").rows[0]["value"] == "2"
    assert run(where, "config", "describe", "broker", "1", "log.cleaner.threads", "--json").rows[0]["value"] == "1"
    assert run(where, "config", "alter", "broker", "default", "--set", "log.retention.ms=5000").code == 0
    assert run(where, "config", "describe", "broker", "1", "log.retention.ms", "--json").rows[0]["value"] == "5000"
    assert run(where, "config", "describe", "broker", "one").code == 2
    assert run(where, "config", "alter", "group", "g", "--set", "consumer.session.timeout.ms=50000").code == 0
    assert "50000" in run(where, "config", "describe", "group", "g").out
    assert run(where, "config", "describe", "logger", "1").code == 0
    documented = run(where, "config", "describe", "topic", "__none", "--documentation")
    assert documented.code == 4


def test_cluster_is_described(cluster: Cluster) -> None:
    where = cluster.bootstrap
    described = run(where, "cluster", "describe", "--json").rows[0]
    assert [broker["node"] for broker in described["brokers"]] == [1, 2]
    assert f"cluster {described['cluster_id']}: 2 brokers" in run(where, "cluster", "describe").out
    apis = {row["api"]: row for row in run(where, "cluster", "apis", "--node", 2, "--json").rows}
    assert (apis["Fetch"]["min"], apis["Fetch"]["max"]) == (4, 18)
    assert {row["feature"] for row in run(where, "cluster", "features", "--json").rows} > {"metadata.version"}
    quorum = run(where, "cluster", "quorum", "--json").rows[0]
    assert [(replica["node"], replica["role"]) for replica in quorum["replicas"]] == [(1, "leader"), (2, "observer")]
    assert [row["node"] for row in run(where, "cluster", "log-dirs", "--json").rows] == [1, 2]
    for command in ("apis", "features", "quorum", "log-dirs"):
        assert run(where, "cluster", command).code == 0
    assert run(where, "cluster", "apis", "--node", 7).code == 3
