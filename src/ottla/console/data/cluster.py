"""Brokers, features, quorum and log directories of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.client.connection import ConnectionFailedError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.k35_describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from ottla.protocol.messages.k55_describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RequestPartitionData,
    RequestTopicData,
)

if TYPE_CHECKING:
    from ottla.client.client import Client

METADATA_TOPIC: Final = "__cluster_metadata"


@dataclass(slots=True)
class LogDirectory:
    """A log directory of a broker."""

    path: str
    error: str | None
    partitions: int
    bytes: int
    total_bytes: int | None
    usable_bytes: int | None


@dataclass(slots=True)
class BrokerInfo:
    """A broker with what it leads and stores."""

    node: int
    host: str
    port: int
    rack: str | None
    controller: bool
    leads: int = 0
    replicas: int = 0
    directories: list[LogDirectory] = field(default_factory=list)
    problem: str = ""
    """Why the broker's directories are not known."""

    @property
    def bytes(self) -> int | None:
        """The size of all logs of the broker; None if it is not known."""
        return None if self.problem else sum(directory.bytes for directory in self.directories)


@dataclass(slots=True)
class QuorumReplica:
    """A voter or observer of the metadata quorum."""

    node: int
    role: str
    log_end_offset: int
    lag: int | None


@dataclass(slots=True)
class ClusterInfo:
    """What the cluster page shows."""

    cluster_id: str | None
    controller: int
    brokers: list[BrokerInfo]
    topics: int
    partitions: int
    offline: int
    """Partitions without a leader."""
    under_replicated: int
    features: list[tuple[str, int, int, int]]
    """Name, finalized, lowest and highest supported version."""
    quorum: list[QuorumReplica]
    problems: list[str]
    """What the cluster refused to tell, one sentence each."""


def describe_cluster(client: Client) -> ClusterInfo:
    """Return the cluster's brokers, features and quorum; parts that are refused become `problems`."""
    problems: list[str] = []
    answer = client.refresh(None)
    racks = {broker.node_id: broker.rack for broker in answer.brokers}
    controller = client.controller
    brokers = {
        node: BrokerInfo(node, host, port, racks.get(node), node == controller)
        for node, (host, port) in sorted(client.brokers.items())
    }
    partitions = offline = under_replicated = 0
    for topic in answer.topics:
        for partition in topic.partitions:
            partitions += 1
            offline += partition.leader_id < 0
            under_replicated += len(partition.isr_nodes) < len(partition.replica_nodes)
            if partition.leader_id in brokers:
                brokers[partition.leader_id].leads += 1
            for node in partition.replica_nodes:
                if node in brokers:
                    brokers[node].replicas += 1
    for broker in brokers.values():
        try:
            broker.directories = log_directories(client, broker.node)
        except (KafkaError, ConnectionFailedError) as error:
            broker.problem = str(error)
            problems.append(f"log directories of broker {broker.node}: {error}")
    return ClusterInfo(
        client.cluster_id,
        controller,
        list(brokers.values()),
        len(answer.topics),
        partitions,
        offline,
        under_replicated,
        _features(client),
        _quorum(client, problems),
        problems,
    )


def log_directories(client: Client, node: int) -> list[LogDirectory]:
    """Return the log directories of a broker."""
    answer = client.to_node(node, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
    if answer.error_code:
        raise KafkaError(answer.error_code, f"broker {node}")
    directories = []
    for result in answer.results:
        sizes = [partition.partition_size for topic in result.topics for partition in topic.partitions]
        directories.append(
            LogDirectory(
                result.log_dir,
                ErrorCode(result.error_code).name if result.error_code else None,
                len(sizes),
                sum(sizes),
                result.total_bytes if result.total_bytes >= 0 else None,
                result.usable_bytes if result.usable_bytes >= 0 else None,
            )
        )
    return directories


def _features(client: Client) -> list[tuple[str, int, int, int]]:
    request = ApiVersionsRequest(client_software_name="ottla", client_software_version="1")
    answer = client.to_any(request, ApiVersionsResponse)
    finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    return [
        (feature.name, finalized.get(feature.name, 0), feature.min_version, feature.max_version)
        for feature in sorted(answer.supported_features, key=lambda feature: feature.name)
    ]


def _quorum(client: Client, problems: list[str]) -> list[QuorumReplica]:
    request = DescribeQuorumRequest(
        topics=[RequestTopicData(topic_name=METADATA_TOPIC, partitions=[RequestPartitionData(partition_index=0)])]
    )
    try:
        answer = client.to_controller(request, DescribeQuorumResponse)
        if answer.error_code:
            raise KafkaError(answer.error_code, answer.error_message)
        partition = answer.topics[0].partitions[0]
        if partition.error_code:
            raise KafkaError(partition.error_code, partition.error_message)
    except KafkaError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:  # Kafka with ZooKeeper has no quorum
            problems.append(f"metadata quorum: {error}")
        return []
    return [
        QuorumReplica(
            replica.replica_id,
            "leader" if replica.replica_id == partition.leader_id else role,
            replica.log_end_offset,
            partition.high_watermark - replica.log_end_offset if partition.high_watermark >= 0 else None,
        )
        for role, replicas in (("voter", partition.current_voters), ("observer", partition.observers))
        for replica in replicas
    ]


def api_versions(client: Client, node: int) -> list[tuple[int, str, int, int]]:
    """Return key, name, lowest and highest version of the APIs that a broker supports."""
    from ottla.protocol.api import find_api

    rows = []
    for key, versions in sorted(client.node(node).versions.items()):
        api = find_api(key)
        rows.append((key, api.name if api is not None else "unknown", versions[0], versions[-1]))
    return rows


def ping(client: Client) -> str | None:
    """Ask for the brokers; return the cluster id."""
    client.refresh([])
    return client.cluster_id
