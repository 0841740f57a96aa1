"""DescribeShareGroupOffsets (90): return the start offsets of share groups. v1 adds the lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import supports_protocol
from ottla.handlers.splitting import divide_by
from ottla.pending import Pending, wait_for_all
from ottla.protocol.error_texts import error_text
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k90_describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from ottla.shares.environment import NO_START_OFFSET, SharePartitionKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.broker.session import Call
    from ottla.cluster.partitions.state import Topic
    from ottla.shares.environment import ShareState

_UNKNOWN_LAG = -1
LARGEST = 2**63 - 1


def on_error(
    request: DescribeShareGroupOffsetsRequest, version: int, code: ErrorCode, message: str | None
) -> DescribeShareGroupOffsetsResponse:
    """Return the error for every group."""
    return DescribeShareGroupOffsetsResponse(groups=[_error_group(group.group_id, code) for group in request.groups])


@api(
    90,
    versions=(0, 1),
    acl=access.per_resource(access.on_group(AclOperation.DESCRIBE), access.on_topic(AclOperation.DESCRIBE)),
    on_error=on_error,
    split=divide_by("groups.topics.partitions"),
)
def describe_share_group_offsets(
    call: Call, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse | Pending[DescribeShareGroupOffsetsResponse]:
    """Return start offset and lag of the requested partitions, or of all initialized ones."""
    return wait_for_all(
        [_group(call, group) for group in request.groups],
        lambda groups: DescribeShareGroupOffsetsResponse(groups=groups),
    )


def _group(
    call: Call, group: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup | Pending[DescribeShareGroupOffsetsResponseGroup]:
    group_id = group.group_id
    if not supports_protocol(call, "share"):
        return DescribeShareGroupOffsetsResponseGroup(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION)
    if not call.may(AclOperation.DESCRIBE, ResourceType.GROUP, group_id):
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
        )
    image = call.broker.runtime.image
    topics: list[tuple[Topic, Sequence[int]]] = []
    unavailable: list[DescribeShareGroupOffsetsResponseTopic] = []
    if group.topics is None:
        try:
            initialized = call.broker.groups.initialized_share_partitions(group_id)
        except KafkaError as error:
            return _error_group(group_id, error.code)
        candidates = [(image.topics.get(topic_id), partitions) for topic_id, partitions in initialized.items()]
        topics = [
            (topic, partitions)
            for topic, partitions in candidates
            if topic is not None and call.may_topic(AclOperation.DESCRIBE, topic.name)
        ]
    else:
        for requested in group.topics:
            topic = image.topic(requested.topic_name)
            if not call.may_topic(AclOperation.DESCRIBE, requested.topic_name):
                unavailable.append(
                    _no_topic(requested.topic_name, requested.partitions, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                )
            elif topic is None:
                unavailable.append(_no_topic(requested.topic_name, requested.partitions, ErrorCode.NONE))
            else:
                topics.append((topic, requested.partitions))
    topic_partitions = [(topic, partition) for topic, partitions in topics for partition in partitions]

    def combine(states: list[ShareState]) -> DescribeShareGroupOffsetsResponseGroup:
        results: dict[str, DescribeShareGroupOffsetsResponseTopic] = {}
        for (topic, partition), state in zip(topic_partitions, states, strict=True):
            result = results.setdefault(
                topic.name, DescribeShareGroupOffsetsResponseTopic(topic_name=topic.name, topic_id=topic.id)
            )
            result.partitions.append(_partition(call, topic, partition, state))
        return DescribeShareGroupOffsetsResponseGroup(group_id=group_id, topics=[*results.values(), *unavailable])

    states = call.broker.share_states
    summaries: list[ShareState | Pending[ShareState]] = [
        states.summary(SharePartitionKey(group_id, topic.id, partition)) for topic, partition in topic_partitions
    ]
    return wait_for_all(summaries, combine)


def _partition(
    call: Call, topic: Topic, partition: int, state: ShareState
) -> DescribeShareGroupOffsetsResponsePartition:
    if state.error:
        return DescribeShareGroupOffsetsResponsePartition(partition_index=partition, start_offset=NO_START_OFFSET)
    lag = _UNKNOWN_LAG
    if state.start_offset != NO_START_OFFSET and state.delivery_complete_count >= 0:
        end = call.broker.partition(topic.name, partition).log.high_watermark
        # The start offset may be any number that an administrator set.
        lag = min(max(end - state.start_offset - state.delivery_complete_count, -LARGEST), LARGEST)
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=partition, start_offset=state.start_offset, leader_epoch=state.leader_epoch, lag=lag
    )


def _no_topic(name: str, partitions: Sequence[int], code: ErrorCode) -> DescribeShareGroupOffsetsResponseTopic:
    """Return the partitions of a topic without offsets; a topic that does not exist is no error."""
    return DescribeShareGroupOffsetsResponseTopic(
        topic_name=name,
        partitions=[
            DescribeShareGroupOffsetsResponsePartition(
                partition_index=partition, start_offset=NO_START_OFFSET, error_code=code, error_message=error_text(code)
            )
            for partition in partitions
        ],
    )


def _error_group(group_id: str, code: ErrorCode) -> DescribeShareGroupOffsetsResponseGroup:
    return DescribeShareGroupOffsetsResponseGroup(group_id=group_id, error_code=code, error_message=error_text(code))
