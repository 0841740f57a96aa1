"""What a test does to a cluster: topics, nodes, disks, leaders, coordinators, timeouts, cleaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ottla.broker.membership import move_leader
from ottla.testing.control import cluster_changes
from ottla.testing.control.rules import check_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from ottla.broker.runtime import BrokerRuntime
    from ottla.cluster.server_config import ServerConfig
    from ottla.server.run import RunningCluster
    from ottla.testing.control.disk import ControlledDisk
    from ottla.testing.control.paused_nodes import HangingNodes
    from ottla.testing.control.rules import Control, Controls

T = TypeVar("T")


class Interventions:
    """The faults and moves of a cluster. Each has happened when its method returns."""

    _running: RunningCluster | None
    _hanging: HangingNodes
    _sync: bool

    if TYPE_CHECKING:

        @property
        def controls(self) -> Controls: ...  # noqa: D102
        @property
        def disk(self) -> ControlledDisk: ...  # noqa: D102
        def call(self, look: Callable[[BrokerRuntime], T]) -> T: ...  # noqa: D102
        def call_async(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T: ...  # noqa: D102
        def _node_config(self, number: int, port: int) -> ServerConfig: ...
        def _attach(self) -> None: ...

    # Topics.

    def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int = 1, configs: Mapping[str, Any] | None = None
    ) -> None:
        """Create a topic without a client; one that is there already stays as it is."""
        texts = config_texts(configs or {})
        self.call(lambda cluster: cluster.create_topic(name, partitions, replication_factor, texts))

    # Nodes.

    def stop_node(self, node: int) -> None:
        """Let a node die: its connections break, its port is closed, others lead what they can of what it led."""
        self.call_async(lambda: self._stop_node(self._known(node)))

    def start_node(self, node: int) -> None:
        """Let a stopped node come back, at the same address, without what it remembered of its clients."""
        self.call_async(lambda: self._start_node(self._known(node)))

    def restart_node(self, node: int) -> None:
        """Let a node die and come back."""
        self.stop_node(node)
        self.start_node(node)

    def add_node(self, port: int = 0) -> int:
        """Take in one more node, which leads nothing yet; returns its id."""

        async def add() -> int:
            number = max(self._nodes.servers) + 1
            await self._nodes.add_node(self._node_config(number, port))
            self._attach()
            return number

        return self.call_async(add)

    def remove_node(self, node: int) -> None:
        """Let a node go for good; the others take over what it held."""
        self.call_async(lambda: self._remove_node(self._known(node)))

    def pause_node(self, node: int) -> None:
        """Let a node hang, as a process after SIGSTOP: clients connect and send, and it reads and answers nothing.

        The timers of its coordinators wait. After `broker.session.timeout.ms` it is fenced: others lead what it led.
        """
        self.call(lambda _: self._hanging.hang(self._nodes, self._known(node)))

    def resume_node(self, node: int) -> None:
        """Let a node that hangs go on, with what has come in and fallen due meanwhile."""
        self.call(lambda _: self._hanging.go_on(self._nodes, self._known(node)))

    def partition_client(self, client_id: str, node: int | None = None) -> Control:
        """Cut a client off from a node, or from all: each request ends its connection, until `remove()`."""
        return self.controls.on(node=node, client_id=client_id, times=None).drop_connection()

    @property
    def _nodes(self) -> RunningCluster:
        assert self._running is not None, "the cluster is not running"
        return self._running

    def _known(self, node: int) -> int:
        if node not in self._nodes.servers:
            raise ValueError(f"there is no node {node}, only {sorted(self._nodes.servers)}")
        return node

    async def _stop_node(self, node: int) -> None:
        await self._nodes.stop_node(node)
        self._hanging.go_on(self._nodes, node, alive=False)

    async def _remove_node(self, node: int) -> None:
        self._hanging.go_on(self._nodes, node)
        await self._nodes.remove_node(node)

    async def _start_node(self, node: int) -> None:
        await self._nodes.start_node(node)
        self._attach()

    # Disks.

    def slow_disk(self, seconds: float, node: int | None = None) -> None:
        """Let each fsync of a node, or of all, take so much longer; 0 ends it.

        Without `sync=True` nothing waits for an fsync; then it is the answers to produce requests that wait so long.
        """
        check_seconds(seconds)
        if node is not None:
            self._known(node)
        if self._sync:
            self.call(lambda cluster: self._slow_syncs(cluster, seconds, node))
            return
        for control in list(self.controls.rules):
            if (
                control.action == "delay response"
                and control.match.where is _is_slow_disk
                and (node is None or control.match.node == node)
            ):
                control.remove()
        if seconds > 0:
            self.controls.on("Produce", node=node, times=None, where=_is_slow_disk).delay_response(seconds)

    def _slow_syncs(self, cluster: BrokerRuntime, seconds: float, node: int | None) -> None:
        for path in _folders(cluster, node):
            if seconds > 0:
                self.disk.sync_seconds[path] = seconds
            else:
                self.disk.sync_seconds.pop(path, None)

    def full_disk(self, node: int | None = None, *, full: bool = True) -> None:
        """Let the disk of a node, or of all, be full: as in Kafka, the first write takes the log directory offline."""

        def change(cluster: BrokerRuntime) -> None:
            for path in _folders(cluster, node):
                if full:
                    self.disk.full.add(path)
                else:
                    self.disk.full.discard(path)

        self.call(change)

    # Leaders and coordinators.

    def move_leader(self, topic: str, partition: int, node: int) -> None:
        """Let a node lead a partition."""
        self.call(lambda cluster: move_leader(cluster, topic, partition, node))

    def shuffle_leaders(self, *topics: str) -> None:
        """Let each partition (of these topics) be led by another node than now."""
        self.call(lambda cluster: cluster_changes.shuffle_leaders(cluster, topics))

    def set_followers(self, topic: str, partition: int, followers: Iterable[int]) -> None:
        """Let these nodes follow a partition."""
        self.call(lambda cluster: cluster_changes.set_followers(cluster, topic, partition, followers))

    def move_coordinator(self, key: str, node: int, kind: str = cluster_changes.GROUP) -> None:
        """Let a node coordinate a group, or (kind "transaction") a transactional id."""
        self.call(lambda cluster: cluster_changes.move_coordinator(cluster, key, node, kind))

    def rehash_coordinators(self) -> None:
        """Let each group and transactional id be coordinated by another node than now."""
        self.call(cluster_changes.rehash_coordinators)

    # Time that has passed.

    def expire_member(self, group: str, member: str | None = None) -> None:
        """Let the session of a member (of all) time out now."""
        self.call(lambda cluster: cluster_changes.expire_member(cluster, group, member))

    def expire_transaction(self, transactional_id: str) -> None:
        """Let an open transaction time out now."""
        self.call(lambda cluster: cluster_changes.expire_transaction(cluster, transactional_id))

    # Logs.

    def roll_segments(self, topic: str | None = None) -> None:
        """Close the active segments of a topic, or of all."""
        self.call(lambda cluster: cluster_changes.roll_segments(cluster, topic))

    def apply_retention(self, topic: str | None = None) -> int:
        """Delete what has outlived its retention, now; returns how many segments went."""
        return self.call(lambda cluster: cluster_changes.apply_retention(cluster, topic))

    def compact(self, topic: str | None = None) -> None:
        """Compact what is to be compacted, now."""
        self.call(lambda cluster: cluster_changes.compact(cluster, topic))


def config_texts(configs: Mapping[str, Any]) -> dict[str, str]:
    """Return configs as strings, as Kafka stores them; tests may write numbers and booleans."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in configs.items()}


def _is_slow_disk(_: object) -> bool:
    return True


def _folders(cluster: BrokerRuntime, node: int | None) -> list[str]:
    if node is not None and node not in cluster.nodes:
        raise ValueError(f"there is no node {node}, only {sorted(cluster.nodes)}")
    nodes = cluster.nodes.values() if node is None else [cluster.nodes[node]]
    return [directory.path for each in nodes for directory in each.directories]
