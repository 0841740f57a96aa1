"""Kafka's tool for share groups against ottla, and ottla's against Kafka, with KafkaShareConsumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.testing import Cluster
from tests.cli.live import run

from .apache_kafka import SHARE_GROUPS, run_tool
from .java_client import JavaClients, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop

GROUP = "sharers"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(topics=["jobs:2"]) as running:
        yield running


def test_share_groups_tool_works(cluster: Cluster, java_clients: JavaClients, kafka_jvm: object) -> None:
    def tool(*arguments: str) -> str:
        return run_tool(SHARE_GROUPS, "--bootstrap-server", cluster.bootstrap, *arguments)

    def offsets() -> dict[str, tuple[str, str]]:
        """Start offset and lag by partition."""
        lines = [line.split() for line in tool("--describe", "--offsets", "--group", GROUP).splitlines()]
        return {line[2]: (line[3], line[4]) for line in lines if line[:2] == [GROUP, "jobs"]}

    with java_clients.producer(cluster.bootstrap) as producer:
        producer.send([Record("jobs", b"%d" % number, partition=number % 2) for number in range(20)])
    # A group that is not there yet may be told where to begin.
    reset = ("--reset-offsets", "--group", GROUP, "--topic", "jobs", "--to-earliest")
    tool(*reset, "--execute")
    assert offsets() == {"0": ("0", "10"), "1": ("0", "10")}
    settings = {"group_id": GROUP, "share_acknowledgement_mode": "explicit"}
    with java_clients.share_consumer(cluster.bootstrap, **settings) as consumer:
        consumer.subscribe("jobs")
        assert len(consumer.poll(min_records=20, acknowledge="ACCEPT")) == 20
        listed = {tuple(line.split()) for line in tool("--list", "--state").splitlines() if GROUP in line}
        assert listed == {(GROUP, "Stable")}
        members = [line.split() for line in tool("--describe", "--members", "--group", GROUP).splitlines()]
        assert [line[-1] for line in members if line[:1] == [GROUP]] == ["jobs:0,1"]
        assert "Stable" in tool("--describe", "--state", "--group", GROUP)
    # Where the group begins moves on with the next write, as in Kafka; what is complete until then counts for the lag.
    assert {offset_name: lag for offset_name, (_, lag) in offsets().items()} == {"0": "0", "1": "0"}
    assert "Successful" in tool("--delete-offsets", "--group", GROUP, "--topic", "jobs")
    assert offsets() == {}
    assert "success" in tool("--delete", "--group", GROUP)
    assert GROUP not in tool("--list")


def test_ottla_commands_manage_share_groups_of_kafka(apache_kafka: ApacheKafka, java_clients: JavaClients) -> None:
    where = apache_kafka.bootstrap

    def offsets() -> dict[str, str]:
        """Start offsets by partition, as Kafka's tool tells them."""
        tool = apache_kafka.tool(SHARE_GROUPS, "--describe", "--offsets", "--group", "moved", check=False)
        lines = [line.split() for line in tool.splitlines()]
        return {line[2]: line[3] for line in lines if line[:2] == ["moved", "moved-jobs"]}

    java_clients.admin(where).create_topic("moved-jobs", 2)
    with java_clients.producer(where) as producer:
        producer.send(
            [
                Record("moved-jobs", b"%d" % number, partition=number % 2, timestamp=1_700_000_000_000 + number * 1000)
                for number in range(20)
            ]
        )
    reset = ("group", "reset-offsets", "moved", "--topic", "moved-jobs")
    shown = run(where, *reset, "--share", "--to-latest", "--json").rows
    assert [(row["old"], row["new"]) for row in shown] == [(None, 10), (None, 10)]
    assert offsets() == {}
    assert run(where, *reset, "--share", "--to-latest", "--execute").code == 0
    assert offsets() == {"0": "10", "1": "10"}
    assert run(where, *reset, "--to-time", "1700000010000", "--execute").code == 0
    assert offsets() == {"0": "5", "1": "5"}
    assert run(where, *reset, "--to-earliest", "--execute").code == 0
    settings = {"group_id": "moved", "share_acknowledgement_mode": "explicit"}
    with java_clients.share_consumer(where, **settings) as consumer:
        consumer.subscribe("moved-jobs")
        assert len(consumer.poll(min_records=20, acknowledge="ACCEPT")) == 20
        assert run(where, *reset, "--to-earliest", "--execute").code == 1
    assert run(where, "group", "delete", "moved", "--offsets-of", "moved-jobs").code == 0
    assert offsets() == {}
    assert run(where, "group", "delete", "moved").code == 0
