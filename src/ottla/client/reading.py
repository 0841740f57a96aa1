"""Records of a topic's partitions, one after the other, without a group: from anywhere, to the end or for ever."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ottla.client.client import EARLIEST, LATEST
from ottla.records.batch import TimestampType, iter_batches
from ottla.records.iterate import iter_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ottla.client.client import Client
    from ottla.protocol.messages.k01_fetch import PartitionData
    from ottla.records.batch import BatchHeader
    from ottla.records.iterate import Record


class Read(NamedTuple):
    """A record with the place it was read from; a control record only where they are wanted."""

    topic: str
    partition: int
    record: Record
    batch: BatchHeader


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a partition begins and ends for a reader."""

    start: int
    end: int


def bounds(client: Client, topic: str, partitions: Iterable[int], *, read_committed: bool = False) -> dict[int, Bounds]:
    """The first offset, and the offset after the last that a reader may see, of each partition."""
    wanted = list(partitions)
    starts = client.list_offsets(topic, wanted, EARLIEST)
    ends = client.list_offsets(topic, wanted, LATEST, read_committed=read_committed)
    return {each: Bounds(starts[each][0], ends[each][0]) for each in wanted}


def offsets_at(client: Client, topic: str, partitions: Iterable[int], timestamp_ms: int) -> dict[int, int]:
    """The first offset at or after a time, else the end, of each partition."""
    wanted = list(partitions)
    found = client.list_offsets(topic, wanted, timestamp_ms)
    if any(offset < 0 for offset, _ in found.values()):
        ends = client.list_offsets(topic, wanted, LATEST)
        return {each: found[each][0] if found[each][0] >= 0 else ends[each][0] for each in wanted}
    return {each: offset for each, (offset, _) in found.items()}


class RecordReader:
    """Reads partitions of one topic from the offsets given, in the order of each partition.

    With `until` it ends when every partition has reached its end offset; without, it waits for more for ever.
    `before_fetch` is called whenever all that was brought has been handed out.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        positions: Mapping[int, int],
        *,
        until: Mapping[int, int] | None = None,
        read_committed: bool = True,
        control: bool = False,
        max_wait_ms: int = 500,
        before_fetch: Callable[[], None] | None = None,
    ) -> None:
        self.positions = dict(positions)
        self._client = client
        self._topic = topic
        self._until = until
        self._read_committed = read_committed
        self._control = control
        self._max_wait_ms = max_wait_ms
        self._before_fetch = before_fetch

    def __iter__(self) -> Iterator[Read]:
        while wanted := self._wanted():
            if self._before_fetch is not None:
                self._before_fetch()
            for partition, data in self._fetch(wanted):
                yield from self._records(partition, data)

    def _fetch(self, wanted: dict[int, int]) -> Iterator[tuple[int, PartitionData]]:
        # A client asks one node at a time: only where there is one node may the broker hold the question for long.
        nodes = self._client.by_leader(self._topic, wanted)
        wait = self._max_wait_ms if len(nodes) == 1 else min(self._max_wait_ms, 100)
        yield from self._client.fetch(
            self._topic, wanted, max_wait_ms=wait, read_committed=self._read_committed
        ).items()

    def _wanted(self) -> dict[int, int]:
        if self._until is None:
            return self.positions
        return {each: offset for each, offset in self.positions.items() if offset < self._until[each]}

    def _records(self, partition: int, data: PartitionData) -> Iterator[Read]:
        aborted = sorted((each.first_offset, each.producer_id) for each in data.aborted_transactions or ())
        heapq.heapify(aborted)
        skipping: set[int] = set()
        end = None if self._until is None else self._until[partition]
        for header in iter_batches(data.records or b""):
            while aborted and aborted[0][0] <= header.last_offset:
                skipping.add(heapq.heappop(aborted)[1])
            if header.is_control:
                skipping.discard(header.producer_id)
                skip = not self._control
            else:
                skip = self._read_committed and header.is_transactional and header.producer_id in skipping
            if not skip:
                for record in iter_records(data.records or b"", header):
                    if record.offset < self.positions[partition]:
                        continue
                    if end is not None and record.offset >= end:
                        break
                    self.positions[partition] = record.offset + 1
                    yield Read(self._topic, partition, record, header)
            self.positions[partition] = max(self.positions[partition], header.next_offset)


def timestamp_type(header: BatchHeader) -> str:
    """What the timestamps of a batch mean."""
    return "log_append" if header.timestamp_type == TimestampType.LOG_APPEND_TIME else "create"
