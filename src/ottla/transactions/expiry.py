"""Finds transactions that have timed out and transactional ids that have expired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.transactions.metadata import NEVER_TIMES_OUT
from ottla.transactions.states import FINISHED, TransactionState

if TYPE_CHECKING:
    from ottla.transactions.metadata import Transaction
    from ottla.transactions.shards import Shard

_BATCH_BYTES = 512 * 1024


def timed_out(shard: Shard, now_ms: int) -> list[Transaction]:
    """Return the transactions of a shard that are ongoing for longer than their timeout."""
    return [
        transaction
        for transaction in shard.transactions.values()
        if transaction.state is TransactionState.ONGOING
        and transaction.pending_state is None
        and transaction.record.timeout_ms != NEVER_TIMES_OUT
        and transaction.record.start_timestamp + transaction.record.timeout_ms < now_ms
    ]


def expired_batches(shard: Shard, now_ms: int, expiration_ms: int) -> list[list[Transaction]]:
    """Return the ids of a shard without an update for `expiration_ms`, grouped so that tombstones fit one batch."""
    batches: list[list[Transaction]] = []
    size = _BATCH_BYTES
    for transaction in shard.transactions.values():
        if (
            transaction.state not in FINISHED
            or transaction.pending_state is not None
            or transaction.record.last_update_timestamp > now_ms - expiration_ms
        ):
            continue
        # Three bytes for each character, and the overhead of a record.
        tombstone_bytes = 3 * len(transaction.transactional_id) + 32
        if size + tombstone_bytes > _BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(transaction)
        size += tombstone_bytes
    return batches
