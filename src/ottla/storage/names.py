"""Names of files and folders in a log directory: format and parse. No disk access.

Only names; nothing here touches a disk.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

DELETE_DIR_SUFFIX = "-delete"
FUTURE_DIR_SUFFIX = "-future"
STRAY_DIR_SUFFIX = "-stray"

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
REPLICATION_CHECKPOINT = "replication-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
CHECKPOINTS = (RECOVERY_POINT_CHECKPOINT, REPLICATION_CHECKPOINT, LOG_START_CHECKPOINT, CLEANER_CHECKPOINT)
WRITTEN_AT_SHUTDOWN = (RECOVERY_POINT_CHECKPOINT, REPLICATION_CHECKPOINT)
"""Checkpoints that a clean shutdown writes with every partition; Kafka creates all of them empty at its first start."""
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
LOCK_FILE = ".lock"
META_PROPERTIES = "meta.properties"
METADATA_TOPIC = "__cluster_metadata"

_NUMBERED = re.compile(r"^(\d{1,20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.deleted|\.cleaned|\.swap)?$")
_MARKED_DIR = re.compile(r"^(\S+)-(\d+)\.(\S+)(-delete|-future|-stray)$")
_PLAIN_DIR = re.compile(r"^(.+)-(\d+)$")
_MAX_DIR_NAME = 255


class TopicPartition(NamedTuple):
    """A topic name and a partition number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class NumberedFile(NamedTuple):
    """A file named by an offset: offset, kind, and mark (`.deleted`, `.cleaned`, `.swap` or none)."""

    offset: int
    kind: str
    mark: str


class PartitionDir(NamedTuple):
    """A partition's folder: topic partition and mark (`""`, `-delete`, `-future` or `-stray`)."""

    topic_partition: TopicPartition
    mark: str


def offset_name(offset: int, suffix: str = "") -> str:
    """Return the name of a file for an offset: twenty digits and a suffix."""
    return f"{offset:020d}{suffix}"


def parse_numbered(name: str) -> NumberedFile | None:
    """Parse the name of a file named by an offset; None for other names."""
    match = _NUMBERED.match(name)
    if match is None:
        return None
    return NumberedFile(int(match[1]), match[2], match[3] or "")


def partition_dir_name(topic_partition: TopicPartition) -> str:
    """Return the folder name of a partition."""
    return f"{topic_partition.topic}-{topic_partition.partition}"


def marked_dir_name(topic_partition: TopicPartition, unique: str, mark: str) -> str:
    """Return the folder name of a deleted, future or stray partition; all but `-future` are cut to 255 characters."""
    tail = f"-{topic_partition.partition}.{unique}{mark}"
    topic = topic_partition.topic
    if mark != FUTURE_DIR_SUFFIX:
        topic = topic[: _MAX_DIR_NAME - len(tail)]
    return topic + tail


def parse_partition_dir(name: str) -> PartitionDir | None:
    """Parse a folder name; None if it is not a partition's."""
    for mark in (DELETE_DIR_SUFFIX, FUTURE_DIR_SUFFIX, STRAY_DIR_SUFFIX):
        if name.endswith(mark):
            match = _MARKED_DIR.match(name)
            if match is None:
                return None
            return PartitionDir(TopicPartition(match[1], int(match[2])), mark)
    plain = _PLAIN_DIR.match(name)
    if plain is None:
        return None
    return PartitionDir(TopicPartition(plain[1], int(plain[2])), "")
