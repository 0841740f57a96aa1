"""The states of a transaction with the table of valid transitions, and the levels of `transaction.version`.

Also which errors a client's API version supports.
"""

from __future__ import annotations

from enum import IntEnum

from ottla.protocol.errors import ErrorCode


class TransactionState(IntEnum):
    """The state of a transaction, with its number in `__transaction_state`; the last two are never written."""

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
        """The name in responses."""
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
"""No transaction is ongoing: a new one may begin, and the transactional id may expire."""

PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
"""The decision is durable and the markers are being written."""

WRITTEN = (*FINISHED, TransactionState.ONGOING, *PREPARED)
"""The states that records may have."""

VALID_PREVIOUS_STATES: dict[TransactionState, tuple[TransactionState, ...]] = {
    TransactionState.EMPTY: FINISHED,
    TransactionState.ONGOING: (TransactionState.ONGOING, *FINISHED),
    TransactionState.PREPARE_COMMIT: (TransactionState.ONGOING,),
    # An abort bumps the epoch even if no transaction is ongoing (KIP-890).
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
        """The version of TransactionLogValue that is written."""
        return 1 if self >= TransactionVersion.TV_1 else 0


def end_txn_version(api_version: int) -> TransactionVersion:
    """Return the transaction version of a client that sends this version of EndTxn."""
    return TransactionVersion.TV_2 if api_version > 4 else TransactionVersion.TV_0


def add_partitions_version(api_version: int) -> TransactionVersion:
    """Return the transaction version of a request: from version 4 on a broker sends it for a producer."""
    return TransactionVersion.TV_2 if api_version > 3 else TransactionVersion.TV_0


# API key -> first version whose clients support PRODUCER_FENCED (KIP-588).
_SUPPORTS_PRODUCER_FENCED = {22: 4, 24: 2, 25: 2, 26: 2}


def fencing_error(error: ErrorCode, api_key: int, api_version: int) -> ErrorCode:
    """Replace PRODUCER_FENCED by INVALID_PRODUCER_EPOCH for clients whose version does not support it."""
    if error is ErrorCode.PRODUCER_FENCED and api_version < _SUPPORTS_PRODUCER_FENCED[api_key]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
