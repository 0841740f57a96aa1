"""The states of a transaction and the table of legal ways between them; anything not in the table is invalid.

Also what a transaction version (the feature `transaction.version`) means for the coordinator.
"""

from __future__ import annotations

from enum import IntEnum


class TransactionState(IntEnum):
    """A state; the number is what `__transaction_state` holds. The last two are never written."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name that clients see."""
        return _LABELS[self]


_LABELS = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
    TransactionState.DEAD: "Dead",
    TransactionState.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}

BY_LABEL = {label: state for state, label in _LABELS.items()}

FINISHED = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
"""Nothing is open: a new transaction may begin, and the transactional id may expire."""

PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
"""Decided, while the markers are being written."""

WRITTEN = (*FINISHED, TransactionState.ONGOING, *PREPARED)
"""The states that are records."""

VALID_PREVIOUS_STATES: dict[TransactionState, tuple[TransactionState, ...]] = {
    TransactionState.EMPTY: FINISHED,
    TransactionState.ONGOING: (TransactionState.ONGOING, *FINISHED),
    TransactionState.PREPARE_COMMIT: (TransactionState.ONGOING,),
    # Aborting without an open transaction bumps the epoch all the same (KIP-890).
    TransactionState.PREPARE_ABORT: (
        TransactionState.ONGOING,
        TransactionState.PREPARE_EPOCH_FENCE,
        *FINISHED,
    ),
    TransactionState.COMPLETE_COMMIT: (TransactionState.PREPARE_COMMIT,),
    TransactionState.COMPLETE_ABORT: (TransactionState.PREPARE_ABORT,),
    TransactionState.DEAD: FINISHED,
    TransactionState.PREPARE_EPOCH_FENCE: (TransactionState.ONGOING,),
}


class TransactionVersion(IntEnum):
    """A level of the feature `transaction.version`."""

    TV_0 = 0
    TV_1 = 1
    TV_2 = 2

    @property
    def supports_epoch_bump(self) -> bool:
        """Whether every end of a transaction bumps the producer's epoch (KIP-890, second part)."""
        return self >= TransactionVersion.TV_2

    @property
    def log_value_version(self) -> int:
        """The version in which records of `__transaction_state` are written."""
        return 1 if self >= TransactionVersion.TV_1 else 0


def end_txn_version(api_version: int) -> TransactionVersion:
    """What a client that ends its transaction with this version of EndTxn expects."""
    return TransactionVersion.TV_2 if api_version > 4 else TransactionVersion.TV_0


def add_partitions_version(api_version: int) -> TransactionVersion:
    """Who stands behind this version of AddPartitionsToTxn: from 4 on a broker, on a producer's behalf."""
    return TransactionVersion.TV_2 if api_version > 3 else TransactionVersion.TV_0
