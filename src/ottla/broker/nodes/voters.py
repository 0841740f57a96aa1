"""Voters of the metadata quorum: endpoints, and the checks of requests that change them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.cluster.features import KRAFT_VERSION
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.runtime import BrokerRuntime
    from ottla.protocol.schema import Uuid


# Where Apache Kafka's controller would listen; Kafka corrects it when it opens the directory.
CONTROLLER_ENDPOINT: Final = ("CONTROLLER", "localhost", 9093)


def check_quorum_id(runtime: BrokerRuntime, cluster_id: str | None) -> None:
    """Raise INCONSISTENT_CLUSTER_ID for a request to another cluster."""
    if cluster_id is not None and cluster_id != runtime.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f'The given id "{cluster_id}" doesn\'t match the cluster id "{runtime.cluster_id}"',
        )


def check_can_change_voters(runtime: BrokerRuntime, doing: str) -> None:
    """Raise UNSUPPORTED_VERSION for static voters (kraft.version 0)."""
    level = runtime.metadata.kraft_version
    if level < 1:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Cluster doesn't support {doing} voter because the {KRAFT_VERSION} feature is {level}",
        )


def voter_endpoints(runtime: BrokerRuntime) -> tuple[tuple[str, str, int], ...]:
    """Return listener name, host and port of the voter, as the VotersRecord or `controller.quorum.voters` has them."""
    controller = runtime.controller
    for voter in runtime.metadata.voters:
        if voter.id == controller.node_id and voter.endpoints:
            return voter.endpoints
    config = controller.server_config
    name = config.values.get("controller.listener.names", CONTROLLER_ENDPOINT[0]).split(",")[0].strip()
    voters = config.value("controller.quorum.voters")
    for text in voters if isinstance(voters, tuple) else ():
        voter_id, _, address = text.partition("@")
        host, _, port = address.rpartition(":")
        if voter_id.strip() == str(controller.node_id) and port.isdigit():
            return ((name, host, int(port)),)
    return (CONTROLLER_ENDPOINT,)


def replica_key(node_id: int, directory_id: Uuid) -> str:
    """Return a voter as Kafka's messages show it."""
    shown = "<undefined>" if directory_id == ZERO_UUID else str(directory_id)
    return f"ReplicaKey(id={node_id}, directoryId={shown})"


def voter_keys(runtime: BrokerRuntime) -> str:
    """Return all voters as Kafka's messages show them."""
    return "[" + ", ".join(replica_key(voter.id, voter.directory_id) for voter in runtime.metadata.voters) + "]"
