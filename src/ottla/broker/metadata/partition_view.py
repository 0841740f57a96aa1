"""Partitions as clients of one listener see them: the leader that they can reach, and replicas that are offline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.partitions.change import has_online_directory
from ottla.cluster.partitions.state import NO_LEADER
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.runtime import BrokerRuntime
    from ottla.cluster.partitions.state import Partition


class PartitionView:
    """Describes partitions as Kafka's KRaftMetadataCache does, for one request."""

    __slots__ = ("_listener_errors", "_reachable", "directory_offline", "runtime")

    def __init__(self, runtime: BrokerRuntime, listener: str, *, listener_errors: bool) -> None:
        self.runtime = runtime
        self._reachable = {broker[0] for broker in runtime.reachable_brokers(listener)}
        self._listener_errors = listener_errors
        self.directory_offline = any(
            not directory.online for node in runtime.nodes.values() for directory in node.directories
        )

    def leader(self, state: Partition) -> tuple[int, ErrorCode]:
        """Return the leader and NONE, or NO_LEADER and the reason why clients of the listener have none."""
        if state.leader in self._reachable:
            return state.leader, ErrorCode.NONE
        if self._listener_errors and state.leader in self.runtime.image.brokers:
            return NO_LEADER, ErrorCode.LISTENER_NOT_FOUND
        return NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE

    def offline_replicas(self, state: Partition) -> list[int]:
        """Return the replicas on brokers that are not reachable, and those on an offline log directory."""
        offline = [replica for replica in state.replicas if replica not in self._reachable]
        if self.directory_offline:
            image = self.runtime.image
            offline += [
                replica
                for replica, directory in zip(state.replicas, state.directories, strict=True)
                if replica in self._reachable and not has_online_directory(image, replica, directory)
            ]
        return offline
