"""Read an offset range over the network, on executors: fetch responses in, Arrow batches out.

The next request is in flight while Spark receives the batches of the last one.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

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
    from collections.abc import Iterator

    import pyarrow as pa  # type: ignore[import-untyped]

    from ottla.client.client import Client
    from ottla.spark.network.offsets import OffsetRange
    from ottla.spark.network.options import ReadSettings


class FetchFailedError(Exception):
    """A broker responds, but the records are missing or damaged."""


class _Fetched(NamedTuple):
    records: memoryview
    aborted: list[AbortedTransaction]
    next_offset: int


def read_range(offsets: OffsetRange, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an offset range."""
    with reachable(settings.bootstrap), settings.client() as client:
        yield from _RangeReader(offsets, settings, client).read()


class _RangeReader:
    """Fetch one offset range."""

    def __init__(self, offsets: OffsetRange, settings: ReadSettings, client: Client) -> None:
        self._offsets = offsets
        self._settings = settings
        self._client = client
        partition = TopicPartition(offsets.topic, offsets.partition)
        self._table = TableWriter(settings.columns, partition, times=settings.times)

    def read(self) -> Iterator[pa.RecordBatch]:
        offsets = self._offsets
        with ThreadPoolExecutor(1, "ottla-fetch") as ahead:
            coming = ahead.submit(self._fetch, offsets.first_offset)
            while (fetched := coming.result()) is not None:
                offset = fetched.next_offset
                if offset < offsets.end_offset:
                    coming = ahead.submit(self._fetch, offset)
                try:
                    yield from self._table.decode(
                        fetched.records, offsets.first_offset, offsets.end_offset - 1, fetched.aborted
                    )
                except InvalidRecords as error:
                    raise FetchFailedError(f"{self._name} before offset {offset}: {error.message}") from error
                if offset >= offsets.end_offset:
                    return

    @property
    def _name(self) -> str:
        return f"{self._offsets.topic}-{self._offsets.partition}"

    def _fetch(self, offset: int) -> _Fetched | None:
        """Return whole batches from an offset on, or None if nothing is left of the range."""
        offsets, settings = self._offsets, self._settings
        deadline = time.monotonic() + max(settings.timeout, 1.0)
        while True:
            try:
                response = self._client.fetch(
                    offsets.topic,
                    {offsets.partition: offset},
                    max_wait_ms=settings.fetch_wait_ms,
                    partition_max_bytes=settings.fetch_bytes,
                    max_bytes=max(settings.fetch_bytes, 50 << 20),
                    read_committed=settings.committed,
                )[offsets.partition]
            except KafkaError as error:
                self._check_topic()
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise FetchFailedError(f"{self._name} at offset {offset}: {error}") from error
                moved = self._after_loss(offset)
                if moved is None:
                    return None
                offset = moved
                continue
            self._check_topic()
            records = memoryview(response.records) if response.records is not None else memoryview(b"")
            try:
                last = max(iter_batches(records), key=lambda header: header.base_offset, default=None)
            except InvalidRecords as error:
                raise FetchFailedError(f"{self._name} at offset {offset}: {error.message}") from error
            if last is not None:
                aborted = [
                    AbortedTransaction(transaction.producer_id, transaction.first_offset)
                    for transaction in response.aborted_transactions or ()
                ]
                return _Fetched(records, aborted, last.next_offset)
            if time.monotonic() > deadline:
                raise FetchFailedError(
                    f"{self._name}: the broker sends nothing from offset {offset} to {offsets.end_offset} "
                    f"(its high watermark is {response.high_watermark}, its last stable offset "
                    f"{response.last_stable_offset})"
                )

    def _check_topic(self) -> None:
        try:
            now = str(self._client.topic(self._offsets.topic).id)
        except KafkaError as error:
            raise DataLossError(f"{self._offsets.topic} was deleted while it was being read: {error}") from error
        if self._offsets.topic_id and now != self._offsets.topic_id:
            raise DataLossError(
                f"{self._offsets.topic} was deleted and recreated while it was being read (its id was "
                f"{self._offsets.topic_id} and is {now})"
            )

    def _after_loss(self, offset: int) -> int | None:
        """Return the offset to continue at after OFFSET_OUT_OF_RANGE, or None if the range is gone."""
        offsets = self._offsets
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
        return first if offset < first < offsets.end_offset else None
