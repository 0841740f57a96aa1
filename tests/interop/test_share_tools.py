"""Kafka's command-line tool for share groups against ottla, with a KafkaShareConsumer that reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.testing import Cluster

from .apache_kafka import SHARE_GROUPS, run_tool
from .java_client import JavaClients, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.interop

GROUP = "sharers"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(topics=["jobs:2"]) as running:
        yield running


def test_the_tool_for_share_groups(cluster: Cluster, java_clients: JavaClients, kafka_jvm: object) -> None:
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
    consumer = java_clients.share_consumer(cluster.bootstrap, group_id=GROUP, share_acknowledgement_mode="explicit")
    consumer.subscribe("jobs")
    assert len(consumer.poll(min_records=20, timeout_ms=60_000, acknowledge="ACCEPT")) == 20
    listed = {tuple(line.split()) for line in tool("--list", "--state").splitlines() if GROUP in line}
    assert listed == {(GROUP, "Stable")}
    members = [line.split() for line in tool("--describe", "--members", "--group", GROUP).splitlines()]
    assert [line[-1] for line in members if line[:1] == [GROUP]] == ["jobs:0,1"]
    assert "Stable" in tool("--describe", "--state", "--group", GROUP)
    consumer.close()
    # Where the group begins moves on with the next write, as in Kafka; what is complete until then counts for the lag.
    assert {place: lag for place, (_, lag) in offsets().items()} == {"0": "0", "1": "0"}
    assert "Successful" in tool("--delete-offsets", "--group", GROUP, "--topic", "jobs")
    assert offsets() == {}
    assert "success" in tool("--delete", "--group", GROUP)
    assert GROUP not in tool("--list")
