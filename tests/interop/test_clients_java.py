"""Kafka's command-line tools and Java Admin client against ottla."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from . import apache_kafka as tools
from .java_client import CALL_SECONDS, WAIT_MS, JavaClients, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.ottla_node import OttlaNode

    from .jvm import Jvm

pytestmark = pytest.mark.interop

PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}


@pytest.fixture(scope="module")
def ottla(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    from tests.ottla_node import OttlaNode

    with OttlaNode(tmp_path_factory.mktemp("java-tools") / "data", settings=SETTINGS, log_level="warn") as node:
        yield node


@pytest.fixture
def tool(ottla: OttlaNode, java_clients: JavaClients) -> Callable[..., str]:
    """One of Kafka's tools with `--bootstrap-server` set."""

    def run(main: str, *args: str) -> str:
        return java_clients.tool(main, "--bootstrap-server", ottla.bootstrap, *args)

    return run


def test_topics_and_configs_tools_work(tool: Callable[..., str]) -> None:
    tool(tools.TOPICS, "--create", "--topic", "made", "--partitions", "3", "--config", "retention.ms=60000")
    assert "made" in tool(tools.TOPICS, "--list").split()
    described = tool(tools.TOPICS, "--describe", "--topic", "made")
    assert "PartitionCount: 3" in described
    assert "retention.ms=60000" in described
    assert len(re.findall(r"Partition: \d+\tLeader: 1\tReplicas: 1\tIsr: 1", described)) == 3
    tool(tools.TOPICS, "--alter", "--topic", "made", "--partitions", "5")
    assert "PartitionCount: 5" in tool(tools.TOPICS, "--describe", "--topic", "made")
    tool(tools.CONFIGS, "--alter", "--topic", "made", "--add-config", "cleanup.policy=[compact,delete]")
    assert "cleanup.policy=compact,delete" in tool(tools.CONFIGS, "--describe", "--topic", "made")
    tool(tools.CONFIGS, "--alter", "--topic", "made", "--delete-config", "retention.ms")
    assert "retention.ms=60000" not in tool(tools.CONFIGS, "--describe", "--topic", "made")
    assert "log.retention.hours" in tool(tools.CONFIGS, "--describe", "--broker", "1", "--all")
    tool(tools.TOPICS, "--delete", "--topic", "made")
    assert "made" not in tool(tools.TOPICS, "--list").split()


def test_console_producer_and_consumer_round_trip(ottla: OttlaNode, kafka_jvm: Jvm, tool: Callable[..., str]) -> None:
    tool(tools.TOPICS, "--create", "--topic", "console", "--partitions", "1")
    options = ("--bootstrap-server", ottla.bootstrap, "--topic", "console")
    written = "".join(f"key{number}:value {number}\n" for number in range(100)).encode()
    kafka_jvm.run(
        tools.CONSOLE_PRODUCER,
        *options,
        "--reader-property",
        "parse.key=true",
        "--reader-property",
        "key.separator=:",
        stdin=written,
    )
    output = kafka_jvm.run(
        tools.CONSOLE_CONSUMER,
        *options,
        "--from-beginning",
        "--max-messages",
        "100",
        "--timeout-ms",
        "300000",
        "--group",
        "console-group",
        "--formatter-property",
        "print.key=true",
    ).stdout
    assert output == written.decode().replace(":", "\t")
    assert "console-group" in tool(tools.CONSUMER_GROUPS, "--list")
    described = tool(tools.CONSUMER_GROUPS, "--describe", "--group", "console-group")
    rows = [line.split()[1:6] for line in described.splitlines() if line.startswith("console-group")]
    assert rows == [["console", "0", "100", "100", "0"]], described
    moved = tool(
        tools.CONSUMER_GROUPS,
        "--reset-offsets",
        "--group",
        "console-group",
        "--all-topics",
        "--shift-by",
        "-30",
        "--execute",
    )
    assert re.search(r"console-group\s+console\s+0\s+70", moved), moved
    assert "console:0:100" in tool(tools.GET_OFFSETS, "--topic", "console")
    tool(tools.CONSUMER_GROUPS, "--delete", "--group", "console-group")
    assert "console-group" not in tool(tools.CONSUMER_GROUPS, "--list")


