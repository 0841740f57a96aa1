"""Replicas that share one log in a process: leader and ISR after clean stops, kills and starts with fewer nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.broker.nodes.membership import stop_node
from ottla.broker.start import close_cluster, open_cluster
from ottla.cluster.partitions.state import NO_LEADER
from ottla.cluster.server_config import Endpoint, server_config
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from ottla.world.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.cluster.partitions.state import Partition

NODES = (1, 2, 3)
ELIGIBLE_LEADER_REPLICAS = "eligible.leader.replicas.version"


class Nodes:
    """Some nodes on one simulated disk, which can be stopped, killed and started again."""

    def __init__(self) -> None:
        self.world = World.simulated(1)
        self.start()

    def start(self, nodes: Sequence[int] = NODES) -> None:
        """Open the directories of some of the nodes."""
        configs = [
            server_config(
                {
                    "node.id": str(node),
                    "log.dirs": f"/data/node-{node}",
                    "listeners": f"PLAINTEXT://127.0.0.1:{9091 + node}",
                }
            )
            for node in nodes
        ]
        advertised = {node: [Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9091 + node)] for node in nodes}
        self.runtime = open_cluster(self.world, configs, advertised)

    def stop(self) -> None:
        """Stop cleanly."""
        close_cluster(self.runtime)

    def kill(self) -> None:
        """Leave the disk as SIGKILL would."""
        self.runtime.housekeeping.stop()
        for node in self.runtime.nodes.values():
            node.transactions.stop()
            node.share_coordinator.stop()
            for directory in node.directories:
                directory.abandon()

    def write(self, partition: int, value: bytes) -> None:
        """Append a record with acks=all."""
        batch = build_batch([Record(0, self.world.clock.now_ms(), None, value)])
        self.runtime.partitions["t", partition].append(batch)

    def end(self, partition: int) -> int:
        """Return the log end offset of a partition."""
        return self.runtime.partitions["t", partition].log.log_end_offset

    def states(self) -> dict[int, Partition]:
        """Return each partition of the topic as the metadata has it."""
        topic = self.runtime.image.topic("t")
        assert topic is not None
        return topic.partitions


@pytest.fixture
def nodes() -> Nodes:
    nodes = Nodes()
    nodes.runtime.create_topic("t", 3, 3, {"min.insync.replicas": "2"})
    for partition in range(3):
        nodes.write(partition, b"before")
    return nodes


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_replicas_are_in_sync_after_every_restart(nodes: Nodes, way: str) -> None:
    for restart in range(1, 4):
        getattr(nodes, way)()
        nodes.start()
        for partition, state in nodes.states().items():
            assert sorted(state.isr) == list(NODES)
            assert (state.elr, state.last_known_elr, state.leader_recovery_state) == ((), (), 0)
            assert nodes.end(partition) == restart
            nodes.write(partition, b"after")
        assert sorted(state.leader for state in nodes.states().values()) == list(NODES)


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_eligible_leader_replicas_are_in_sync_after_a_restart(nodes: Nodes, way: str) -> None:
    assert nodes.runtime.image.features[ELIGIBLE_LEADER_REPLICAS] == 1
    stop_node(nodes.runtime, 2)
    stop_node(nodes.runtime, 3)
    with pytest.raises(KafkaError) as refusal:
        nodes.write(0, b"too few replicas")
    assert refusal.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    getattr(nodes, way)()
    nodes.start()
    for partition, state in nodes.states().items():
        assert (sorted(state.isr), state.elr) == (list(NODES), ())
        nodes.write(partition, b"after")
        assert nodes.end(partition) == 2


def test_clean_stop_leaves_the_log_owner_as_only_in_sync_replica(nodes: Nodes) -> None:
    owners = {partition: state.leader for partition, state in nodes.states().items()}
    stop_node(nodes.runtime, owners[0])
    assert nodes.states()[0].leader != owners[0]
    nodes.stop()
    for partition, state in nodes.states().items():
        assert {*state.isr, *state.elr} == {owners[partition]}
        assert state.leader == NO_LEADER


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_partition_without_its_log_owner_has_no_leader_until_it_is_back(nodes: Nodes, way: str) -> None:
    owners = {partition: state.leader for partition, state in nodes.states().items()}
    missing = next(partition for partition, owner in owners.items() if owner == 3)
    getattr(nodes, way)()
    nodes.start([1, 2])
    assert nodes.states()[missing].leader == NO_LEADER
    assert nodes.runtime.image.brokers[3].fenced
    getattr(nodes, way)()
    nodes.start()
    for partition, state in nodes.states().items():
        assert (sorted(state.isr), state.leader) == (list(NODES), owners[partition])
        assert nodes.end(partition) == 1
