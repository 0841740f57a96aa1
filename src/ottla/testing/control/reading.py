"""The state of a cluster as methods of `Cluster`. The code that reads it is imported on first use."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from ottla.events import KINDS
from ottla.testing.control import cluster_changes
from ottla.testing.control.matching import api_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ottla.broker.runtime import BrokerRuntime
    from ottla.events import Event, RecentEvents
    from ottla.schemas.registry_client import RegistryClient
    from ottla.server.run import RunningCluster
    from ottla.testing.control import state
    from ottla.testing.control.matching import Api
    from ottla.testing.control.requests import ReceivedRequest
    from ottla.testing.control.rules import Rules
    from ottla.testing.decoding import DecodedRecord

T = TypeVar("T")
_ABSENT = object()
WAIT_SECONDS = 0.01


class StateReader:
    """Reads the state of a running cluster without a client. Results are snapshots: they do not change later."""

    _recent: RecentEvents
    _running: RunningCluster | None

    if TYPE_CHECKING:

        @property
        def rules(self) -> Rules: ...  # noqa: D102
        def call(self, function: Callable[[BrokerRuntime], T]) -> T: ...  # noqa: D102

    @property
    def cluster_id(self) -> str:
        """The cluster id."""
        return self.call(lambda runtime: runtime.cluster_id)

    def nodes(self) -> dict[int, str]:
        """Return the running nodes: node id to `host:port` of its first listener."""

        def read(runtime: BrokerRuntime) -> dict[int, str]:
            return {
                node_id: "{0.host}:{0.port}".format(next(iter(node.endpoints.values())))
                for node_id, node in sorted(runtime.nodes.items())
                if runtime.image.broker_is_active(node_id)
            }

        return self.call(read)

    def topics(self) -> list[str]:
        """Return the names of all topics, internal ones included, in order of creation."""
        return self.call(lambda runtime: list(runtime.image.topic_ids))

    def partition(self, topic: str, partition: int = 0) -> state.PartitionState:
        """Return the leader, ISR and offsets of one partition; KeyError if it does not exist."""
        from ottla.testing.control.state import read_partition

        return self.call(lambda runtime: read_partition(runtime, topic, partition))

    def partitions(self, topic: str) -> list[state.PartitionState]:
        """Return all partitions of a topic; KeyError if it does not exist."""
        from ottla.testing.control.state import read_partition

        def read(runtime: BrokerRuntime) -> list[state.PartitionState]:
            indexes = [index for name, index in runtime.partitions if name == topic]
            if not indexes:
                raise KeyError(f"there is no topic {topic}")
            return [read_partition(runtime, topic, index) for index in sorted(indexes)]

        return self.call(read)

    @overload
    def records(
        self, topic: str, partition: int = 0, *, decode: Literal[False] = False
    ) -> list[state.StoredRecord]: ...

    @overload
    def records(self, topic: str, partition: int = 0, *, decode: Literal[True] | str) -> list[DecodedRecord]: ...

    def records(
        self, topic: str, partition: int = 0, *, decode: bool | str = False
    ) -> list[state.StoredRecord] | list[DecodedRecord]:
        """Return all records of a partition up to the log end offset, without control records.

        Records of open and aborted transactions are included.

            assert [record.value for record in cluster.records("orders")] == [b"two books"]

        With `decode` keys and values that were written with a schema registry are plain Python values; the others stay
        bytes. True uses the cluster's own registry, a URL another one.

            assert cluster.records("orders", decode=True)[0].value == {"id": "o-1"}
        """
        from ottla.testing.control.state import read_records

        stored = self.call(lambda runtime: read_records(runtime, topic, partition))
        if decode is False:
            return stored
        from ottla.testing.decoding import decode_records

        return decode_records(stored, self._schema_client(decode), f"{topic}-{partition}")

    def _schema_client(self, decode: bool | str) -> RegistryClient:
        """Return the client of the registry that has the schemas of records."""
        from ottla.schemas.registry_client import RegistryClient

        if not isinstance(decode, str):
            raise RuntimeError("decode=True requires a registry: use Cluster(registry=True), or decode=URL")
        return RegistryClient(decode)

    def wait_for_records(
        self, topic: str, count: int, *, partition: int | None = None, timeout: float = 60.0
    ) -> list[state.StoredRecord]:
        """Wait until a topic, or one partition of it, has this many records, and return them by partition and offset.

        Raise TimeoutError after `timeout` seconds.

            orders = cluster.wait_for_records("orders", 3)
        """
        end = time.monotonic() + timeout
        while True:
            indexes = [state.partition for state in self.partitions(topic)] if partition is None else [partition]
            records = [record for index in indexes for record in self.records(topic, index)]
            if len(records) >= count:
                return records
            if time.monotonic() > end:
                raise TimeoutError(f"{topic} has {len(records)} of {count} records after {timeout:g} s")
            time.sleep(WAIT_SECONDS)

    def groups(self) -> list[state.GroupState]:
        """Return all groups: classic, consumer, share and streams."""
        from ottla.testing.control.state import read_groups

        return self.call(read_groups)

    def group(self, group_id: str) -> state.GroupState:
        """Return one group with its members and committed offsets; KeyError if it does not exist.

        assert cluster.group("billing").offsets["orders", 0] == 1
        """
        for group in self.groups():
            if group.group_id == group_id:
                return group
        raise KeyError(f"there is no group {group_id}")

    def transactions(self) -> list[state.TransactionState]:
        """Return the state of all transactional ids."""
        from ottla.testing.control.state import read_transactions

        return self.call(read_transactions)

    def transaction(self, transactional_id: str) -> state.TransactionState:
        """Return the state of one transactional id; KeyError if it does not exist."""
        for transaction in self.transactions():
            if transaction.transactional_id == transactional_id:
                return transaction
        raise KeyError(f"there is no transactional id {transactional_id}")

    def coordinator(self, key: str, kind: str = cluster_changes.GROUP) -> int:
        """Return the node that coordinates a group, or with kind "transaction" a transactional id."""
        return self.call(lambda runtime: cluster_changes.find_coordinator(runtime, key, kind))

    def sessions(self) -> list[state.SessionState]:
        """Return all fetch sessions (KIP-227)."""
        from ottla.testing.control.state import read_sessions

        return self.call(read_sessions)

    def connections(self) -> list[state.ConnectionState]:
        """Return all client connections."""
        from ottla.testing.control.state import read_connections

        running = self._running
        return self.call(lambda _: read_connections(running.servers if running is not None else {}))

    def requests(
        self,
        api: Api | Collection[Api] | None = None,
        *,
        node: int | None = None,
        client_id: str | None = None,
        where: Callable[[ReceivedRequest], bool] | None = None,
    ) -> list[ReceivedRequest]:
        """Return the last requests (at most 10,000), oldest first; `.request` of each is the decoded message.

        (produce,) = cluster.requests("Produce", client_id="shop")
        assert produce.request.acks == -1
        """
        keys = api_keys(api)
        requests = self.call(lambda _: self.rules.received.select(keys, node, client_id))
        return requests if where is None else [received for received in requests if where(received)]

    def events(self, *kinds: str, **fields: Any) -> list[Event]:
        """Return the last events of these kinds (all without any) with these field values; see docs/events.md.

        assert cluster.events("timeout", group="billing")
        """
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown:
            raise ValueError(f"unknown kinds of events: {', '.join(unknown)}; docs/events.md lists them")
        return [
            event
            for event in self.call(lambda _: list(self._recent))
            if (not kinds or event["kind"] in kinds)
            and all(event.get(name, _ABSENT) == value for name, value in fields.items())
        ]

    def report(self, max_events: int = 40) -> str:
        """Return topics, groups, transactions and the last events as text, for a failed test."""
        from ottla.testing.control.report import cluster_report

        return cluster_report(self, max_events)
