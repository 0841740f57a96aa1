"""Share partitions when their leader or their share coordinator changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.broker.nodes.membership import move_leader
from ottla.broker.session import Session
from ottla.broker.start import open_cluster
from ottla.cluster.internal_topics import SHARE_GROUP_STATE_TOPIC
from ottla.cluster.server_config import Endpoint, parse_server_properties
from ottla.protocol.errors import ErrorCode
from ottla.server.dispatch import Dispatch
from ottla.shares.partition import ACCEPT
from tests.shares.share_broker import ANN, BOB, ShareBroker, acquired, parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.broker.broker import Broker


class TwoNodes(ShareBroker):
    """Two nodes, one of which gets the requests."""

    asked = 1

    def open(self) -> None:
        configs, advertised = [], {}
        for node in (1, 2):
            self.world.disk.make_dirs(f"/data{node}")
            port = 9091 + node
            text = f"node.id={node}\nlog.dirs=/data{node}\nlisteners=PLAINTEXT://127.0.0.1:{port}\n"
            configs.append(parse_server_properties(text, "server.properties", {}))
            advertised[node] = [Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", port)]
        self.runtime = open_cluster(self.world, configs, advertised)
        self.ask(self.asked)

    def ask(self, node: int) -> None:
        """Send further requests to a node."""
        self.asked = node
        self._dispatch = Dispatch(self.node)
        self._session = Session(1, "PLAINTEXT", "127.0.0.1", 40_000)

    def create(self, name: str, partitions: int = 1) -> None:
        """Create a topic on both nodes, led by the first."""
        self.runtime.create_topic(name, partitions, 2)
        for index in range(partitions):
            self.lead(name, index, 1)

    def lead(self, topic: str, index: int, node: int) -> None:
        """Make a node the leader of a partition."""
        if self.runtime.partitions[topic, index].state.leader != node:
            move_leader(self.runtime, topic, index, node)

    @property
    def node(self) -> Broker:
        return self.runtime.nodes[self.asked]


@pytest.fixture
def talk() -> Iterator[TwoNodes]:
    made = TwoNodes()
    yield made
    made.close()


def test_old_leader_returns_current_leader_hint(talk: TwoNodes) -> None:
    for value in (b"a", b"b", b"c"):
        talk.write(value)
    talk.fetch(ANN, 0, (0,))
    assert talk.acknowledge(ANN, 1, {0: [(1, 1, [ACCEPT])]}) == [ErrorCode.NONE]
    waiting = talk.fetching(BOB, 0, (0,), wait_ms=60_000)
    talk.pause()
    talk.lead("t", 0, 2)
    assert waiting().error_code == 0
    assert len(talk.node.share_partitions) == 0
    response = talk.fetch(ANN, 2)
    assert [part.error_code for part in parts(response)] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert [node_endpoint.node_id for node_endpoint in response.node_endpoints] == [2]
    assert parts(response)[0].current_leader.leader_id == 2
    assert talk.acknowledge(ANN, 3, {0: [(0, 0, [ACCEPT])]}) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    talk.ask(2)
    assert acquired(talk.fetch(ANN, 0, (0,))) == {0: [(0, 0, 1), (2, 2, 1)]}
    assert talk.acknowledge(ANN, 1, {0: [(0, 0, [ACCEPT]), (2, 2, [ACCEPT])]}) == [ErrorCode.NONE]


def test_moved_share_coordinator_is_found(talk: TwoNodes) -> None:
    talk.write(b"a")
    talk.write(b"b")
    talk.fetch(ANN, 0, (0,), max_records=1)
    topic = talk.runtime.image.topic(SHARE_GROUP_STATE_TOPIC)
    assert topic is not None
    for index in topic.partitions:
        talk.lead(SHARE_GROUP_STATE_TOPIC, index, 2 if topic.partitions[index].leader == 1 else 1)
    assert talk.acknowledge(ANN, 1, {0: [(0, 0, [ACCEPT])]}) == [ErrorCode.NONE]
    talk.lead("t", 0, 2)
    talk.ask(2)
    assert acquired(talk.fetch(BOB, 0, (0,))) == {0: [(1, 1, 1)]}
