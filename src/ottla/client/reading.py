"""Reads records of a topic's partitions without a group: from any offset, up to an end or without end."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ottla.client.client import EARLIEST, LATEST
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import TimestampType, check_crc, iter_batches
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ottla.client.client import Client
    from ottla.protocol.messages.k01_fetch import PartitionData
    from ottla.records.batch import BatchHeader
    from ottla.records.iterate import Record

SHORT_WAIT_MS = 100


class Read(NamedTuple):
    """A record with the partition and the batch that it was read from."""

    topic: str
    partition: int
    record: Record
    batch: BatchHeader


@dataclass(frozen=True, slots=True)
class Bounds:
    """A partition's log start offset, and the offset that follows the last one that a reader may see."""

    start: int
    end: int


def bounds(client: Client, topic: str, partitions: Iterable[int], *, read_committed: bool = False) -> dict[int, Bounds]:
    """Return the bounds of each partition: up to the high watermark; with `read_committed`, the last stable offset."""
    indexes = list(partitions)
    starts = client.list_offsets(topic, indexes, EARLIEST)
    ends = client.list_offsets(topic, indexes, LATEST, read_committed=read_committed)
    return {index: Bounds(starts[index][0], ends[index][0]) for index in indexes}


def offsets_at(client: Client, topic: str, partitions: Iterable[int], timestamp_ms: int) -> dict[int, int]:
    """Return the first offset at or after a time in each partition; its end if there is none."""
    indexes = list(partitions)
    offsets = {index: offset for index, (offset, _) in client.list_offsets(topic, indexes, timestamp_ms).items()}
    if any(offset < 0 for offset in offsets.values()):
        ends = client.list_offsets(topic, indexes, LATEST)
        return {index: offset if offset >= 0 else ends[index][0] for index, offset in offsets.items()}
    return offsets


class RecordReader:
    """Iterates over the records of some partitions of one topic; records of one partition come in offset order.

    With `until` the iteration ends when every partition has reached its end offset; without, it waits for new records.
    A batch with a wrong CRC raises CORRUPT_MESSAGE unless `check_crcs` is false, as in Kafka's consumer.
    `max_bytes` bounds what one fetch returns. `before_fetch` is called when all fetched records have been returned.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        positions: Mapping[int, int],
        *,
        until: Mapping[int, int] | None = None,
        read_committed: bool = True,
        check_crcs: bool = True,
        max_wait_ms: int = 500,
        max_bytes: int = 50 * 1024 * 1024,
        before_fetch: Callable[[], None] | None = None,
    ) -> None:
        self.positions = dict(positions)
        self._client = client
        self._topic = topic
        self._until = until
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._max_wait_ms = max_wait_ms
        self._max_bytes = max_bytes
        self._before_fetch = before_fetch

    def __iter__(self) -> Iterator[Read]:
        while positions := self._unfinished():
            if self._before_fetch is not None:
                self._before_fetch()
            for partition, data in self._fetch(positions).items():
                yield from self._records(partition, data)

    def _fetch(self, positions: dict[int, int]) -> dict[int, PartitionData]:
        # The client fetches from one node at a time, so a long wait at one node would delay the records of the others.
        nodes = self._client.by_leader(self._topic, positions)
        wait = self._max_wait_ms if len(nodes) == 1 else min(self._max_wait_ms, SHORT_WAIT_MS)
        return self._client.fetch(
            self._topic, positions, max_wait_ms=wait, max_bytes=self._max_bytes, read_committed=self._read_committed
        )

    def _unfinished(self) -> dict[int, int]:
        """Return the positions of the partitions that have not reached their end offset."""
        if self._until is None:
            return self.positions
        return {index: offset for index, offset in self.positions.items() if offset < self._until[index]}

    def _records(self, partition: int, data: PartitionData) -> Iterator[Read]:
        """Return the records of a fetched partition without control records and aborted transactions."""
        aborted = [(entry.first_offset, entry.producer_id) for entry in data.aborted_transactions or ()]
        heapq.heapify(aborted)
        aborting: set[int] = set()
        end = None if self._until is None else self._until[partition]
        for header in self._batches(partition, data):
            while aborted and aborted[0][0] <= header.last_offset:
                aborting.add(heapq.heappop(aborted)[1])
            if header.is_control:
                aborting.discard(header.producer_id)
            elif not (self._read_committed and header.is_transactional and header.producer_id in aborting):
                for record in self._decode(partition, data, header):
                    if record.offset < self.positions[partition]:
                        continue
                    if end is not None and record.offset >= end:
                        break
                    self.positions[partition] = record.offset + 1
                    yield Read(self._topic, partition, record, header)
            self.positions[partition] = max(self.positions[partition], header.next_offset)

    def _batches(self, partition: int, data: PartitionData) -> Iterator[BatchHeader]:
        """Return the batch headers of a fetched partition; a damaged batch is an error that names its offset."""
        records = data.records or b""
        try:
            for header in iter_batches(records):
                if self._check_crcs and not check_crc(records, header):
                    raise KafkaError(
                        ErrorCode.CORRUPT_MESSAGE,
                        f"{self._topic}-{partition}: the batch at offset {header.base_offset} has a wrong CRC",
                    )
                yield header
        except InvalidRecords as error:
            where = f"{self._topic}-{partition} after offset {self.positions[partition] - 1}"
            raise KafkaError(error.code, f"{where}: {error.message}") from error

    def _decode(self, partition: int, data: PartitionData, header: BatchHeader) -> Iterator[Record]:
        """Return the records of a batch; one that cannot be decoded is an error that names the batch's offset."""
        try:
            yield from iter_records(data.records or b"", header)
        except InvalidRecords as error:
            where = f"{self._topic}-{partition}: the batch at offset {header.base_offset}"
            raise KafkaError(error.code, f"{where} cannot be decoded: {error.message}") from error


def timestamp_type(header: BatchHeader) -> str:
    """Return the timestamp type of a batch: `log_append` or `create`."""
    return "log_append" if header.timestamp_type == TimestampType.LOG_APPEND_TIME else "create"
