"""CreatePartitions (37): add partitions to topics. v2 is flexible."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.cluster.topics import create_partitions as plan
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call


def on_error(
    request: CreatePartitionsRequest, version: int, code: ErrorCode, message: str | None
) -> CreatePartitionsResponse:
    """Return the error for every topic."""
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message)
            for topic in request.topics
        ]
    )


@api(
    37,
    versions=(0, 3),
    acl=access.per_resource(access.on_topic(AclOperation.ALTER)),
    on_error=on_error,
    split=divide_by("topics", size=50, key=attrgetter("name")),
)
def create_partitions(call: Call, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """Add the partitions; each topic has its own error."""
    call.check_time(request.timeout_ms)
    runtime = call.broker.runtime
    counts = Counter(topic.name for topic in request.topics)
    refused = [name for name, count in counts.items() if count == 1 and not call.may_topic(AclOperation.ALTER, name)]
    results, records = plan(
        runtime.image, [topic for topic in request.topics if topic.name not in refused], random=runtime.world.random
    )
    results += [
        CreatePartitionsTopicResult(name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=None)
        for name in refused
    ]
    if not request.validate_only:
        runtime.change(records)
    return CreatePartitionsResponse(results=results)