def test_performance_producer_runs(ottla: OttlaNode, java_clients: JavaClients, tool: Callable[..., str]) -> None:
    tool(tools.TOPICS, "--create", "--topic", "performance", "--partitions", "3")
    printed = java_clients.tool(
        PERFORMANCE,
        "--topic",
        "performance",
        "--num-records",
        "50000",
        "--record-size",
        "200",
        "--throughput",
        "-1",
        "--producer-props",
        f"bootstrap.servers={ottla.bootstrap}",
        "compression.type=lz4",
        "request.timeout.ms=120000",
        "delivery.timeout.ms=600000",
        "max.block.ms=300000",
    )
    assert "50000 records sent" in printed, printed
    ends = re.findall(r"performance:\d:(\d+)", tool(tools.GET_OFFSETS, "--topic", "performance"))
    assert sum(map(int, ends)) == 50_000


def test_operator_tools_print_expected_output(ottla: OttlaNode, kafka_jvm: Jvm) -> None:
    def tool(main: str, *words: str) -> str:  # some of these end their JVM, whatever they are told
        return kafka_jvm.run(main, "--bootstrap-server", ottla.bootstrap, *words).stdout

    assert "Produce(0): 0 to 13" in tool(tools.API_VERSIONS)
    assert re.search(r"metadata.version\s+.*SupportedMaxVersion: 4.3-IV0", tool(tools.FEATURES, "describe"))
    assert re.search(r"LeaderId:\s+1", tool(tools.METADATA_QUORUM, "describe", "--status"))
    assert '"error":null' in tool(tools.LOG_DIRS, "--describe").replace(" ", "")
    output = kafka_jvm.run(CLUSTER, "cluster-id", "--bootstrap-server", ottla.bootstrap).stdout
    assert ottla.cluster_id in output


def test_java_producer_commits_and_aborts(
    ottla: OttlaNode, java_clients: JavaClients, tool: Callable[..., str]
) -> None:
    admin = java_clients.admin(ottla.bootstrap)
    admin.create_topic("java-txn", 2)
    with java_clients.producer(ottla.bootstrap, transactional_id="java-1") as producer:
        producer.init_transactions()
        producer.begin()
        producer.send([Record("java-txn", b"yes", partition=0), Record("java-txn", b"yes", partition=1)])
        assert re.search(r"java-1\s+\d+\s+\d+\s+Ongoing", tool(tools.TRANSACTIONS, "list"))
        described = tool(tools.TRANSACTIONS, "describe", "--transactional-id", "java-1")
        assert "java-txn-0,java-txn-1" in described
        producer.commit()
        producer.begin()
        producer.send([Record("java-txn", b"no", partition=0)])
        producer.abort()
    read = java_clients.read_all(ottla.bootstrap, ["java-txn"], isolation_level="read_committed")
    assert [record.value for record in read] == [b"yes", b"yes"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_java_consumers_form_group(
    ottla: OttlaNode, java_clients: JavaClients, protocol: str, tool: Callable[..., str]
) -> None:
    topic, group = f"java-{protocol}", f"java-group-{protocol}"
    java_clients.admin(ottla.bootstrap).create_topic(topic, 2)
    settings = {"group_id": group, "group_protocol": protocol}
    with (
        java_clients.consumer(ottla.bootstrap, **settings) as one,
        java_clients.consumer(ottla.bootstrap, **settings) as two,
    ):
        waiting = []
        for entry in (one, two):
            entry.subscribe(topic)
            waiting.append(entry.call_later("await_assignment", count=1, timeout_ms=WAIT_MS))
        assert sorted(position for entry in waiting for position in entry.result(CALL_SECONDS)) == [
            f"{topic}:0",
            f"{topic}:1",
        ]
        members = tool(tools.CONSUMER_GROUPS, "--describe", "--group", group, "--members")
        assert members.count(f"{group} ") == 2, members
