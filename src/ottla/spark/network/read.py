"""Reads a range of offsets over the network, on executors: fetch responses in, Arrow batches out.

One request is always under way while the batches of the one before it go to Spark.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import iter_batches
from ottla.records.columnar import AbortedTransaction
from ottla.records.errors import InvalidRecords
from ottla.spark.columns import Place, TableWriter
from ottla.spark.connect import reachable
from ottla.spark.data_loss import DataLossError, warn
from ottla.spark.offsets import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa  # type: ignore[import-untyped]

    from ottla.client.client import Client
    from ottla.spark.network.offsets import OffsetRange
    from ottla.spark.network.options import ReadSettings


class FetchFailedError(Exception):
    """A broker answers, but what it should have does not come, or is damaged."""


class _Fetched(NamedTuple):
    records: memoryview
    aborted: list[AbortedTransaction]
    next_offset: int


def read_range(wanted: OffsetRange, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """The rows of a range."""
    with reachable(settings.bootstrap), settings.client() as client:
        yield from _RangeReader(wanted, settings, client).read()


class _RangeReader:
    def __init__(self, wanted: OffsetRange, settings: ReadSettings, client: Client) -> None:
        self._wanted = wanted
        self._settings = settings
        self._client = client
        self._table = TableWriter(settings.columns, Place(wanted.topic, wanted.partition), settings.times)

    def read(self) -> Iterator[pa.RecordBatch]:
        wanted = self._wanted
        with ThreadPoolExecutor(1, "ottla-fetch") as ahead:
            coming = ahead.submit(self._fetch, wanted.first_offset)
            while (fetched := coming.result()) is not None:
                offset = fetched.next_offset
                if offset < wanted.end_offset:
                    coming = ahead.submit(self._fetch, offset)
                try:
                    yield from self._table.decode(
                        fetched.records, wanted.first_offset, wanted.end_offset - 1, fetched.aborted
                    )
                except InvalidRecords as error:
                    raise FetchFailedError(f"{self._name} before offset {offset}: {error.message}") from error
                if offset >= wanted.end_offset:
                    return

    @property
    def _name(self) -> str:
        return f"{self._wanted.topic}-{self._wanted.partition}"

    def _fetch(self, offset: int) -> _Fetched | None:
        """Whole batches from an offset on; None if nothing is left of the range."""
        wanted, settings = self._wanted, self._settings
        deadline = time.monotonic() + max(settings.timeout, 1.0)
        while True:
            try:
                answer = self._client.fetch(
                    wanted.topic,
                    {wanted.partition: offset},
                    max_wait_ms=settings.fetch_wait_ms,
                    partition_max_bytes=settings.fetch_bytes,
                    max_bytes=max(settings.fetch_bytes, 50 << 20),
                    read_committed=settings.committed,
                )[wanted.partition]
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
            records = memoryview(answer.records) if answer.records is not None else memoryview(b"")
            try:
                last = max(iter_batches(records), key=lambda header: header.base_offset, default=None)
            except InvalidRecords as error:
                raise FetchFailedError(f"{self._name} at offset {offset}: {error.message}") from error
            if last is not None:
                aborted = [
                    AbortedTransaction(each.producer_id, each.first_offset)
                    for each in answer.aborted_transactions or ()
                ]
                return _Fetched(records, aborted, last.next_offset)
            if time.monotonic() > deadline:
                raise FetchFailedError(
                    f"{self._name}: the broker sends nothing from offset {offset} on, though {wanted.end_offset} was "
                    f"the end (its high watermark is {answer.high_watermark}, its last stable offset "
                    f"{answer.last_stable_offset})"
                )

    def _check_topic(self) -> None:
        try:
            now = str(self._client.topic(self._wanted.topic).id)
        except KafkaError as error:
            raise DataLossError(f"{self._wanted.topic} is gone while it was being read: {error}") from error
        if self._wanted.topic_id and now != self._wanted.topic_id:
            raise DataLossError(
                f"{self._wanted.topic} was deleted and recreated while it was being read (its id was "
                f"{self._wanted.topic_id} and is {now})"
            )

    def _after_loss(self, offset: int) -> int | None:
        """Where to go on when an offset is no longer there; the range's end if all of it is gone."""
        wanted = self._wanted
        first = self._client.list_offsets(wanted.topic, [wanted.partition], EARLIEST)[wanted.partition][0]
        end = self._client.list_offsets(wanted.topic, [wanted.partition], LATEST)[wanted.partition][0]
        reason = "removed by retention or DeleteRecords" if offset < first else "cut off behind the log's end"
        message = (
            f"{self._name}: offset {offset} is out of range, the log has {first} to {end}: "
            f"records up to {min(max(first, offset), wanted.end_offset)} were {reason}"
        )
        if self._settings.fail_on_data_loss:
            raise DataLossError(f"{message}; set failOnDataLoss=false to go on without them")
        warn("ottla", message)
        return first if offset < first < wanted.end_offset else None
