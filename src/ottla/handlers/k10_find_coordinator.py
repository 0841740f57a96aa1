"""FindCoordinator (10): return the broker that coordinates a group, a transactional id or a share partition.

v1 adds transactional ids, v3 is flexible, v4 takes several keys, v5 may return TRANSACTION_ABORTABLE, v6 adds share
groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.internal_topics import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.cluster.security.acls import CLUSTER_RESOURCE_NAME, AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k10_find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.uuids import Uuid
from ottla.shares.environment import SharePartitionKey

if TYPE_CHECKING:
    from ottla.broker.session import Call

GROUP, TRANSACTION, SHARE = 0, 1, 2
FIRST_VERSION_WITH_SHARE = 6
_ERROR_TEXTS = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.INVALID_REQUEST: (
        "This most likely occurs because of a request being malformed by the client library or the message was sent to"
        " an incompatible broker. See the broker logs for more details."
    ),
}


def on_error(
    request: FindCoordinatorRequest, version: int, code: ErrorCode, message: str | None
) -> FindCoordinatorResponse:
    """Return the error for every key."""
    if version < 4:
        return FindCoordinatorResponse(error_code=code, error_message=_error_text(code, message), node_id=-1, port=-1)
    return FindCoordinatorResponse(
        coordinators=[_failure(key, code, _error_text(code, message)) for key in request.coordinator_keys]
    )


@api(
    10,
    versions=(0, 6),
    acl=access.per_resource(
        access.on_group(AclOperation.DESCRIBE),
        access.on_transactional_id(AclOperation.DESCRIBE),
        access.on_cluster(AclOperation.CLUSTER_ACTION),
    ),
    on_error=on_error,
    split=divide_by("coordinator_keys"),
)
def find_coordinator(call: Call, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Return the leader of the partition that stores each key; create the internal topic if it does not exist."""
    if request.key_type not in (GROUP, TRANSACTION, SHARE):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.key_type == SHARE and call.version >= FIRST_VERSION_WITH_SHARE:
        call.require(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)
    if call.version < 4:
        coordinator = _find(call, request.key_type, request.key)
        return FindCoordinatorResponse(
            error_code=coordinator.error_code,
            error_message=_error_text(ErrorCode(coordinator.error_code), None),
            node_id=coordinator.node_id,
            host=coordinator.host,
            port=coordinator.port,
        )
    return FindCoordinatorResponse(
        coordinators=[_find(call, request.key_type, key) for key in request.coordinator_keys]
    )


def _find(call: Call, key_type: int, key: str) -> Coordinator:
    try:
        return _lookup(call, key_type, key)
    except KafkaError as error:
        return _failure(key, error.code, "")


def _lookup(call: Call, key_type: int, key: str) -> Coordinator:
    broker = call.broker
    runtime = broker.runtime
    if key_type == GROUP:
        call.require(AclOperation.DESCRIBE, ResourceType.GROUP, key)
        topic, index = GROUP_METADATA_TOPIC, broker.groups.partition_for(key)
    elif key_type == TRANSACTION:
        call.require(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key)
        topic, index = TRANSACTION_STATE_TOPIC, broker.transactions.partition_for(key)
    elif call.version < FIRST_VERSION_WITH_SHARE:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    else:
        topic, index = SHARE_GROUP_STATE_TOPIC, broker.share_coordinator.partition_for(_share_partition(key))
    if runtime.image.topic(topic) is None:
        runtime.create_topic(topic)
    state = runtime.image.partition(topic, index)
    node = None if state is None else runtime.nodes.get(state.leader)
    endpoint = None if node is None else node.endpoints.get(call.session.listener)
    if node is None or endpoint is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return Coordinator(
        key=key, node_id=node.node_id, host=endpoint.host or "localhost", port=endpoint.port, error_message=""
    )


def _share_partition(key: str) -> SharePartitionKey:
    """Parse group:topic id:partition; the group id may contain colons."""
    group_id, _, partition = key.rpartition(":")
    group_id, _, topic_id = group_id.rpartition(":")
    if not group_id.strip():
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    try:
        return SharePartitionKey(group_id, Uuid.parse(topic_id), int(partition))
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST) from error


def _failure(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)


def _error_text(code: ErrorCode, message: str | None) -> str:
    """Return Kafka's text for an error of the whole response; single keys have no text."""
    return message or _ERROR_TEXTS.get(code, code.name)
