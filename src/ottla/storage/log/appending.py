"""Appends to a log (Kafka's UnifiedLog.append): validate, assign offsets, update producer state, write, index.

The functions of this module are methods of `Log`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.builder import build_end_transaction_marker
from ottla.records.validate import ValidationDeferredError
from ottla.storage.log.indexes import AbortedTxn
from ottla.storage.log.producer_state import AppendOrigin, read_marker
from ottla.storage.log.rolling import segment_for
from ottla.storage.log.validation import (
    rules_for,
    stamp_append_time,
    validate_ahead,
    validate_as_leader,
    validate_raw,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.records.batch import BatchHeader
    from ottla.records.control import ControlType
    from ottla.records.validate import ValidBatch
    from ottla.storage.log.log import Log
    from ottla.storage.log.producer_state import CompletedTxn, ProducerAppend
    from ottla.storage.log.segment import Segment
    from ottla.storage.log.validation import ValidatedRecords
    from ottla.world.disk import Buffer


class AppendResult(NamedTuple):
    """The offsets of an append (for a duplicate, of its first append), and the LogAppendTime or -1."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool


def append_as_leader(
    log: Log,
    records: Buffer,
    leader_epoch: int,
    *,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    verified: bool = True,
    supports_epoch_bump: bool = False,
    transaction_version: int = 0,
    parsed_header: BatchHeader | None = None,
    may_defer: bool = False,
    validated: ValidatedRecords | None = None,
) -> AppendResult:
    """Validate a batch, assign its offsets and write it (Kafka's appendAsLeader). A writable buffer is stamped in
    place.

    `verified`: the coordinator has confirmed the transaction of a producer that has none open in this log.
    `supports_epoch_bump`: the producer begins each transaction with a new epoch (KIP-890). `parsed_header`: the header
    of a client's batch, if the caller has parsed it.

    With `may_defer`, raise `ValidationDeferredError` and change nothing if validation would take more than a few
    milliseconds; then run `validation_ahead` in a worker, and append again with its result as `validated`.
    """
    if not log._loaded:
        log.load()
    env, config = log.env, log.config
    if env.failure is not None:
        env.check()
    if env.memory is not None:
        env.memory.admit(len(records), from_client=origin is AppendOrigin.CLIENT)
    now = env.clock.now_ms()
    rules = log._client_rules
    if rules is None or config is not log._rules_config:
        log._rules_config = config
        rules = log._client_rules = rules_for(config, True)
    if origin is not AppendOrigin.CLIENT:
        rules = rules_for(config, False)
    if validated is None:
        batches = validate_as_leader(records, rules, now, header=parsed_header, inline=may_defer)
    elif validated.rules == rules:
        batches = stamp_append_time(validated.batches, now)
    else:  # the topic's config changed meanwhile
        raise ValidationDeferredError
    first = offset = log._log_end_offset
    size, max_timestamp = 0, -1
    producers: dict[int, ProducerAppend] | None = None
    completed: list[CompletedTxn] = []
    for valid in batches:
        header = valid.header
        if header.producer_id >= 0:
            if producers is None:
                producers = {}
            duplicate = _stage_producer(
                log,
                valid.batch,
                header,
                offset,
                valid.max_timestamp,
                origin,
                producers,
                completed,
                verified,
                supports_epoch_bump,
                transaction_version,
            )
            if duplicate is not None:
                return duplicate
        size += len(valid.batch)
        if valid.max_timestamp > max_timestamp:
            max_timestamp = valid.max_timestamp
        offset += header.last_offset_delta + 1
    if size > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"{size} bytes of batches are more than segment.bytes, {config.segment_bytes}.",
        )
    if not batches:
        return AppendResult(-1, -1, -1, log._log_start_offset, False)
    try:
        segment = segment_for(log, size, max_timestamp, offset - 1, now)
        _write_as_leader(log, segment, batches, first, leader_epoch)
        _appended(log, offset, segment, producers, completed)
    except OSError as error:
        raise env.fail(error) from error
    return AppendResult(first, offset - 1, batches[0].log_append_time, log._log_start_offset, False)


def validation_ahead(log: Log, records: Buffer) -> Callable[[], ValidatedRecords]:
    """Return a function that validates a client's batch in a worker; nothing may change `records` meanwhile."""
    return partial(validate_ahead, records, rules_for(log.config, True), log.env.clock.now_ms())


def _write_as_leader(log: Log, segment: Segment, batches: list[ValidBatch], offset: int, leader_epoch: int) -> None:
    """Stamp batches with offsets and leader epoch, write them in one call, and index each."""
    if leader_epoch >= 0 and leader_epoch != log.epochs.latest:
        log.epochs.assign(leader_epoch, offset)
    interval = log.config.index_interval_bytes
    if len(batches) == 1:
        valid = batches[0]
        stamped = valid.stamp(offset, leader_epoch)
        position = segment.append(stamped)
        last_offset = offset + valid.header.last_offset_delta
        segment.index_batch(last_offset, valid.max_timestamp, position, len(stamped), interval)
        return
    parts = []
    next_offset = offset
    for valid in batches:
        parts.append(valid.stamp(next_offset, leader_epoch))
        next_offset += valid.header.last_offset_delta + 1
    position = segment.append(*parts)
    for valid, part in zip(batches, parts, strict=True):
        last_offset = offset + valid.header.last_offset_delta
        segment.index_batch(last_offset, valid.max_timestamp, position, len(part), interval)
        position += len(part)
        offset = last_offset + 1


