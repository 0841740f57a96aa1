"""What a test asks a cluster. How its state is read is loaded when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ottla.events import KINDS
from ottla.testing.control import cluster_changes
from ottla.testing.control.rules import api_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ottla.broker.runtime import BrokerRuntime
    from ottla.events import Event, RecentEvents
    from ottla.server.run import RunningCluster
    from ottla.testing.control import state
    from ottla.testing.control.requests import SeenRequest
    from ottla.testing.control.rules import Api, Controls

T = TypeVar("T")
_ABSENT = object()


class StateReading:
    """The readings of a cluster. All are snapshots; what they show may be over when they are looked at."""

    _recent: RecentEvents
    _running: RunningCluster | None

    if TYPE_CHECKING:

        @property
        def controls(self) -> Controls: ...  # noqa: D102
        def call(self, look: Callable[[BrokerRuntime], T]) -> T: ...  # noqa: D102

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return self.call(lambda cluster: cluster.cluster_id)

    def nodes(self) -> dict[int, str]:
        """The nodes that run, with the address at which clients reach each."""

        def look(cluster: BrokerRuntime) -> dict[int, str]:
            return {
                node_id: "{0.host}:{0.port}".format(next(iter(node.endpoints.values())))
                for node_id, node in sorted(cluster.nodes.items())
                if cluster.image.broker_is_active(node_id)
            }

        return self.call(look)

    def topics(self) -> list[str]:
        """The names of all topics, the broker's own included, in the order of creation."""
        return self.call(lambda cluster: list(cluster.image.topic_ids))

    def partition(self, topic: str, index: int = 0) -> state.PartitionState:
        """One partition as it is now; KeyError if there is none."""
        from ottla.testing.control.state import read_partition

        return self.call(lambda cluster: read_partition(cluster, topic, index))

    def partitions(self, topic: str) -> list[state.PartitionState]:
        """All partitions of a topic; KeyError if there is no such topic."""
        from ottla.testing.control.state import read_partition

        def look(cluster: BrokerRuntime) -> list[state.PartitionState]:
            found = [index for name, index in cluster.partitions if name == topic]
            if not found:
                raise KeyError(f"there is no topic {topic}")
            return [read_partition(cluster, topic, index) for index in sorted(found)]

        return self.call(look)

    def records(self, topic: str, index: int = 0) -> list[state.StoredRecord]:
        """All records of a partition, those of open and aborted transactions too, control records left out."""
        from ottla.testing.control.state import read_records

        return self.call(lambda cluster: read_records(cluster, topic, index))

    def groups(self) -> list[state.GroupState]:
        """All groups."""
        from ottla.testing.control.state import read_groups

        return self.call(read_groups)

    def group(self, group_id: str) -> state.GroupState:
        """One group; KeyError if there is none."""
        for group in self.groups():
            if group.group_id == group_id:
                return group
        raise KeyError(f"there is no group {group_id}")

    def transactions(self) -> list[state.TransactionState]:
        """All transactional ids, with what their producers are doing."""
        from ottla.testing.control.state import read_transactions

        return self.call(read_transactions)

    def transaction(self, transactional_id: str) -> state.TransactionState:
        """One transactional id; KeyError if there is none."""
        for transaction in self.transactions():
            if transaction.transactional_id == transactional_id:
                return transaction
        raise KeyError(f"there is no transactional id {transactional_id}")

    def coordinator(self, key: str, kind: str = cluster_changes.GROUP) -> int:
        """The node that coordinates a group, or (kind "transaction") a transactional id."""
        return self.call(lambda cluster: cluster_changes.coordinator_of(cluster, key, kind))

    def sessions(self) -> list[state.SessionState]:
        """All fetch sessions."""
        from ottla.testing.control.state import read_sessions

        return self.call(read_sessions)

    def connections(self) -> list[state.ConnectionState]:
        """All connections."""
        from ottla.testing.control.state import read_connections

        running = self._running
        return self.call(lambda _: read_connections(running.servers if running is not None else {}))

    def requests(
        self,
        api: Api | Collection[Api] | None = None,
        *,
        node: int | None = None,
        client_id: str | None = None,
        where: Callable[[SeenRequest], bool] | None = None,
    ) -> list[SeenRequest]:
        """The last requests that came, oldest first; `.request` of each is the decoded message."""
        keys = api_keys(api)
        found = [
            seen
            for seen in self.call(lambda _: list(self.controls.seen))
            if (keys is None or seen.api_key in keys)
            and (node is None or seen.node == node)
            and (client_id is None or seen.client_id == client_id)
        ]
        return found if where is None else [seen for seen in found if where(seen)]

    def events(self, *kinds: str, **fields: Any) -> list[Event]:
        """The last events, of some kinds, with these fields (docs/events.md); all there are without any."""
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown:
            raise ValueError(f"there are no events {', '.join(unknown)}; docs/events.md lists them")
        return [
            event
            for event in self.call(lambda _: list(self._recent))
            if (not kinds or event["kind"] in kinds)
            and all(event.get(name, _ABSENT) == value for name, value in fields.items())
        ]

    def report(self, most: int = 40) -> str:
        """What a person wants to see when a test has failed: the last events, groups and transactions, as text."""
        from ottla.testing.control.report import cluster_report

        return cluster_report(self, most)
