"""CreateTopics (19). v5 is flexible and returns configs, v7 adds topic ids."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.cluster.topics import check_total_partitions
from ottla.cluster.topics import create_topics as plan
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.messages.k19_create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.protocol.errors import ErrorCode


def on_error(request: CreateTopicsRequest, version: int, code: ErrorCode, message: str | None) -> CreateTopicsResponse:
    """Return the error for every topic."""
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(name=topic.name, error_code=code, error_message=message) for topic in request.topics
        ]
    )


def _check_total(call: Call, request: CreateTopicsRequest) -> None:
    check_total_partitions(request.topics, call.broker.runtime.controller.layers)


@api(
    19,
    versions=(2, 7),
    acl=access.per_resource(
        access.on_topic(AclOperation.CREATE),
        access.on_cluster(AclOperation.CREATE),
        access.on_topic(AclOperation.DESCRIBE_CONFIGS),
    ),
    on_error=on_error,
    split=divide_by("topics", size=50, key=attrgetter("name"), check=_check_total),
)
def create_topics(call: Call, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create the valid topics; each topic has its own error."""
    call.check_time(request.timeout_ms)
    runtime = call.broker.runtime
    results, records = plan(
        runtime.image,
        request.topics,
        layers=runtime.controller.layers,
        random=runtime.world.random,
        authorized=lambda name: call.may_cluster(AclOperation.CREATE) or call.may_topic(AclOperation.CREATE, name),
        describable=lambda name: call.may_topic(AclOperation.DESCRIBE_CONFIGS, name),
    )
    if not request.validate_only:
        runtime.change(records)
    return CreateTopicsResponse(topics=results)
