"""DeleteTopics (20). v4 is flexible, v5 adds error messages, v6 accepts topic ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.cluster.topics import delete_topics as plan
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k20_delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call


def on_error(request: DeleteTopicsRequest, version: int, code: ErrorCode, message: str | None) -> DeleteTopicsResponse:
    """Return the error for every topic."""
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=message)
            for topic in _requested_topics(request, version)
        ]
    )


def _identity(topic: DeleteTopicState | str) -> object:
    return topic if isinstance(topic, str) else (topic.name, topic.topic_id)


@api(
    20,
    versions=(1, 6),
    acl=access.per_resource(
        access.on_topic(AclOperation.DELETE),
        access.on_topic(AclOperation.DESCRIBE),
        access.on_cluster(AclOperation.DELETE),
    ),
    on_error=on_error,
    split=divide_by("topics", "topic_names", size=50, key=_identity),
)
def delete_topics(call: Call, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete the existing topics; each topic has its own error."""
    if not call.broker.config_bool("delete.topic.enable"):
        raise KafkaError(ErrorCode.INVALID_REQUEST if call.version < 3 else ErrorCode.TOPIC_DELETION_DISABLED)
    call.check_time(request.timeout_ms)
    runtime = call.broker.runtime
    all_of_them = call.may_cluster(AclOperation.DELETE)
    results, records = plan(
        runtime.image,
        _requested_topics(request, call.version),
        deletable=lambda name: all_of_them or call.may_topic(AclOperation.DELETE, name),
        describable=lambda name: all_of_them or call.may_topic(AclOperation.DESCRIBE, name),
    )
    runtime.change(records)
    return DeleteTopicsResponse(responses=results)


def _requested_topics(request: DeleteTopicsRequest, version: int) -> list[DeleteTopicState]:
    if version >= 6:
        return request.topics
    return [DeleteTopicState(name=name) for name in request.topic_names]
