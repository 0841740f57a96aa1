"""Conversations about streams groups with Apache Kafka and ottla: equal responses, equal records."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.conversations.side_by_side import Talk, assert_alike
from tests.conversations.streams.catalogue import (
    ALL,
    CONVERSATIONS,
    RECORDINGS,
    SETTINGS,
    counting,
    hold,
    wander,
)
from tests.conversations.streams.talk import StreamsGroupTalk

from .apache_kafka import STREAMS_GROUPS
from .java_client import KafkaClientError, Record
from .pair import Pair, both_brokers, segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.ottla_node import OttlaNode

    from .apache_kafka import ApacheKafka
    from .java_client import JavaClients

pytestmark = pytest.mark.interop
GROUP = "tools"


@pytest.fixture(scope="module")
def pair(kafka_jvm: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair[StreamsGroupTalk]]:
    with both_brokers(tmp_path_factory.mktemp("streams"), SETTINGS) as nodes:
        yield Pair(
            nodes,
            lambda node: StreamsGroupTalk(Talk(node.bootstrap, str(node.log_dir)), lambda: segments(node.log_dir)),
            hold,
        )


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_both_answer_and_write_alike(pair: Pair[StreamsGroupTalk], name: str) -> None:
    pair.assert_alike(name)


@pytest.mark.parametrize("seed", range(10, 20))
def test_share_group_conversations_match(pair: Pair[StreamsGroupTalk], seed: int) -> None:
    def walk(talk: StreamsGroupTalk, topic: str) -> None:
        wander(talk, topic, Random(seed))

    held = {broker: talk.hold(f"wandering-{seed}", walk) for broker, talk in pair.talks.items()}
    assert_alike(held["Kafka"], held["ottla"])


def test_kafka_answers_as_recorded(pair: Pair[StreamsGroupTalk]) -> None:
    """OTTLA_WRITE_FIXTURES=1 writes the recordings."""
    pair.assert_recorded(CONVERSATIONS, RECORDINGS)


class Desk:
    """Kafka's admin client and its tool for streams groups, told one broker's way from the other's by nothing."""

    def __init__(self, node: ApacheKafka | OttlaNode, clients: JavaClients) -> None:
        self._node, self._clients = node, clients
        self._admin = clients.admin(node.bootstrap)
        self.told: list[Any] = []

    def ask(self, action: str, **arguments: Any) -> None:
        """Have the admin client do something."""
        try:
            response = self._admin.call(action, **arguments)
        except KafkaClientError as error:
            response = [error.name, error.message]
        self.told.append([action, json.loads(self._anywhere(json.dumps(response)))])

    def tool(self, *arguments: str) -> None:
        """Run kafka-streams-groups.sh."""
        printed = self._clients.tool(
            STREAMS_GROUPS, "--bootstrap-server", self._node.bootstrap, *arguments, check=False
        )
        lines = [" ".join(line.split()) for line in self._anywhere(printed).splitlines()]
        if arguments[0] == "--list":  # of other conversations' members, some may just have been late
            lines = [line for line in lines if line.startswith(GROUP)]
        self.told.append([arguments, sorted(line for line in lines if line)])

    def _anywhere(self, text: str) -> str:
        return text.replace(str(self._node.port), "9092")


def administer(node: ApacheKafka | OttlaNode, talk: StreamsGroupTalk, clients: JavaClients) -> list[Any]:
    """Everything that can be asked and done about a group that counts, with a member and without."""
    name, desk = GROUP, Desk(node, clients)
    talk.create(name, 4)
    with clients.producer(node.bootstrap) as producer:
        producer.send([Record(name, b"%d" % number, partition=number % 4) for number in range(20)])
    talk.streams_join(name, "m-1", counting(name), tags={"zone": "a"}, endpoint=("host", 1234))
    desk.ask("describe_streams_groups", groups=[name])
    desk.tool("--describe", "--group", name, "--state")
    talk.until_topics(**{f"{name}-repartition": 4, f"{name}-changelog": 4})
    talk.until_ready(name, "m-1")
    talk.streams(name, "m-1", active={"0": ALL, "1": ALL})
    talk.commit(name, {(name, 0): 3, (name, 1): 5}, member="m-1", generation=talk.epoch(name, "m-1"))
    desk.ask("describe_streams_groups", groups=[name])
    desk.ask("list_streams_group_offsets", groups=[name])
    desk.ask("alter_streams_group_offsets", group=name, offsets={f"{name}:0": 1})
    desk.ask("delete_streams_group_offsets", group=name, partitions=[f"{name}:0"])
    desk.ask("delete_streams_groups", groups=[name])
    for more in ([], ["--state"], ["--members"], ["--offsets"], ["--members", "--verbose"], ["--state", "--verbose"]):
        desk.tool("--describe", "--group", name, *more)
    desk.tool("--reset-offsets", "--group", name, "--all-input-topics", "--to-earliest", "--dry-run")
    talk.streams(name, "m-1", epoch=-1)
    desk.ask("describe_streams_groups", groups=[name, f"{name}-none"])
    desk.tool("--list", "--state", "Empty")
    desk.ask("alter_streams_group_offsets", group=name, offsets={f"{name}:0": 2, f"{name}:2": 4})
    desk.ask("delete_streams_group_offsets", group=name, partitions=[f"{name}:2"])
    desk.ask("list_streams_group_offsets", groups=[name])
    desk.tool("--reset-offsets", "--group", name, "--input-topic", name, "--to-latest", "--dry-run")
    desk.tool("--reset-offsets", "--group", name, "--all-input-topics", "--to-earliest", "--execute")
    desk.tool("--describe", "--group", name, "--offsets")
    desk.tool("--delete-offsets", "--group", name, "--input-topic", name)
    desk.ask("list_streams_group_offsets", groups=[name])
    desk.tool("--delete", "--group", name)
    desk.ask("describe_streams_groups", groups=[name])
    topics = clients.admin(node.bootstrap).call("list_topics")
    desk.told.append(sorted(topic for topic in topics if topic.startswith(name)))
    return desk.told


def test_admin_client_and_tool_agree(pair: Pair[StreamsGroupTalk], java_clients: JavaClients) -> None:
    response = {broker: administer(node, pair.talks[broker], java_clients) for broker, node in pair.nodes.items()}
    kafkas, ottlas = (
        {f"{number:02} {entry[0]}": entry for number, entry in enumerate(response[name])} for name in response
    )
    assert_alike(kafkas, ottlas)
