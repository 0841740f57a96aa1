"""Faults and administration as methods of `Cluster`: nodes, disks, leaders, coordinators, timeouts, logs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.broker.nodes.membership import move_leader
from ottla.testing.control import cluster_changes
from ottla.testing.control.matching import check_seconds
from ottla.testing.control.producing import NewRecord, append_record

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from ottla.broker.runtime import BrokerRuntime
    from ottla.cluster.server_config import ServerConfig
    from ottla.server.run import RunningCluster
    from ottla.testing.control.disk import FaultyDisk
    from ottla.testing.control.paused_nodes import PausedNodes
    from ottla.testing.control.rules import Rule, Rules

T = TypeVar("T")


class FaultInjector:
    """Injects faults into a running cluster. Each method returns when its effect is complete."""

    _running: RunningCluster | None
    _paused: PausedNodes
    _sync: bool

    if TYPE_CHECKING:

        @property
        def rules(self) -> Rules: ...  # noqa: D102
        @property
        def disk(self) -> FaultyDisk: ...  # noqa: D102
        def call(self, function: Callable[[BrokerRuntime], T]) -> T: ...  # noqa: D102
        def call_async(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T: ...  # noqa: D102
        def _node_config(self, number: int, port: int) -> ServerConfig: ...
        def _intercept_requests(self) -> None: ...

    # Topics

    def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int = 1, configs: Mapping[str, Any] | None = None
    ) -> None:
        """Create a topic without a client; no effect if it exists.

        cluster.create_topic("orders", partitions=3, configs={"cleanup.policy": "compact"})
        """
        texts = config_texts(configs or {})
        self.call(lambda runtime: runtime.create_topic(name, partitions, replication_factor, texts))

    def produce(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: Mapping[str, bytes | str | None] | None = None,
        timestamp_ms: int | None = None,
    ) -> tuple[int, int]:
        """Append a record without a client; return its partition and offset.

        Without `partition`, the key chooses it as Kafka's default partitioner does; a record without a key goes to
        partition 0. Strings are encoded as UTF-8.

            cluster.produce("orders", "two books", key="alice")
        """
        record = NewRecord(topic, _bytes(value), _bytes(key), partition, _header_pairs(headers or {}), timestamp_ms)
        return self.call(lambda cluster: append_record(cluster, record))

    # Nodes

    def stop_node(self, node: int) -> None:
        """Stop a node: its connections break, its port is closed, and ISR members take over its partitions."""
        self.call_async(lambda: self._stop_node(self._check_node(node)))

    def start_node(self, node: int) -> None:
        """Start a stopped node at the same address, without its client sessions."""
        self.call_async(lambda: self._start_node(self._check_node(node)))

    def restart_node(self, node: int) -> None:
        """Stop and start a node."""
        self.stop_node(node)
        self.start_node(node)

    def restart_node_soon(self, node: int) -> None:
        """Start the restart of a node and return at once; to be called on the cluster's own thread."""

        async def restart() -> None:
            await self._stop_node(node)
            await self._start_node(node)

        self._restarting = asyncio.ensure_future(restart())

    def add_node(self, port: int = 0) -> int:
        """Add a node, which leads no partition yet, and return its id; port 0 takes a free port."""

        async def add() -> int:
            number = max(self._nodes.servers) + 1
            await self._nodes.add_node(self._node_config(number, port))
            self._intercept_requests()
            return number

        return self.call_async(add)

    def remove_node(self, node: int) -> None:
        """Remove a node for good; other nodes take over its partitions."""
        self.call_async(lambda: self._remove_node(self._check_node(node)))

    def pause_node(self, node: int) -> None:
        """Pause a node, like SIGSTOP: clients can connect and send, and the node reads and answers nothing.

        The timers of its coordinators stop. After `broker.session.timeout.ms` it is fenced and loses its leaderships.
        """
        self.call(lambda _: self._paused.pause(self._nodes, self._check_node(node)))

    def resume_node(self, node: int) -> None:
        """Resume a paused node: it handles what it received meanwhile and runs the timers that became due."""
        self.call(lambda _: self._paused.resume(self._nodes, self._check_node(node)))

    def partition_client(self, client_id: str, node: int | None = None) -> Rule:
        """Disconnect a client at every request to a node, or to all nodes, until `Rule.remove()`."""
        return self.rules.on(node=node, client_id=client_id, times=None).drop_connection()

    @property
    def _nodes(self) -> RunningCluster:
        assert self._running is not None, "the cluster is not running"
        return self._running

    def _check_node(self, node: int) -> int:
        if node not in self._nodes.servers:
            raise ValueError(f"there is no node {node}, only {sorted(self._nodes.servers)}")
        return node

    async def _stop_node(self, node: int) -> None:
        await self._nodes.stop_node(node)
        self._paused.resume(self._nodes, node, unfence=False)

    async def _remove_node(self, node: int) -> None:
        self._paused.resume(self._nodes, node)
        await self._nodes.remove_node(node)

    async def _start_node(self, node: int) -> None:
        await self._nodes.start_node(node)
        self._intercept_requests()

    # Disks

    def slow_disk(self, seconds: float, node: int | None = None) -> None:
        """Delay each fsync of a node, or of all nodes; 0 ends the delay.

        Without `Cluster(sync=True)` no response waits for an fsync; then Produce responses are delayed instead.
        """
        check_seconds(seconds)
        if node is not None:
            self._check_node(node)
        if self._sync:
            self.call(lambda runtime: self._delay_syncs(runtime, seconds, node))
            return
        for rule in list(self.rules.active):
            if (
                rule.action == "delay_response"
                and rule.match.where is _is_slow_disk
                and (node is None or rule.match.node == node)
            ):
                rule.remove()
        if seconds > 0:
            self.rules.on("Produce", node=node, times=None, where=_is_slow_disk).delay_response(seconds)

    def _delay_syncs(self, runtime: BrokerRuntime, seconds: float, node: int | None) -> None:
        for path in _log_directories(runtime, node):
            if seconds > 0:
                self.disk.sync_seconds[path] = seconds
            else:
                self.disk.sync_seconds.pop(path, None)

    def full_disk(self, node: int | None = None, *, full: bool = True) -> None:
        """Fill the disk of a node, or of all nodes: as in Kafka, the next write takes the log directory offline."""

        def change(runtime: BrokerRuntime) -> None:
            for path in _log_directories(runtime, node):
                if full:
                    self.disk.full.add(path)
                else:
                    self.disk.full.discard(path)

        self.call(change)

    # Leaders and coordinators

    def move_leader(self, topic: str, partition: int, node: int) -> None:
        """Make a node the leader of a partition."""
        self.call(lambda runtime: move_leader(runtime, topic, partition, node))

    def shuffle_leaders(self, *topics: str) -> None:
        """Move the leader of every partition of these topics (of all without any) to another node."""
        self.call(lambda runtime: cluster_changes.shuffle_leaders(runtime, topics))

    def set_followers(self, topic: str, partition: int, followers: Iterable[int]) -> None:
        """Make these nodes the followers of a partition, in sync with its leader."""
        self.call(lambda runtime: cluster_changes.set_followers(runtime, topic, partition, followers))

    def move_coordinator(self, key: str, node: int, kind: str = cluster_changes.GROUP) -> None:
        """Make a node the coordinator of a group, or with kind "transaction" of a transactional id."""
        self.call(lambda runtime: cluster_changes.move_coordinator(runtime, key, node, kind))

    def rehash_coordinators(self) -> None:
        """Move the coordinator of every group and transactional id to another node."""
        self.call(cluster_changes.rehash_coordinators)

    # Timeouts

    def expire_member(self, group: str, member: str | None = None) -> None:
        """Expire the session of a member, or of all members of a group, as its session timeout would."""
        self.call(lambda runtime: cluster_changes.expire_member(runtime, group, member))

    def expire_transaction(self, transactional_id: str) -> None:
        """Time out an open transaction, as `transaction.timeout.ms` would."""
        self.call(lambda runtime: cluster_changes.expire_transaction(runtime, transactional_id))

    # Logs

    def roll_segments(self, topic: str | None = None) -> None:
        """Roll the active segments of a topic, or of all topics."""
        self.call(lambda runtime: cluster_changes.roll_segments(runtime, topic))

    def apply_retention(self, topic: str | None = None) -> int:
        """Delete segments beyond their retention now, and return how many were deleted."""
        return self.call(lambda runtime: cluster_changes.apply_retention(runtime, topic))

    def compact(self, topic: str | None = None) -> None:
        """Compact a topic, or all compacted topics, now."""
        self.call(lambda runtime: cluster_changes.compact(runtime, topic))


def config_texts(configs: Mapping[str, Any]) -> dict[str, str]:
    """Return configs as strings, as Kafka stores them; tests may write numbers and booleans."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in configs.items()}


def _bytes(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _header_pairs(headers: Mapping[str, bytes | str | None]) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, _bytes(value)) for name, value in headers.items())


def _is_slow_disk(_: object) -> bool:
    """Match every request; as the condition of a rule it marks the rules of `slow_disk`."""
    return True


def _log_directories(runtime: BrokerRuntime, node_id: int | None) -> list[str]:
    if node_id is not None and node_id not in runtime.nodes:
        raise ValueError(f"there is no node {node_id}, only {sorted(runtime.nodes)}")
    nodes = runtime.nodes.values() if node_id is None else [runtime.nodes[node_id]]
    return [directory.path for node in nodes for directory in node.directories]