def append_raw(log: Log, records: Buffer, *, origin: AppendOrigin = AppendOrigin.REPLICATION) -> AppendResult:
    """Append batches that have offsets and leader epochs already (Kafka's appendAsFollower); neither may decrease."""
    if not log._loaded:
        log.load()
    log.env.check()
    headers = validate_raw(records, log._log_end_offset)
    if not headers:
        return AppendResult(-1, -1, -1, log._log_start_offset, False)
    config = log.config
    producers: dict[int, ProducerAppend] | None = None
    completed: list[CompletedTxn] = []
    for header in headers:
        if header.producer_id >= 0:
            if producers is None:
                producers = {}
            _stage_producer(
                log, records, header, header.base_offset, header.max_timestamp, origin, producers, completed
            )
    first, last = headers[0].base_offset, headers[-1].last_offset
    try:
        now = log.env.clock.now_ms()
        max_timestamp = max(header.max_timestamp for header in headers)
        segment = segment_for(log, len(records), max_timestamp, last, now, first)
        position = segment.append(records)
        for header in headers:
            segment.index_batch(
                header.last_offset,
                header.max_timestamp,
                position + header.position,
                header.size,
                config.index_interval_bytes,
            )
            log.epochs.assign(header.partition_leader_epoch, header.base_offset)
        _appended(log, last + 1, segment, producers, completed)
    except OSError as error:
        raise log.env.fail(error) from error
    return AppendResult(first, last, -1, log._log_start_offset, False)


def append_marker(
    log: Log,
    control_type: ControlType,
    leader_epoch: int,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    transaction_version: int = 0,
) -> AppendResult:
    """Append the control batch that commits or aborts a producer's transaction."""
    batch = build_end_transaction_marker(
        control_type,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=log.env.clock.now_ms(),
    )
    return log.append_as_leader(
        batch, leader_epoch, origin=AppendOrigin.COORDINATOR, transaction_version=transaction_version
    )


def has_ongoing_transaction(log: Log, producer_id: int, producer_epoch: int) -> bool:
    """Return whether a producer has a transaction open in this log, in that epoch."""
    if not log._loaded:
        log.load()
    entry = log.producers.producers.get(producer_id)
    return entry is not None and entry.current_txn_first_offset >= 0 and entry.producer_epoch == producer_epoch


def _stage_producer(
    log: Log,
    buffer: Buffer,
    header: BatchHeader,
    base_offset: int,
    max_timestamp: int,
    origin: AppendOrigin,
    producers: dict[int, ProducerAppend],
    completed: list[CompletedTxn],
    verified: bool = True,
    supports_epoch_bump: bool = False,
    transaction_version: int = 0,
) -> AppendResult | None:
    """Check a batch against its producer's state; return the first result if the batch is a duplicate."""
    producer_id = header.producer_id
    if origin is AppendOrigin.CLIENT:
        entry = log.producers.producers.get(producer_id)
        if entry is not None:
            known = entry.find_duplicate(header.producer_epoch, header.base_sequence, header.last_sequence)
            if known is not None:
                return AppendResult(known.first_offset, known.last_offset, known.timestamp, log._log_start_offset, True)
    if (
        not verified
        and header.is_transactional
        and not header.is_control
        and not log.has_ongoing_transaction(producer_id, header.producer_epoch)
    ):
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction.")
    append = producers.get(producer_id)
    if append is None:
        append = producers[producer_id] = log.producers.prepare(
            producer_id, origin, supports_epoch_bump=supports_epoch_bump
        )
    if header.is_control:
        marker = read_marker(buffer, header)
        if marker is not None:
            done = append.append_marker(marker[0], header.producer_epoch, base_offset, marker[1], transaction_version)
            if done is not None:
                completed.append(done)
    else:
        append.append_data(header, base_offset, max_timestamp)
    return None


def _appended(
    log: Log,
    log_end_offset: int,
    segment: Segment,
    producers: dict[int, ProducerAppend] | None,
    completed: list[CompletedTxn],
) -> None:
    log._log_end_offset = log_end_offset
    state = log.producers
    if producers is not None:
        for append in producers.values():
            state.update(append)
        for transaction in completed:
            log.finish_transaction(segment, transaction)
    state.map_end_offset = log_end_offset
    if not log._hold_high_watermark:
        log._set_high_watermark(log_end_offset)
    if log_end_offset - log.recovery_point >= log.config.flush_messages:
        log.flush()


def finish_transaction(log: Log, segment: Segment, completed: CompletedTxn) -> None:
    """Close a transaction whose marker is in `segment`; add an aborted one to the transaction index."""
    if completed.aborted:
        stable = log.producers.last_stable_after(completed)
        entry = AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable)
        segment.add_aborted(entry)
        if not log.txn_bases or log.txn_bases[-1] != segment.base_offset:
            log.txn_bases.append(segment.base_offset)
    log.producers.complete(completed, log._high_watermark)
