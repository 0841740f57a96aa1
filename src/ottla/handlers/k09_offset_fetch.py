"""OffsetFetch (9): return the committed offsets of groups.

v2 may request all topics and has a group error, v5 adds leader epochs, v6 is flexible, v7 adds require_stable
(KIP-447), v8 takes several groups, v9 adds the member, v10 identifies topics by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.groups import error_responses
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import map_response, request_context
from ottla.handlers.splitting import divide_by
from ottla.pending import Pending, wait_for_all
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ottla.protocol.uuids import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.session import Call

FIRST_VERSION_WITH_GROUPS = 8
FIRST_VERSION_WITH_TOPIC_IDS = 10


def on_error(request: OffsetFetchRequest, version: int, code: ErrorCode, message: str | None) -> OffsetFetchResponse:
    """Return the error for every group."""
    return _response(
        [error_responses.offset_fetch(group, version, code) for group in _groups(request, version)], version
    )


@api(
    9,
    versions=(1, 10),
    acl=access.per_resource(access.on_group(AclOperation.DESCRIBE), access.on_topic(AclOperation.DESCRIBE)),
    on_error=on_error,
    split=divide_by("groups.topics.partition_indexes", "topics.partition_indexes"),
)
def offset_fetch(call: Call, request: OffsetFetchRequest) -> OffsetFetchResponse | Pending[OffsetFetchResponse]:
    """Return the offsets of each group."""
    groups = [_fetch(call, group, request.require_stable) for group in _groups(request, call.version)]
    return wait_for_all(groups, lambda fetched: _response(fetched, call.version))


def _fetch(
    call: Call, group: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup | Pending[OffsetFetchResponseGroup]:
    if not call.may(AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id):
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    all_topics = group.topics is None
    unknown = _resolve_ids(call, group)
    unauthorized = _remove_unauthorized(call, group)

    def complete(response: OffsetFetchResponseGroup) -> OffsetFetchResponseGroup:
        if response.error_code != ErrorCode.NONE:
            return response
        if all_topics and call.version >= FIRST_VERSION_WITH_TOPIC_IDS:
            _add_ids(call, response)
        if all_topics:
            response.topics = [
                topic for topic in response.topics if call.may_topic(AclOperation.DESCRIBE, _topic_name(call, topic))
            ]
        for topics, code in (
            (unknown, ErrorCode.UNKNOWN_TOPIC_ID),
            (unauthorized, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ):
            response.topics += [
                OffsetFetchResponseTopics(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=error_responses.offset_fetch_partitions(topic.partition_indexes, code),
                )
                for topic in topics
            ]
        return response

    response = call.broker.groups.fetch_offsets(request_context(call), group, require_stable=require_stable)
    return map_response(response, complete)


def _resolve_ids(call: Call, group: OffsetFetchRequestGroup) -> list[OffsetFetchRequestTopics]:
    """Set the names of topics that are given by id; remove and return unknown ids."""
    if group.topics is None or call.version < FIRST_VERSION_WITH_TOPIC_IDS:
        return []
    resolved, unknown = [], []
    for topic in group.topics:
        existing = call.broker.runtime.image.topics.get(topic.topic_id)
        if existing is None:
            unknown.append(topic)
        else:
            topic.name = existing.name
            resolved.append(topic)
    group.topics = resolved
    return unknown


def _remove_unauthorized(call: Call, group: OffsetFetchRequestGroup) -> list[OffsetFetchRequestTopics]:
    """Remove and return the topics that the caller may not describe."""
    if group.topics is None:
        return []
    unauthorized = [topic for topic in group.topics if not call.may_topic(AclOperation.DESCRIBE, topic.name)]
    if unauthorized:
        group.topics = [topic for topic in group.topics if call.may_topic(AclOperation.DESCRIBE, topic.name)]
    return unauthorized


def _topic_name(call: Call, topic: OffsetFetchResponseTopics) -> str:
    existing = call.broker.runtime.image.topics.get(topic.topic_id)
    return topic.name if existing is None else existing.name


def _add_ids(call: Call, response: OffsetFetchResponseGroup) -> None:
    """Set the ids of topics; remove deleted topics, which have none."""
    for topic in response.topics:
        existing = call.broker.runtime.image.topic(topic.name)
        topic.topic_id = ZERO_UUID if existing is None else existing.id
    response.topics = [topic for topic in response.topics if topic.topic_id != ZERO_UUID]


def _groups(request: OffsetFetchRequest, version: int) -> list[OffsetFetchRequestGroup]:
    """Return the requested groups; before v8 there is one."""
    if version >= FIRST_VERSION_WITH_GROUPS:
        return request.groups
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return [OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)]


def _response(groups: list[OffsetFetchResponseGroup], version: int) -> OffsetFetchResponse:
    if version >= FIRST_VERSION_WITH_GROUPS:
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )
