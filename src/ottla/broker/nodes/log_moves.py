"""Moves a partition's log from one directory of a node to another while it is in use (KIP-113).

A future log is filled in pieces and replaces the current one when both have the same log end offset; Kafka's
ReplicaAlterLogDirsThread. The only state of a move is `LogDirectory.future_logs`, in memory as on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.brokers import assign_directories
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import read_header
from ottla.storage.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.broker.broker import Broker
    from ottla.broker.partition import Partition
    from ottla.broker.runtime import BrokerRuntime
    from ottla.cluster.partitions.state import Topic
    from ottla.protocol.schema import Message, Uuid
    from ottla.storage.directory import LogDirectory
    from ottla.storage.log.log import Log

PIECE = 1024 * 1024
MAX_NAME_LENGTH = 255
# Length of a future folder's name beyond topic and partition: two separators, a unique part, the suffix.
MARK_LENGTH = 2 + 32 + len("future")


def move_log(broker: Broker, topic: str, index: int, path: str) -> None:
    """Start moving a partition's log to the directory `path` of this node; do nothing if it is there."""
    topic_partition = TopicPartition(topic, index)
    if len(f"{topic}-{index}") + MARK_LENGTH > MAX_NAME_LENGTH:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
    target = next((directory for directory in broker.directories if directory.path == path), None)
    if target is None:
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"Log dir {path} is not found in the config.")
    if not target.online:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Log directory {path} is offline")
    if target in broker.cordoned_directories:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Log directory {path} is cordoned")
    partition = broker.partition(topic, index)
    source = next((directory for directory in broker.directories if topic_partition in directory.logs), None)
    if source is None:
        raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE)
    for other in broker.directories:
        if other is not target and topic_partition in other.future_logs:
            other.drop_future_log(topic_partition)
    if source is target:
        return
    future = target.future_logs.get(topic_partition)
    if future is None:
        start = _first_base_offset(partition.log)
        future = target.create_future_log(topic_partition, partition.log.config, partition.topic_id, start)
    _step(broker, partition, source, target, future)


def resume_moves(runtime: BrokerRuntime) -> None:
    """Resume the moves that were in progress when the cluster stopped."""
    for broker in runtime.nodes.values():
        for target in broker.directories:
            for topic_partition in list(target.future_logs):
                if any(
                    topic_partition in directory.logs for directory in broker.directories if directory is not target
                ):
                    move_log(broker, topic_partition.topic, topic_partition.partition, target.path)
                else:  # the move was completed, or the partition was deleted
                    target.drop_future_log(topic_partition)


def misplaced(broker: Broker, topics: Iterable[Topic]) -> list[Message]:
    """Return the records that correct the directory of a node's partitions where the metadata differs from the disk."""
    moved_topics = list(topics)
    topic_partitions = [TopicPartition(topic.name, index) for topic in moved_topics for index in topic.partitions]
    directory_of: dict[tuple[str, int], Uuid] = {
        topic_partition: broker.directory_ids[directory.path]
        for directory in broker.directories
        for topic_partition in topic_partitions
        if topic_partition in directory.logs
    }
    return assign_directories(broker.runtime.image, broker.node_id, directory_of, moved_topics, layers=broker.layers)


def _first_base_offset(log: Log) -> int:
    """Return the base offset of the first batch that a reader may see: at or below the log start offset."""
    if log.log_start_offset < log.log_end_offset:
        piece = log.read(log.log_start_offset, 1, log.log_end_offset)
        if piece.records is not None:
            with piece.records as records:
                return min(read_header(records.read_all()).base_offset, log.log_start_offset)
    return log.log_start_offset


def _step(broker: Broker, partition: Partition, source: LogDirectory, target: LogDirectory, future: Log) -> None:
    """Copy one piece; replace the current log when nothing is left to copy."""
    topic_partition = TopicPartition(partition.topic, partition.index)
    current = partition.log
    if not target.is_open or not target.online:
        return
    if target.future_logs.get(topic_partition) is not future or source.logs.get(topic_partition) is not current:
        return
    if future.log_end_offset > current.log_end_offset:
        future.truncate_to(current.log_end_offset)
    if future.log_end_offset < current.log_end_offset:
        offset = max(future.log_end_offset, current.log_start_offset)
        piece = current.read(offset, PIECE, current.log_end_offset)
        if piece.records is not None:
            with piece.records as records:
                future.append_raw(records.read_all())
    if future.log_end_offset >= current.log_end_offset:
        future.flush_now()
        future.advance_log_start(current.log_start_offset)
        target.adopt_future_log(topic_partition)
        source.delete_log(topic_partition)
        partition.replace_log(future)
        topic = broker.runtime.image.topic(partition.topic)
        broker.runtime.change(misplaced(broker, () if topic is None else (topic,)))
        return
    broker.runtime.world.clock.call_soon(_step, broker, partition, source, target, future)
