"""OffsetFetch (9): how far groups have read.

v2 may ask for all topics and has an error for the group, v5 adds leader epochs, v6 is flexible, v7 may ask for stable
offsets only (KIP-447), v8 asks for many groups, v9 adds the member, v10 names topics by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation, ResourceType
from ottla.groups import error_responses
from ottla.groups.coordinator import wait_for_all
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import request_context, then
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
    from ottla.pending import Pending

FIRST_VERSION_WITH_GROUPS = 8
FIRST_VERSION_WITH_TOPIC_IDS = 10


def on_error(request: OffsetFetchRequest, version: int, code: ErrorCode, message: str | None) -> OffsetFetchResponse:
    """No group could be asked."""
    return _response(
        [error_responses.offset_fetch(group, version, code) for group in _groups(request, version)], version
    )


@api(
    9,
    versions=(1, 10),
    acl=access.each(access.on_group(AclOperation.DESCRIBE), access.on_topic(AclOperation.DESCRIBE)),
    on_error=on_error,
)
def offset_fetch(call: Call, request: OffsetFetchRequest) -> OffsetFetchResponse | Pending[OffsetFetchResponse]:
    """Ask each group for its offsets."""
    answers = [_fetch(call, group, request.require_stable) for group in _groups(request, call.version)]
    return wait_for_all(answers, lambda groups: _response(groups, call.version))


def _fetch(
    call: Call, group: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup | Pending[OffsetFetchResponseGroup]:
    if not call.may(AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id):
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    everything = group.topics is None
    unknown = _resolve_ids(call, group)
    hidden = _hide(call, group)

    def complete(response: OffsetFetchResponseGroup) -> OffsetFetchResponseGroup:
        if response.error_code != ErrorCode.NONE:
            return response
        if everything and call.version >= FIRST_VERSION_WITH_TOPIC_IDS:
            _add_ids(call, response)
        if everything:
            response.topics = [
                each for each in response.topics if call.may_topic(AclOperation.DESCRIBE, _name_of(call, each))
            ]
        for topics, code in (
            (unknown, ErrorCode.UNKNOWN_TOPIC_ID),
            (hidden, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
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

    answer = call.broker.groups.fetch_offsets(request_context(call), group, require_stable=require_stable)
    return then(answer, complete)


def _resolve_ids(call: Call, group: OffsetFetchRequestGroup) -> list[OffsetFetchRequestTopics]:
    """Give topics that are named by id their names; those that do not exist are taken out and returned."""
    if group.topics is None or call.version < FIRST_VERSION_WITH_TOPIC_IDS:
        return []
    known, unknown = [], []
    for topic in group.topics:
        found = call.broker.cluster.image.topics.get(topic.topic_id)
        if found is None:
            unknown.append(topic)
        else:
            topic.name = found.name
            known.append(topic)
    group.topics = known
    return unknown


def _hide(call: Call, group: OffsetFetchRequestGroup) -> list[OffsetFetchRequestTopics]:
    """Take out the topics that the caller may not see, and return them."""
    if group.topics is None:
        return []
    hidden = [topic for topic in group.topics if not call.may_topic(AclOperation.DESCRIBE, topic.name)]
    if hidden:
        group.topics = [topic for topic in group.topics if call.may_topic(AclOperation.DESCRIBE, topic.name)]
    return hidden


def _name_of(call: Call, topic: OffsetFetchResponseTopics) -> str:
    found = call.broker.cluster.image.topics.get(topic.topic_id)
    return topic.name if found is None else found.name


def _add_ids(call: Call, response: OffsetFetchResponseGroup) -> None:
    """Name the topics of an answer by id; one that is no more cannot be named."""
    for topic in response.topics:
        found = call.broker.cluster.image.topic(topic.name)
        topic.topic_id = ZERO_UUID if found is None else found.id
    response.topics = [topic for topic in response.topics if topic.topic_id != ZERO_UUID]


def _groups(request: OffsetFetchRequest, version: int) -> list[OffsetFetchRequestGroup]:
    """What is asked of each group; before v8 there is one."""
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
