"""AlterReplicaLogDirs (34): move partitions between this node's log directories. v2 is flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.nodes.log_moves import move_log
from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k34_alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.session import Call


def on_error(
    request: AlterReplicaLogDirsRequest, version: int, code: ErrorCode, message: str | None
) -> AlterReplicaLogDirsResponse:
    """Return the error for every partition."""
    return _answer(request, lambda topic, partition, path: code)


@api(
    34,
    versions=(1, 2),
    acl=access.cluster(AclOperation.ALTER),
    on_error=on_error,
    split=divide_by("dirs.topics.partitions"),
)
def alter_replica_log_dirs(call: Call, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    """Start each move; it continues after the response, and DescribeLogDirs shows its progress."""

    def move(topic: str, partition: int, path: str) -> ErrorCode:
        try:
            move_log(call.broker, topic, partition, path)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    return _answer(request, move)


def _answer(
    request: AlterReplicaLogDirsRequest, code: Callable[[str, int, str], ErrorCode]
) -> AlterReplicaLogDirsResponse:
    paths: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:  # of a repeated partition Kafka takes the last
                paths.setdefault(topic.name, {})[index] = directory.path
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code(name, index, path))
                    for index, path in partitions.items()
                ],
            )
            for name, partitions in paths.items()
        ]
    )
