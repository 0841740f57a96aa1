"""DescribeQuorum (55): the voters of the metadata quorum. v1 adds times, v2 directory ids and endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.nodes.voters import voter_endpoints
from ottla.cluster.internal_topics import CLUSTER_METADATA_TOPIC
from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k55_describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)
from ottla.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.session import Call


def on_error(
    request: DescribeQuorumRequest, version: int, code: ErrorCode, message: str | None
) -> DescribeQuorumResponse:
    """Return the error."""
    return DescribeQuorumResponse(error_code=code, error_message=message)


@api(
    55,
    versions=(0, 2),
    acl=access.cluster(AclOperation.DESCRIBE),
    on_error=on_error,
    split=divide_by("topics.partitions"),
)
def describe_quorum(call: Call, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Describe the only voter and the nodes that observe it."""
    runtime = call.broker.runtime
    topics = [
        (topic.topic_name, [partition.partition_index for partition in topic.partitions]) for topic in request.topics
    ]
    if topics != [(CLUSTER_METADATA_TOPIC, [0])]:
        return DescribeQuorumResponse(
            topics=[
                ResponseTopicData(
                    topic_name=name,
                    partitions=[
                        ResponsePartitionData(
                            partition_index=index,
                            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                            error_message="This server does not host this topic-partition.",
                        )
                        for index in indexes
                    ],
                )
                for name, indexes in topics
            ],
        )
    controller = runtime.controller
    now = runtime.world.clock.now_ms()

    directories = {voter.id: voter.directory_id for voter in runtime.metadata.voters} if call.version >= 2 else {}

    def state(node_id: int) -> ReplicaState:
        return ReplicaState(
            replica_id=node_id,
            replica_directory_id=directories.get(node_id, ZERO_UUID),
            log_end_offset=runtime.metadata.next_offset,
            last_fetch_timestamp=now,
            last_caught_up_timestamp=now,
        )

    described = ResponsePartitionData(
        partition_index=0,
        leader_id=controller.node_id,
        leader_epoch=runtime.metadata.epoch,
        high_watermark=runtime.metadata.next_offset,
        current_voters=[state(controller.node_id)],
        observers=[state(node_id) for node_id in sorted(runtime.nodes) if node_id != controller.node_id],
    )
    listeners = [Listener(name=name, host=host, port=port) for name, host, port in voter_endpoints(runtime)]
    return DescribeQuorumResponse(
        topics=[ResponseTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[described])],
        nodes=[Node(node_id=controller.node_id, listeners=listeners)] if call.version >= 2 else [],
    )
