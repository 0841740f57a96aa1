"""Routes each request to a leader, the controller or a coordinator, refreshes metadata, and retries."""

from __future__ import annotations

import ipaddress
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
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ottla.client.auth import Security
    from ottla.client.connection import Dial
    from ottla.protocol.schema import Message

R = TypeVar("R", bound="Message")
T = TypeVar("T")
TopicPartition = tuple[str, int]

EARLIEST = -2
LATEST = -1
GROUP = 0
TRANSACTION = 1
FOLLOWER_SECONDS = 300.0
"""How long fetches stay with a follower before the leader is asked again: metadata.max.age.ms of Kafka's clients."""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition as Metadata describes it."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as Metadata describes it."""

    name: str
    id: Uuid
    internal: bool
    partitions: dict[int, PartitionInfo]


@dataclass(slots=True)
class _Metadata:
    """The brokers and topics of the last Metadata responses."""

    brokers: dict[int, tuple[str, int]] = field(default_factory=dict)
    controller: int = -1
    cluster_id: str | None = None
    topics: dict[str, TopicInfo] = field(default_factory=dict)


class Client:
    """Connections to the brokers of a cluster, for one thread; `dial` opens their sockets in place of TCP and TLS.

    With a `rack`, fetches go to the replica that the leader names as closest (KIP-392).

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
        dial: Dial | None = None,
        rack: str = "",
    ) -> None:
        listed = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
        self._bootstrap = [parse_address(address) for address in listed if address.strip()]
        if not self._bootstrap:
            raise ValueError("no bootstrap server is given; write host:port, separated by commas")
        self._client_id = client_id
        self._timeout = timeout
        self._security = security
        self._dial = dial
        self._connections: dict[tuple[str, int], BrokerConnection] = {}
        self._metadata = _Metadata()
        self._coordinators: dict[tuple[int, str], int] = {}
        self._rack = rack
        self._followers: dict[TopicPartition, tuple[int, float]] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Metadata.

    def topics(self, names: Iterable[str] | None = None) -> list[TopicInfo]:
        """Return all topics, or those of `names`; raise KafkaError for one that does not exist."""
        response = self.refresh(None if names is None else list(names))
        for topic in response.topics:
            if topic.error_code:
                missing = topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise KafkaError(topic.error_code, f"topic {topic.name}" + (" does not exist" if missing else ""))
        return [self._metadata.topics[topic.name or ""] for topic in response.topics]

    def topic(self, name: str) -> TopicInfo:
        """Return a topic from the cached metadata; request it if it is missing."""
        return self._metadata.topics.get(name) or self.topics([name])[0]

    @property
    def brokers(self) -> dict[int, tuple[str, int]]:
        """Host and port of each broker, by node id."""
        if not self._metadata.brokers:
            self.refresh([])
        return self._metadata.brokers

    @property
    def controller(self) -> int:
        """The node id of the controller."""
        if not self._metadata.brokers:
            self.refresh([])
        return self._metadata.controller

    @property
    def cluster_id(self) -> str | None:
        """The cluster's id."""
        if not self._metadata.brokers:
            self.refresh([])
        return self._metadata.cluster_id

    def refresh(self, names: list[str] | None) -> MetadataResponse:
        """Refresh the metadata of all topics (None), of some, or of the brokers only ([])."""
        request = MetadataRequest(
            topics=None if names is None else [MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=False,
        )
        response = self.to_any(request, MetadataResponse)
        metadata = self._metadata
        metadata.brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        metadata.controller = response.controller_id
        metadata.cluster_id = response.cluster_id
        if names is None:
            metadata.topics.clear()
        for topic in response.topics:
            if topic.error_code or topic.name is None:
                metadata.topics.pop(topic.name or "", None)
                continue
            metadata.topics[topic.name] = TopicInfo(
                topic.name,
                topic.topic_id,
                topic.is_internal,
                {
                    partition.partition_index: PartitionInfo(
                        partition.partition_index,
                        partition.leader_id,
                        partition.leader_epoch,
                        tuple(partition.replica_nodes),
                        tuple(partition.isr_nodes),
                        ErrorCode(partition.error_code),
                    )
                    for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
                },
            )
        return response

    # Routing.

    def to_any(self, request: Message, response: type[R]) -> R:
        """Send to the first broker that answers."""
        failures = []
        known = [*self._connections, *self._metadata.brokers.values(), *self._bootstrap]
        for address in dict.fromkeys(known):
            try:
                return self._connection(address).send(request, response)
            except ConnectionFailedError as error:
                failures.append(str(error))
        raise ConnectionFailedError("; ".join(failures))

    def to_node(self, node: int, request: Message, response: type[R], *, timeout: float | None = None) -> R:
        """Send to a node; raise ConnectionFailedError if the cluster has no such node."""
        return self.node(node).send(request, response, timeout=timeout)

    def node(self, node: int) -> BrokerConnection:
        """Return the connection to a node."""
        if node not in self._metadata.brokers:
            self.refresh([])
        if node not in self._metadata.brokers:
            raise ConnectionFailedError(f"the cluster has no broker {node}, only {sorted(self._metadata.brokers)}")
        return self._connection(self._metadata.brokers[node])

    def to_controller(self, request: Message, response: type[R]) -> R:
        """Send to the controller that Metadata names; to any broker, which forwards, if it names none."""
        controller = self.controller
        if controller not in self._metadata.brokers:
            return self.to_any(request, response)
        return self.to_node(controller, request, response)

    def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition."""
        info = self.topic(topic)
        if partition not in info.partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{topic} has partitions 0 to {len(info.partitions) - 1}, not {partition}",
            )
        leader = info.partitions[partition].leader
        if leader < 0:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition}")
        return leader

    def coordinator(self, key: str, kind: int = GROUP) -> int:
        """Return the coordinator of a group or a transactional id; request it if it is not cached."""
        known = self._coordinators.get((kind, key))
        if known is not None:
            return known

        def find() -> int:
            request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
            if self._any_connection().best_version(10) >= 4:
                request.key = ""
            else:
                request.coordinator_keys = []
            response = self.to_any(request, FindCoordinatorResponse)
            if response.coordinators:
                first = response.coordinators[0]
                code, node, host, port = first.error_code, first.node_id, first.host, first.port
            else:
                code, node, host, port = response.error_code, response.node_id, response.host, response.port
            if code:
                raise KafkaError(code, f"coordinator of {key}")
            self._metadata.brokers.setdefault(node, (host, port))
            return node

        node = self.retrying(find)
        self._coordinators[kind, key] = node
        return node

    def find_coordinators(self, keys: Iterable[str], kind: int = GROUP) -> None:
        """Cache the coordinators of many groups or transactional ids with one request, where the broker allows it.

        A key whose coordinator is not available stays uncached.
        """
        missing = [key for key in dict.fromkeys(keys) if (kind, key) not in self._coordinators]
        if len(missing) < 2:
            return

        def find() -> FindCoordinatorResponse:
            if self._any_connection().best_version(10) < 4:
                return FindCoordinatorResponse()
            return self.to_any(FindCoordinatorRequest(key_type=kind, coordinator_keys=missing), FindCoordinatorResponse)

        for entry in self.retrying(find).coordinators:
            if not entry.error_code:
                self._metadata.brokers.setdefault(entry.node_id, (entry.host, entry.port))
                self._coordinators[kind, entry.key] = entry.node_id

    def forget_coordinator(self, key: str, kind: int = GROUP) -> None:
        """Remove a coordinator from the cache."""
        self._coordinators.pop((kind, key), None)

    def retrying(self, attempt: Callable[[], T], *, topics: Iterable[str] = ()) -> T:
        """Run `attempt` until it succeeds, fails with an error that is not retriable, or the client's timeout is over.

        Between attempts, refresh the metadata of `topics`.
        """
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
            names = list(topics)
            if names:
                self.refresh(names)

    # Offsets and record batches.

    def list_offsets(
        self, topic: str, partitions: Iterable[int], timestamp: int, *, read_committed: bool = False
    ) -> dict[int, tuple[int, int]]:
        """Return offset and timestamp in each partition at a time, at EARLIEST or at LATEST."""
        listed = self.list_topic_offsets({topic: partitions}, timestamp, read_committed=read_committed)
        return {partition: listed_offset for (_, partition), listed_offset in listed.items()}

    def list_topic_offsets(
        self, topics: Mapping[str, Iterable[int]], timestamp: int, *, read_committed: bool = False
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Return offset and timestamp in partitions of several topics, with one request per leader."""
        partitions = {topic: list(numbers) for topic, numbers in topics.items()}

        def attempt() -> dict[tuple[str, int], tuple[int, int]]:
            by_node: dict[int, list[ListOffsetsTopic]] = {}
            for topic, numbers in partitions.items():
                for node, group in self.by_leader(topic, numbers).items():
                    listed = [ListOffsetsPartition(partition_index=p, timestamp=timestamp) for p in group]
                    by_node.setdefault(node, []).append(ListOffsetsTopic(name=topic, partitions=listed))
            offsets: dict[tuple[str, int], tuple[int, int]] = {}
            for node, requested in by_node.items():
                request = ListOffsetsRequest(
                    replica_id=-1, isolation_level=1 if read_committed else 0, topics=requested
                )
                for response in self.to_node(node, request, ListOffsetsResponse).topics:
                    for result in response.partitions:
                        if result.error_code:
                            raise KafkaError(result.error_code, f"{response.name}-{result.partition_index}")
                        offsets[response.name, result.partition_index] = (result.offset, result.timestamp)
            return offsets

        return self.retrying(attempt, topics=list(partitions))

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
        """Fetch whole record batches from these offsets on, with one request per node; return them by partition."""

        def attempt() -> dict[int, PartitionData]:
            fetched: dict[int, PartitionData] = {}
            remaining = list(offsets)
            while remaining:
                again: list[int] = []
                for node, group in self._by_replica(topic, remaining).items():
                    try:
                        partitions = request(node, group)
                    except ConnectionFailedError:
                        if not self._return_to_leader(topic, group):
                            raise
                        again += group
                        continue
                    for data in partitions:
                        if data.error_code and self._return_to_leader(topic, [data.partition_index]):
                            again.append(data.partition_index)
                        elif data.error_code:
                            where = f"{topic}-{data.partition_index} at {offsets[data.partition_index]}"
                            raise KafkaError(data.error_code, where)
                        elif self._follow(topic, data.partition_index, data.preferred_read_replica):
                            again.append(data.partition_index)
                        else:
                            fetched[data.partition_index] = data
                remaining = again
            return fetched

        def request(node: int, group: list[int]) -> list[PartitionData]:
            info = self.topic(topic)
            connection = self.node(node)
            by_id = connection.best_version(1) >= 13 and info.id != ZERO_UUID
            response = connection.send(
                FetchRequest(
                    max_wait_ms=max_wait_ms,
                    min_bytes=min_bytes,
                    max_bytes=max_bytes,
                    isolation_level=1 if read_committed else 0,
                    rack_id=self._rack,
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
                ),
                FetchResponse,
                timeout=self._timeout + max_wait_ms / 1000,
            )
            if response.error_code:
                raise KafkaError(response.error_code, f"fetch from broker {node}")
            return [data for topic_data in response.responses for data in topic_data.partitions]

        return self.retrying(attempt, topics=[topic])

    def _by_replica(self, topic: str, partitions: Iterable[int]) -> dict[int, list[int]]:
        """Return the partitions to fetch from each node: the closest replica that a leader named, else the leader."""
        if not self._followers:
            return self.by_leader(topic, partitions)
        now = time.monotonic()
        grouped: dict[int, list[int]] = {}
        for partition in partitions:
            node, until = self._followers.get((topic, partition), (-1, 0.0))
            if until <= now:
                self._followers.pop((topic, partition), None)
                node = self.leader(topic, partition)
            grouped.setdefault(node, []).append(partition)
        return grouped

    def _follow(self, topic: str, partition: int, node: int) -> bool:
        """Fetch a partition from the replica that its leader named, if it named one (not -1); return whether it did."""
        if node < 0 or (topic, partition) in self._followers:
            return False
        self._followers[topic, partition] = (node, time.monotonic() + FOLLOWER_SECONDS)
        return True

    def _return_to_leader(self, topic: str, partitions: Iterable[int]) -> bool:
        """Fetch partitions from their leaders again; return whether one of them was fetched from a follower."""
        followed = [self._followers.pop((topic, partition), None) for partition in partitions]
        return any(follower is not None for follower in followed)

    def by_leader(self, topic: str, partitions: Iterable[int]) -> dict[int, list[int]]:
        """Return the partitions that each leader leads, by node id."""
        grouped: dict[int, list[int]] = {}
        for partition in partitions:
            grouped.setdefault(self.leader(topic, partition), []).append(partition)
        return grouped

    def _any_connection(self) -> BrokerConnection:
        if not self._connections:
            self.refresh([])
        return next(iter(self._connections.values()))

    def _connection(self, address: tuple[str, int]) -> BrokerConnection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = BrokerConnection(
                *address, client_id=self._client_id, timeout=self._timeout, security=self._security, dial=self._dial
            )
        return connection


def _is_ipv6(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).version == 6
    except ValueError:
        return False


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port`; the port is 9092 if none is given. IPv6 may be in brackets."""
    address = text.strip()
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]") or _is_ipv6(address):
        host, port = address, "9092"
    elif ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r} is not host:port")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not host:port")
    return host.strip("[]") or "localhost", int(port)
