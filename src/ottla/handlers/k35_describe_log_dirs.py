"""DescribeLogDirs (35): the contents of this node's log directories. v2 is flexible, v4 adds sizes, v5 cordoning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.features import CORDONED_LOG_DIRS_FROM
from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k35_describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.broker.session import Call
    from ottla.storage.directory import LogDirectory
    from ottla.storage.log.log import Log
    from ottla.storage.names import TopicPartition


def on_error(
    request: DescribeLogDirsRequest, version: int, code: ErrorCode, message: str | None
) -> DescribeLogDirsResponse:
    """Return the error without directories."""
    return DescribeLogDirsResponse(error_code=code)


@api(35, versions=(1, 5), acl=access.cluster(AclOperation.DESCRIBE), on_error=on_error)
def describe_log_dirs(call: Call, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """Describe each directory with the requested partitions, or with all."""
    requested = None
    if request.topics is not None:
        requested = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    known = call.broker.runtime.image.metadata_version >= CORDONED_LOG_DIRS_FROM
    cordoned = call.broker.cordoned_directories if known else ()
    results = []
    for directory in call.broker.directories:
        result = DescribeLogDirsResult(log_dir=directory.path)
        results.append(result)
        try:
            directory.env.check()
            result.total_bytes, result.usable_bytes = directory.env.disk.space(directory.path)
        except (KafkaError, OSError):
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            continue
        result.topics = _topics(call, directory, requested)
        result.is_cordoned = directory in cordoned
    return DescribeLogDirsResponse(results=results)


def _topics(call: Call, directory: LogDirectory, requested: set[tuple[str, int]] | None) -> list[DescribeLogDirsTopic]:
    topics: dict[str, DescribeLogDirsTopic] = {}

    def add(logs: Mapping[TopicPartition, Log], *, future: bool) -> None:
        for topic_partition, log in logs.items():
            if requested is not None and (topic_partition.topic, topic_partition.partition) not in requested:
                continue
            topic = topics.get(topic_partition.topic)
            if topic is None:
                topic = topics[topic_partition.topic] = DescribeLogDirsTopic(name=topic_partition.topic)
            topic.partitions.append(
                DescribeLogDirsPartition(
                    partition_index=topic_partition.partition,
                    partition_size=log.size,
                    offset_lag=_lag(call, topic_partition, log, future),
                    is_future_key=future,
                )
            )

    add(directory.logs, future=False)
    add(directory.future_logs, future=True)
    return list(topics.values())


def _lag(call: Call, topic_partition: TopicPartition, log: Log, future: bool) -> int:
    """Return the lag of a log: a future log to the current one, the current log to its high watermark."""
    partition = call.broker.runtime.partitions.get((topic_partition.topic, topic_partition.partition))
    if partition is None:
        return -1
    if future:
        return partition.log.log_end_offset - log.log_end_offset
    return max(log.high_watermark - log.log_end_offset, 0)
