"""A partition's log moves from one of a node's directories to another while it is used (KIP-113).

A future log is filled beside the current one, piece by piece, and takes its place in the moment in which both end at
the same offset. What is under way is nowhere but in `LogDirectory.future_logs`, as on disk.
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
    from ottla.cluster.registrations import Topic
    from ottla.protocol.schema import Message, Uuid
    from ottla.storage.directory import LogDirectory
    from ottla.storage.log.log import Log

PIECE = 1024 * 1024
LONGEST_NAME = 255
# What a future folder's name has beyond topic and partition: two separators, a unique part, the mark.
MARK_LENGTH = 2 + 32 + len("future")


def move_log(broker: Broker, topic: str, index: int, path: str) -> None:
    """Begin to move a partition's log to the directory `path` of this node, or do nothing if it is there."""
    place = TopicPartition(topic, index)
    if len(f"{topic}-{index}") + MARK_LENGTH > LONGEST_NAME:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
    target = next((each for each in broker.directories if each.path == path), None)
    if target is None:
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"Log dir {path} is not found in the config.")
    if not target.online:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Log directory {path} is offline")
    if target in broker.cordoned_directories:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Log directory {path} is cordoned")
    partition = broker.partition(topic, index)
    source = next((each for each in broker.directories if place in each.logs), None)
    if source is None:
        raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE)
    for other in broker.directories:
        if other is not target and place in other.future_logs:
            other.drop_future_log(place)
    if source is target:
        return
    future = target.future_logs.get(place)
    if future is None:
        start = _first_base_offset(partition.log)
        future = target.create_future_log(place, partition.log.config, partition.topic_id, start)
    _step(broker, partition, source, target, future)


def resume_moves(cluster: BrokerRuntime) -> None:
    """Go on with the moves that were under way when the cluster stopped."""
    for broker in cluster.nodes.values():
        for target in broker.directories:
            for place in list(target.future_logs):
                if any(place in each.logs for each in broker.directories if each is not target):
                    move_log(broker, place.topic, place.partition, target.path)
                else:  # it took its place already, or the partition is gone
                    target.drop_future_log(place)


def misplaced(broker: Broker, topics: Iterable[Topic]) -> list[Message]:
    """The records that place a node's partitions of some topics where their logs are, if the metadata does not."""
    asked = list(topics)
    places = [TopicPartition(topic.name, index) for topic in asked for index in topic.partitions]
    found: dict[tuple[str, int], Uuid] = {
        place: broker.directory_ids[directory.path]
        for directory in broker.directories
        for place in places
        if place in directory.logs
    }
    return assign_directories(broker.cluster.image, broker.node_id, found, asked, layers=broker.layers)


def _first_base_offset(log: Log) -> int:
    """Where the first batch begins that has something to read: at the log's start, or before it."""
    if log.log_start_offset < log.log_end_offset:
        piece = log.read(log.log_start_offset, 1, log.log_end_offset)
        if piece.records is not None:
            with piece.records as records:
                return min(read_header(records.read_all()).base_offset, log.log_start_offset)
    return log.log_start_offset


def _step(broker: Broker, partition: Partition, source: LogDirectory, target: LogDirectory, future: Log) -> None:
    """Copy a piece; when there is nothing left, change places."""
    place = TopicPartition(partition.topic, partition.index)
    current = partition.log
    if not target.is_open or not target.online:
        return
    if target.future_logs.get(place) is not future or source.logs.get(place) is not current:
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
        target.adopt_future_log(place)
        source.delete_log(place)
        partition.replace_log(future)
        topic = broker.cluster.image.topic(partition.topic)
        broker.cluster.change(misplaced(broker, () if topic is None else (topic,)))
        return
    broker.cluster.world.clock.call_soon(_step, broker, partition, source, target, future)
