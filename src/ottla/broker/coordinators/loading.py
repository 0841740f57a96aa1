"""Loads the coordinators' partitions when this node becomes their leader, and unloads them when it no longer is.

Reads the log in pieces, checks CRCs and offsets, and reports records that cannot be loaded. Replaying them is the
coordinators' part.
"""

from __future__ import annotations

import logging
from itertools import zip_longest
from typing import TYPE_CHECKING

from ottla.cluster.coordinator_errors import UnreadableRecord, unreadable
from ottla.cluster.internal_topics import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.pieces import PIECE
from ottla.protocol.errors import ErrorCode
from ottla.records.batch import check_crc, iter_batches
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records
from ottla.storage.errors import CorruptLogError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from ottla.broker.broker import Broker
    from ottla.broker.partition import Partition
    from ottla.records.batch import BatchHeader
    from ottla.records.iterate import Record
    from ottla.world.clock import Clock, Timer

log = logging.getLogger(__name__)

READ_BYTES = 1024 * 1024

START_WORK = 500_000
"""Units of work that all partitions may take together before the loop's first turn: no client waits yet."""

REPORTED_RECORDS = 10
"""The number of unreadable records of a partition that are logged one by one."""


class CoordinatorLoading:
    """Loads partitions of the coordinators of all nodes, in pieces between other work of the loop.

    Until a partition is loaded its coordinator answers COORDINATOR_LOAD_IN_PROGRESS. A record that cannot be loaded
    fails its partition alone: the coordinator refuses requests for it, and the record and the command that removes it
    are logged. The broker and all other partitions are not affected.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[tuple[int, str, int], Generator[int]] = {}
        self._allowance = START_WORK
        self._next_turn: Timer | None = None

    def load(self, broker: Broker, partition: Partition) -> None:
        """Load the coordinator's state of a partition that this node now leads, at once if it is small."""
        key = (broker.node_id, partition.topic, partition.index)
        self._cancel(key)
        steps = self._running[key] = _load(broker, partition)
        next(steps)  # from here on the coordinator answers that it is loading
        self._run_turn()

    def unload(self, broker: Broker, partition: Partition) -> None:
        """Unload the coordinator's state of a partition that this node no longer leads."""
        self._cancel((broker.node_id, partition.topic, partition.index))
        if partition.topic == GROUP_METADATA_TOPIC:
            broker.groups.unload(partition.index)
        elif partition.topic == TRANSACTION_STATE_TOPIC:
            broker.transactions.unload(partition.index)
        elif partition.topic == SHARE_GROUP_STATE_TOPIC:
            broker.share_coordinator.unload(partition.index)
        broker.events.emit("coordinator.unloaded", topic=partition.topic, partition=partition.index)

    def stop(self) -> None:
        """Stop loading, because the nodes stop."""
        for key in list(self._running):
            self._cancel(key)
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None

    def _cancel(self, key: tuple[int, str, int]) -> None:
        steps = self._running.pop(key, None)
        if steps is not None:
            steps.close()

    def _run_turn(self) -> None:
        """Continue the partitions in turn while this turn of the loop has time for it, then wait for the next one."""
        before = self._allowance
        while self._running and self._allowance > 0:
            key, steps = next(iter(self._running.items()))
            del self._running[key]
            slice_end = self._allowance - PIECE
            try:
                while self._allowance > max(slice_end, 0):
                    self._allowance -= next(steps)
            except StopIteration:
                continue
            self._running[key] = steps  # behind the others: small partitions do not wait for a large one
        if self._next_turn is None and (self._running or self._allowance < before):
            self._next_turn = self._clock.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._next_turn = None
        self._allowance = PIECE
        self._run_turn()


def _load(broker: Broker, partition: Partition) -> Generator[int]:
    """Load a partition and report the result; yield the units of work done."""
    batches = read_batches(partition)
    unreadable: list[UnreadableRecord] = []
    if partition.topic == GROUP_METADATA_TOPIC:
        unreadable = yield from broker.groups.load_in_pieces(partition.index, batches)
    elif partition.topic == TRANSACTION_STATE_TOPIC:
        unreadable = yield from broker.transactions.load_in_pieces(
            partition.index, partition.state.leader_epoch, read_records(batches)
        )
    elif partition.topic == SHARE_GROUP_STATE_TOPIC:
        unreadable = yield from broker.share_coordinator.load_in_pieces(partition.index, read_records(batches))
    if unreadable:
        _report_unreadable(partition, unreadable)
    broker.events.emit(
        "coordinator.failed" if unreadable else "coordinator.loaded",
        topic=partition.topic,
        partition=partition.index,
        leader_epoch=partition.state.leader_epoch,
        **({"offset": unreadable[0].offset, "reason": unreadable[0].reason} if unreadable else {}),
    )


