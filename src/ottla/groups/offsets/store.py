"""Committed offsets and the pending offsets of open transactions (the state of Kafka's OffsetMetadataManager).

Offsets belong to a group id, and remain without members until they expire or the group is deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.uuids import ZERO_UUID, Uuid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class OffsetAndMetadata(NamedTuple):
    """A committed offset; -1 stands for an absent leader epoch or expiry timestamp."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    topic_id: Uuid = ZERO_UUID
    record_offset: int = -1


GroupOffsets = dict[str, dict[int, OffsetAndMetadata]]


class Offsets:
    """The offsets of all groups of a shard, by group, topic and partition."""

    __slots__ = ("_open", "_pending", "committed")

    def __init__(self) -> None:
        self.committed: dict[str, GroupOffsets] = {}
        self._pending: dict[int, dict[str, GroupOffsets]] = {}
        self._open: dict[str, dict[tuple[str, int], dict[int, None]]] = {}

    # Reading

    def get(self, group: str, topic: str, partition: int) -> OffsetAndMetadata | None:
        """Return the committed offset."""
        return self.committed.get(group, {}).get(topic, {}).get(partition)

    def of_group(self, group: str) -> GroupOffsets:
        """Return all committed offsets of a group."""
        return self.committed.get(group, {})

    def is_open(self, group: str, topic: str, partition: int) -> bool:
        """Return whether an open transaction has a pending offset for the partition."""
        return (topic, partition) in self._open.get(group, {})

    def has_open_transaction(self, group: str) -> bool:
        """Return whether an open transaction has a pending offset in the group."""
        return group in self._open

    def open_partitions(self, group: str) -> list[tuple[str, int]]:
        """Return the partitions with pending offsets."""
        return list(self._open.get(group, {}))

    def pending(self, producer_id: int) -> dict[str, GroupOffsets]:
        """Return the pending offsets of a producer's transaction by group."""
        return self._pending.get(producer_id, {})

    def of_topics(self, topics: Iterable[str]) -> Iterator[tuple[str, str, int, OffsetAndMetadata]]:
        """Yield the committed and pending offsets of topics: group, topic, partition, offset."""
        names = list(topics)
        for by_group in (self.committed, *self._pending.values()):
            for group, by_topic in by_group.items():
                for topic in names:
                    for partition, offset in by_topic.get(topic, {}).items():
                        yield group, topic, partition, offset

    # Replaying

    def put(self, group: str, topic: str, partition: int, offset: OffsetAndMetadata) -> None:
        """Store a committed offset."""
        self.committed.setdefault(group, {}).setdefault(topic, {})[partition] = offset

    def put_pending(self, producer_id: int, group: str, topic: str, partition: int, offset: OffsetAndMetadata) -> None:
        """Store a pending offset of a transaction."""
        by_group = self._pending.setdefault(producer_id, {})
        by_group.setdefault(group, {}).setdefault(topic, {})[partition] = offset
        self._open.setdefault(group, {}).setdefault((topic, partition), {})[producer_id] = None

    def remove(self, group: str, topic: str, partition: int) -> None:
        """Remove a committed offset and the pending offsets of the same partition."""
        _pop(self.committed, group, topic, partition)
        by_partition = self._open.get(group)
        if by_partition is None:
            return
        for producer_id in by_partition.pop((topic, partition), {}):
            _pop(self._pending[producer_id], group, topic, partition)
            if not self._pending[producer_id]:
                del self._pending[producer_id]
        if not by_partition:
            del self._open[group]

    def complete_transaction(self, producer_id: int, *, committed: bool) -> None:
        """End a producer's transaction: commit or drop its pending offsets; a later plain commit wins."""
        for group, by_topic in self._pending.pop(producer_id, {}).items():
            for topic, by_partition in by_topic.items():
                for partition, offset in by_partition.items():
                    self._close(group, topic, partition, producer_id)
                    existing = self.get(group, topic, partition)
                    if committed and (existing is None or offset.record_offset > existing.record_offset):
                        self.put(group, topic, partition, offset)

    def _close(self, group: str, topic: str, partition: int, producer_id: int) -> None:
        by_partition = self._open[group]
        producers = by_partition[topic, partition]
        del producers[producer_id]
        if not producers:
            del by_partition[topic, partition]
            if not by_partition:
                del self._open[group]


def _pop(by_group: dict[str, GroupOffsets], group: str, topic: str, partition: int) -> None:
    by_topic = by_group.get(group)
    by_partition = by_topic.get(topic) if by_topic is not None else None
    if by_topic is None or by_partition is None:
        return
    by_partition.pop(partition, None)
    if not by_partition:
        del by_topic[topic]
        if not by_topic:
            del by_group[group]
