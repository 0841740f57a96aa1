"""Sends each request where it belongs: a leader, the controller, a coordinator; and tries again where Kafka says so."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from ottla.client.connection import BrokerConnection, ConnectionFailedError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from ottla.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.schema import ZERO_UUID, Uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ottla.client.auth import Security
    from ottla.protocol.schema import Message

R = TypeVar("R", bound="Message")
T = TypeVar("T")

EARLIEST = -2
LATEST = -1
GROUP = 0
TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Where a partition is."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the cluster describes it."""

    name: str
    id: Uuid
    internal: bool
    partitions: dict[int, PartitionInfo]


@dataclass(slots=True)
class _View:
    """What the last Metadata answers said."""

    brokers: dict[int, tuple[str, int]] = field(default_factory=dict)
    controller: int = -1
    cluster_id: str | None = None
    topics: dict[str, TopicInfo] = field(default_factory=dict)


class Client:
    """A connection to a cluster, for one thread.

    >>> with Client("localhost:9092") as client:  # doctest: +SKIP
    ...     for topic in client.topics():
    ...         print(topic.name, len(topic.partitions))
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "ottla",
        timeout: float = 30.0,
        security: Security | None = None,
    ) -> None:
        listed = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
        self._bootstrap = [parse_address(each) for each in listed if each.strip()]
        if not self._bootstrap:
            raise ValueError("no bootstrap server is given; write host:port, several with commas between")
        self._client_id = client_id
        self._timeout = timeout
        self._security = security
        self._connections: dict[tuple[str, int], BrokerConnection] = {}
        self._view = _View()
        self._coordinators: dict[tuple[int, str], int] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up everywhere."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # What the cluster looks like.

    def topics(self, names: Iterable[str] | None = None) -> list[TopicInfo]:
        """All topics, or those named; KafkaError for one that is not there."""
        answer = self.refresh(None if names is None else list(names))
        found = []
        for topic in answer.topics:
            if topic.error_code:
                raise KafkaError(topic.error_code, f"topic {topic.name}")
            found.append(self._view.topics[topic.name or ""])
        return found

    def topic(self, name: str) -> TopicInfo:
        """One topic, from memory if it is known."""
        return self._view.topics.get(name) or self.topics([name])[0]

    @property
    def brokers(self) -> dict[int, tuple[str, int]]:
        """Node id to host and port."""
        if not self._view.brokers:
            self.refresh([])
        return self._view.brokers

    @property
    def controller(self) -> int:
        """The node that admin requests go to."""
        if not self._view.brokers:
            self.refresh([])
        return self._view.controller

    @property
    def cluster_id(self) -> str | None:
        """The cluster's id."""
        if not self._view.brokers:
            self.refresh([])
        return self._view.cluster_id

    def refresh(self, names: list[str] | None) -> MetadataResponse:
        """Ask for metadata anew: of all topics (None), of some, or of none but the brokers ([])."""
        request = MetadataRequest(
            topics=None if names is None else [MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=False,
        )
        answer = self.to_any(request, MetadataResponse)
        view = self._view
        view.brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        view.controller = answer.controller_id
        view.cluster_id = answer.cluster_id
        if names is None:
            view.topics.clear()
        for topic in answer.topics:
            if topic.error_code or topic.name is None:
                view.topics.pop(topic.name or "", None)
                continue
            view.topics[topic.name] = TopicInfo(
                topic.name,
                topic.topic_id,
                topic.is_internal,
                {
                    each.partition_index: PartitionInfo(
                        each.partition_index,
                        each.leader_id,
                        each.leader_epoch,
                        tuple(each.replica_nodes),
                        tuple(each.isr_nodes),
                        ErrorCode(each.error_code),
                    )
                    for each in sorted(topic.partitions, key=lambda each: each.partition_index)
                },
            )
        return answer

    # Where requests go.

    def to_any(self, request: Message, response: type[R], **options: float) -> R:
        """Send to whichever broker answers."""
        failures = []
        known = [*self._connections, *self._view.brokers.values(), *self._bootstrap]
        for address in dict.fromkeys(known):
            try:
                return self._connection(address).send(request, response, timeout=options.get("timeout"))
            except ConnectionFailedError as error:
                failures.append(str(error))
        raise ConnectionFailedError("; ".join(failures))

    def to_node(self, node: int, request: Message, response: type[R], *, timeout: float | None = None) -> R:
        """Send to one node."""
        return self.node(node).send(request, response, timeout=timeout)

    def node(self, node: int) -> BrokerConnection:
        """The connection to one node."""
        if node not in self._view.brokers:
            self.refresh([])
        if node not in self._view.brokers:
            raise ConnectionFailedError(f"the cluster has no broker {node}, only {sorted(self._view.brokers)}")
        return self._connection(self._view.brokers[node])

    def to_controller(self, request: Message, response: type[R], *, timeout: float | None = None) -> R:
        """Send to the controller (any broker forwards, but one must be asked)."""
        controller = self.controller
        if controller not in self._view.brokers:
            return self.to_any(request, response)
        return self.to_node(controller, request, response, timeout=timeout)

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads a partition."""
        info = self.topic(topic)
        found = info.partitions.get(partition)
        if found is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{topic} has partitions 0 to {len(info.partitions) - 1}, not {partition}",
            )
        if found.leader < 0:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition}")
        return found.leader

    def coordinator(self, key: str, kind: int = GROUP) -> int:
        """The node that coordinates a group (or a transactional id)."""
        known = self._coordinators.get((kind, key))
        if known is not None:
            return known

        def find() -> int:
            request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
            connection_version = self._any_connection().best_version(10)
            if connection_version >= 4:
                request.key = ""
            else:
                request.coordinator_keys = []
            answer = self.to_any(request, FindCoordinatorResponse)
            if answer.coordinators:
                found = answer.coordinators[0]
                code, node, host, port = found.error_code, found.node_id, found.host, found.port
            else:
                code, node, host, port = answer.error_code, answer.node_id, answer.host, answer.port
            if code:
                raise KafkaError(code, f"coordinator of {key}")
            self._view.brokers.setdefault(node, (host, port))
            return node

        node = self.retrying(find)
        self._coordinators[kind, key] = node
        return node

    def forget_coordinator(self, key: str, kind: int = GROUP) -> None:
        """Ask again next time."""
        self._coordinators.pop((kind, key), None)

    def retrying(self, attempt: Callable[[], T], *, topics: Iterable[str] = ()) -> T:
        """Do something again while Kafka's error says that this may help, with fresh metadata, until the time is up."""
        end = time.monotonic() + self._timeout
        pause = 0.05
        while True:
            try:
                return attempt()
            except KafkaError as error:
                if not error.retriable or time.monotonic() + pause > end:
                    raise
            except ConnectionFailedError:
                if time.monotonic() + pause > end:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 1.0)
            stale = list(topics)
            if stale:
                self.refresh(stale)

    # Offsets and bytes.

    def list_offsets(
        self, topic: str, partitions: Iterable[int], timestamp: int, *, read_committed: bool = False
    ) -> dict[int, tuple[int, int]]:
        """Offset and timestamp per partition at a time, or at EARLIEST or LATEST."""
        wanted = list(partitions)

        def attempt() -> dict[int, tuple[int, int]]:
            found: dict[int, tuple[int, int]] = {}
            for node, group in self.by_leader(topic, wanted).items():
                request = ListOffsetsRequest(
                    replica_id=-1,
                    isolation_level=1 if read_committed else 0,
                    topics=[
                        ListOffsetsTopic(
                            name=topic,
                            partitions=[ListOffsetsPartition(partition_index=p, timestamp=timestamp) for p in group],
                        )
                    ],
                )
                for each in self.to_node(node, request, ListOffsetsResponse).topics[0].partitions:
                    if each.error_code:
                        raise KafkaError(each.error_code, f"{topic}-{each.partition_index}")
                    found[each.partition_index] = (each.offset, each.timestamp)
            return found

        return self.retrying(attempt, topics=[topic])

    def fetch(
        self,
        topic: str,
        offsets: dict[int, int],
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 50 * 1024 * 1024,
        partition_max_bytes: int = 1024 * 1024,
        read_committed: bool = False,
    ) -> dict[int, PartitionData]:
        """Whole record batches from the given offsets on, by partition; each leader is asked once."""

        def attempt() -> dict[int, PartitionData]:
            info = self.topic(topic)
            found: dict[int, PartitionData] = {}
            for node, group in self.by_leader(topic, list(offsets)).items():
                connection = self.node(node)
                by_id = connection.best_version(1) >= 13 and info.id != ZERO_UUID
                request = FetchRequest(
                    max_wait_ms=max_wait_ms,
                    min_bytes=min_bytes,
                    max_bytes=max_bytes,
                    isolation_level=1 if read_committed else 0,
                    topics=[
                        FetchTopic(
                            topic="" if by_id else topic,
                            topic_id=info.id if by_id else ZERO_UUID,
                            partitions=[
                                FetchPartition(
                                    partition=p,
                                    fetch_offset=offsets[p],
                                    partition_max_bytes=partition_max_bytes,
                                    current_leader_epoch=info.partitions[p].leader_epoch,
                                )
                                for p in group
                            ],
                        )
                    ],
                )
                answer = connection.send(request, FetchResponse, timeout=self._timeout + max_wait_ms / 1000)
                if answer.error_code:
                    raise KafkaError(answer.error_code, f"fetch from broker {node}")
                for each in answer.responses:
                    for data in each.partitions:
                        if data.error_code:
                            raise KafkaError(
                                data.error_code, f"{topic}-{data.partition_index} at {offsets[data.partition_index]}"
                            )
                        found[data.partition_index] = data
            return found

        return self.retrying(attempt, topics=[topic])

    def by_leader(self, topic: str, partitions: Iterable[int]) -> dict[int, list[int]]:
        """The partitions of a topic that each node leads."""
        grouped: dict[int, list[int]] = {}
        for partition in partitions:
            grouped.setdefault(self.leader(topic, partition), []).append(partition)
        return grouped

    # Inside.

    def _any_connection(self) -> BrokerConnection:
        if not self._connections:
            self.refresh([])
        return next(iter(self._connections.values()))

    def _connection(self, address: tuple[str, int]) -> BrokerConnection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = BrokerConnection(
                *address, client_id=self._client_id, timeout=self._timeout, security=self._security
            )
        return connection


def parse_address(text: str) -> tuple[str, int]:
    """Read `host:port`; the port is 9092 if none is given."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or host.endswith(":") or (host and host.count(":") and not host.endswith("]")):
        host, port = text.strip(), "9092"
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not host:port")
    return host.strip("[]") or "localhost", int(port)