def _report_unreadable(partition: Partition, unreadable: list[UnreadableRecord]) -> None:
    name = f"{partition.topic}-{partition.index}"
    log.error(
        "%s: not loaded, because %d of its records cannot be; its coordinator answers NOT_COORDINATOR",
        name,
        len(unreadable),
    )
    directory = partition.log.folder.rpartition("/")[0]
    for offset, reason in unreadable[:REPORTED_RECORDS]:
        log.error(
            "%s: the record at offset %d cannot be loaded: %s; to remove it, stop the broker and run "
            "ottla log repair %s --drop-record %s@%d",
            name,
            offset,
            reason,
            directory,
            name,
            offset,
        )
    if len(unreadable) > REPORTED_RECORDS:
        log.error("%s: %d more records cannot be loaded", name, len(unreadable) - REPORTED_RECORDS)


def read_batches(partition: Partition) -> Iterator[bytes | UnreadableRecord]:
    """Yield all batches of a partition in pieces, and in their place the parts of the log that cannot be read.

    An empty piece means that there are no more batches at this moment; those appended until the next step (transaction
    markers) follow, so that a coordinator may take time to replay what it has. Unlike Kafka's CoordinatorLoaderImpl
    this checks CRCs, so that a flipped bit cannot change an offset silently.
    """
    offset = -1
    try:
        offset = partition.log.log_start_offset
        caught_up = -1
        while offset < partition.log.high_watermark or caught_up < offset:
            end = partition.log.high_watermark
            data = _read_from(partition, offset, end) if offset < end else b""
            if not data:  # the end, or the rest was compacted away
                offset = caught_up = max(offset, end)
                yield b""
                continue
            headers, framing_error = _headers(data)
            start, first_offset = 0, offset
            for header, following in zip_longest(headers, headers[1:]):
                problem = _find_damage(data, header, following, offset, end)
                if problem is None:
                    offset = header.next_offset
                    continue
                if header.position > start:
                    yield data[start : header.position]
                start = header.end
                yield UnreadableRecord(offset, problem)
                next_offset = header.next_offset if following is None else following.base_offset
                offset = min(max(offset + 1, next_offset), end)
            if headers and start < headers[-1].end:
                yield data[start : headers[-1].end]
            if framing_error is not None:
                raise framing_error
            if offset == first_offset:
                raise InvalidRecords(ErrorCode.CORRUPT_MESSAGE, "the batch is longer than the log")
    except Exception as error:  # damage that the log cannot be read beyond
        yield unreadable(offset, error)


def _read_from(partition: Partition, offset: int, end: int) -> bytes:
    """Read whole batches from an offset on; if damage is in the way of a large read, read one batch."""
    try:
        read = partition.log.read(offset, READ_BYTES, end)
    except CorruptLogError:
        read = partition.log.read(offset, 1, end)
    if read.records is None or not len(read):
        return b""
    with read.records as records:
        return records.read_all()


def _headers(data: bytes) -> tuple[list[BatchHeader], InvalidRecords | None]:
    """Return the headers of the batches in a buffer up to an invalid one, and the reason why that is invalid."""
    headers: list[BatchHeader] = []
    try:
        headers.extend(iter_batches(data))
    except InvalidRecords as error:
        return headers, error
    return headers, None


def _find_damage(data: bytes, header: BatchHeader, following: BatchHeader | None, offset: int, end: int) -> str | None:
    """Return why a batch of the log's part from `offset` to `end` is invalid, or None.

    The CRC does not cover the base offset, which is compared with that of the following batch.
    """
    highest = end if following is None or not offset < following.base_offset <= end else following.base_offset
    if header.last_offset < offset or header.next_offset > highest:
        claimed = f"offsets {header.base_offset} to {header.last_offset}"
        return f"the batch has {claimed}, expected offsets from {offset} to {highest - 1}"
    if not check_crc(data, header):
        return "the CRC of the batch is wrong"
    return None


def read_records(pieces: Iterable[bytes | UnreadableRecord]) -> Iterator[Record | UnreadableRecord]:
    """Read the records of batches, without control records."""
    for piece in pieces:
        if isinstance(piece, UnreadableRecord):
            yield piece
            continue
        for header in iter_batches(piece):
            next_offset = header.base_offset
            if header.is_control:
                continue
            try:
                for record in iter_records(piece, header):
                    yield record
                    next_offset = record.offset + 1
            except Exception as error:  # the batch cannot be decompressed or divided into records
                yield unreadable(next_offset, error)
