"""Loads the coordinators' partitions when this node becomes their leader, and unloads them when it no longer is.

Reads the log, checks CRCs and offsets, and reports records that cannot be loaded. Replaying them is the coordinators'
part.
"""

from __future__ import annotations

import logging
from itertools import zip_longest
from typing import TYPE_CHECKING

from ottla.cluster.coordinator_errors import UnreadableRecord, unreadable
from ottla.cluster.internal_topics import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.records.batch import check_crc, iter_batches
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records
from ottla.storage.errors import CorruptLogError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ottla.broker.broker import Broker
    from ottla.broker.partition import Partition
    from ottla.records.batch import BatchHeader
    from ottla.records.iterate import Record

log = logging.getLogger(__name__)

READ_BYTES = 1024 * 1024
REPORTED_RECORDS = 10
"""The number of unreadable records of a partition that are logged one by one."""


def load_coordinator(broker: Broker, partition: Partition) -> None:
    """Load the coordinator's state of a partition that this node now leads.

    A record that cannot be loaded fails this partition alone: the coordinator refuses requests for it, and the record
    and the command that removes it are logged. The broker and all other partitions are not affected.
    """
    unreadable: list[UnreadableRecord] = []
    if partition.topic == GROUP_METADATA_TOPIC:
        unreadable = broker.groups.load(partition.index, read_batches(partition))
    elif partition.topic == TRANSACTION_STATE_TOPIC:
        unreadable = broker.transactions.load(
            partition.index, partition.state.leader_epoch, read_records(read_batches(partition))
        )
    elif partition.topic == SHARE_GROUP_STATE_TOPIC:
        unreadable = broker.share_coordinator.load(partition.index, read_records(read_batches(partition)))
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


def unload_coordinator(broker: Broker, partition: Partition) -> None:
    """Unload the coordinator's state of a partition that this node no longer leads."""
    if partition.topic == GROUP_METADATA_TOPIC:
        broker.groups.unload(partition.index)
    elif partition.topic == TRANSACTION_STATE_TOPIC:
        broker.transactions.unload(partition.index)
    elif partition.topic == SHARE_GROUP_STATE_TOPIC:
        broker.share_coordinator.unload(partition.index)
    broker.events.emit("coordinator.unloaded", topic=partition.topic, partition=partition.index)


def read_batches(partition: Partition) -> Iterator[bytes | UnreadableRecord]:
    """Yield all batches of a partition in pieces, and in their place the parts of the log that cannot be read.

    Unlike Kafka's CoordinatorLoaderImpl this checks CRCs, so that a flipped bit cannot change an offset silently.
    """
    offset = -1
    try:
        offset, end = partition.log.log_start_offset, partition.log.high_watermark
        while offset < end:
            data = _read_from(partition, offset, end)
            if not data:
                return  # the rest was compacted away
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
