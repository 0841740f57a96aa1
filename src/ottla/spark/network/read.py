"""Read offset ranges over the network, on executors: fetch responses in, Arrow batches out.

One large range is fetched ahead while Spark receives its last batch; many small ones share requests and Arrow batches.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import iter_batches
from ottla.records.columnar import AbortedTransaction
from ottla.records.errors import InvalidRecords
from ottla.spark.columns import TableWriter
from ottla.spark.connect import reachable
from ottla.spark.data_loss import DataLossError, warn
from ottla.spark.offsets import EARLIEST, LATEST
from ottla.storage.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]

    from ottla.client.client import Client
    from ottla.protocol.messages.k01_fetch import PartitionData
    from ottla.spark.network.offsets import OffsetRange
    from ottla.spark.network.options import ReadSettings

PACKED_PARTITION_BYTES: Final = 1 << 20  # of one partition in a request for several
MERGED_ROWS: Final = 16_384  # Arrow batches with fewer rows are merged


class FetchFailedError(Exception):
    """A broker responds, but the records are missing or damaged."""


class _Fetched(NamedTuple):
    records: memoryview
    aborted: list[AbortedTransaction]
    next_offset: int
    first_offset: int
    """The first offset that may be returned: a batch may begin below the log start offset."""


def read_ranges(ranges: Sequence[OffsetRange], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """Yield the rows of offset ranges, each range in order."""
    with reachable(settings.bootstrap), settings.client() as client:
        if len(ranges) == 1:
            yield from _RangeReader(ranges[0], settings, client).read()
            return
        by_topic: dict[str, list[OffsetRange]] = {}
        for offsets in ranges:
            by_topic.setdefault(offsets.topic, []).append(offsets)
        yield from _merged(batch for listed in by_topic.values() for batch in _read_together(listed, settings, client))


def _read_together(ranges: Sequence[OffsetRange], settings: ReadSettings, client: Client) -> Iterator[pa.RecordBatch]:
    """Yield the rows of small ranges of one topic, fetched with one request per leader as long as nothing fails."""
    # Two ranges of one partition cannot share a request.
    waiting: dict[int, _RangeReader] = {}
    single: list[_RangeReader] = []
    for offsets in ranges:
        reader = _RangeReader(offsets, settings, client)
        if waiting.setdefault(offsets.partition, reader) is not reader:
            single.append(reader)
    partition_bytes = min(settings.fetch_bytes, PACKED_PARTITION_BYTES)
    while waiting:
        try:
            responses = client.fetch(
                ranges[0].topic,
                {partition: reader.position for partition, reader in waiting.items()},
                max_wait_ms=settings.fetch_wait_ms,
                min_bytes=settings.fetch_min_bytes,
                partition_max_bytes=partition_bytes,
                max_bytes=settings.response_bytes,
                read_committed=settings.committed,
            )
        except KafkaError:
            break  # one partition fails: read each alone, which handles or reports it
        progress = False
        for partition, reader in list(waiting.items()):
            fetched = reader.accept(responses[partition]) if partition in responses else None
            if fetched is None:
                continue
            progress = True
            yield from reader.decode(fetched)
            if reader.position >= reader.offsets.end_offset:
                del waiting[partition]
        if not progress:
            break
    for reader in [*waiting.values(), *single]:
        yield from reader.read()


def _merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge small Arrow batches: each one costs Spark about as much as a hundred rows."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= MERGED_ROWS:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held, rows = [], 0
    if rows:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()


class _RangeReader:
    """Fetch and decode one offset range; `position` is the next offset to fetch."""

    def __init__(self, offsets: OffsetRange, settings: ReadSettings, client: Client) -> None:
        self.offsets = offsets
        self.position = offsets.first_offset
        self._first = offsets.first_offset
        self._settings = settings
        self._client = client
        partition = TopicPartition(offsets.topic, offsets.partition)
        self._table = TableWriter(settings.columns, partition, times=settings.times)

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows from the position on, with one request in flight."""
        end = self.offsets.end_offset
        with ThreadPoolExecutor(1, "ottla-fetch") as ahead:
            coming = ahead.submit(self._fetch)
            while (fetched := coming.result()) is not None:
                if fetched.next_offset < end:
                    coming = ahead.submit(self._fetch)
                yield from self.decode(fetched)
                if fetched.next_offset >= end:
                    return

    def decode(self, fetched: _Fetched) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one response."""
        try:
            yield from self._table.decode(
                fetched.records, fetched.first_offset, self.offsets.end_offset - 1, fetched.aborted
            )
        except InvalidRecords as error:
            raise FetchFailedError(f"{self._name} before offset {fetched.next_offset}: {error.message}") from error

    def accept(self, response: PartitionData) -> _Fetched | None:
        """Move behind the batches of a response; return None if it has none."""
        self._check_topic()
        records = memoryview(response.records) if response.records is not None else memoryview(b"")
        try:
            last = max(iter_batches(records), key=lambda header: header.base_offset, default=None)
        except InvalidRecords as error:
            raise FetchFailedError(f"{self._name} at offset {self.position}: {error.message}") from error
        if last is None:
            return None
        # A batch that holds the log start offset is sent whole, with the deleted records before it.
        self._first = max(self._first, response.log_start_offset)
        aborted = [
            AbortedTransaction(transaction.producer_id, transaction.first_offset)
            for transaction in response.aborted_transactions or ()
        ]
        self.position = last.next_offset
        return _Fetched(records, aborted, last.next_offset, self._first)

    @property
    def _name(self) -> str:
        return f"{self.offsets.topic}-{self.offsets.partition}"

    def _fetch(self) -> _Fetched | None:
        """Return whole batches from the position on, or None if nothing is left of the range."""
        offsets, settings = self.offsets, self._settings
        deadline = time.monotonic() + max(settings.poll_timeout, 1.0)
        while True:
            try:
                response = self._client.fetch(
                    offsets.topic,
                    {offsets.partition: self.position},
                    max_wait_ms=settings.fetch_wait_ms,
                    min_bytes=settings.fetch_min_bytes,
                    partition_max_bytes=settings.fetch_bytes,
                    max_bytes=max(settings.fetch_bytes, settings.response_bytes),
                    read_committed=settings.committed,
                )[offsets.partition]
            except KafkaError as error:
                self._check_topic()
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise FetchFailedError(f"{self._name} at offset {self.position}: {error}") from error
                if not self._skip_lost():
                    return None
                continue
            fetched = self.accept(response)
            if fetched is not None:
                return fetched
            if time.monotonic() > deadline:
                raise FetchFailedError(
                    f"{self._name}: the broker sends nothing from offset {self.position} to {offsets.end_offset} "
                    f"(its high watermark is {response.high_watermark}, its last stable offset "
                    f"{response.last_stable_offset})"
                )

    def _check_topic(self) -> None:
        try:
            now = str(self._client.topic(self.offsets.topic).id)
        except KafkaError as error:
            raise DataLossError(f"{self.offsets.topic} was deleted while it was being read: {error}") from error
        if self.offsets.topic_id and now != self.offsets.topic_id:
            raise DataLossError(
                f"{self.offsets.topic} was deleted and recreated while it was being read (its id was "
                f"{self.offsets.topic_id} and is {now})"
            )

    def _skip_lost(self) -> bool:
        """Move to the log start offset after OFFSET_OUT_OF_RANGE; return False if the rest of the range is gone."""
        offsets, offset = self.offsets, self.position
        first = self._client.list_offsets(offsets.topic, [offsets.partition], EARLIEST)[offsets.partition][0]
        end = self._client.list_offsets(offsets.topic, [offsets.partition], LATEST)[offsets.partition][0]
        reason = "removed by retention or DeleteRecords" if offset < first else "cut off behind the log's end"
        message = (
            f"{self._name}: offset {offset} is out of range, the log has {first} to {end}: "
            f"records up to {min(max(first, offset), offsets.end_offset)} were {reason}"
        )
        if self._settings.fail_on_data_loss:
            raise DataLossError(f"{message}; set failOnDataLoss=false to skip them")
        warn("ottla", message)
        if not offset < first < offsets.end_offset:
            return False
        self.position = self._first = first
        return True
