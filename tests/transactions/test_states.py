"""The table of valid transitions, and the rules that follow it."""

from __future__ import annotations

import itertools

import pytest

from ottla.transactions.metadata import (
    IllegalTransition,
    Transaction,
    abort_or_commit,
    add_partitions,
    complete,
    fence_producer_epoch,
    increment_producer_epoch,
    new_transaction,
)
from ottla.transactions.states import VALID_PREVIOUS_STATES, TransactionState, TransactionVersion

from .stage import A0, TV_0, TV_2

S = TransactionState


def at(state: TransactionState) -> Transaction:
    transaction = new_transaction("app", 1000, 1000, 0)
    transaction.record = transaction.record._replace(
        state=state, producer_epoch=3, start_timestamp=-1 if state is S.EMPTY else 0
    )
    return transaction


def go(transaction: Transaction, state: TransactionState, version: TransactionVersion = TV_2) -> None:
    if state is S.EMPTY:
        increment_producer_epoch(transaction, 1000, None, 0)
    elif state is S.ONGOING:
        add_partitions(transaction, [A0], version, 0)
    elif state in (S.PREPARE_COMMIT, S.PREPARE_ABORT):
        abort_or_commit(transaction, state, version, -1, 0, no_partition_added=transaction.state is S.EMPTY)
    elif state is S.PREPARE_EPOCH_FENCE:
        fence_producer_epoch(transaction)
    else:
        assert complete(transaction, 0).record.state is state


@pytest.mark.parametrize(
    ("old", "new"), list(itertools.product(S, [s for s in S if s not in (S.DEAD, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)]))
)
def test_transition_is_valid_iff_in_table(old, new):
    if old in VALID_PREVIOUS_STATES[new]:
        go(at(old), new)
    else:
        with pytest.raises(IllegalTransition):
            go(at(old), new)


@pytest.mark.parametrize("old", S)
def test_only_prepared_transactions_complete(old):
    if old is S.PREPARE_COMMIT:
        assert complete(at(old), 0).record.state is S.COMPLETE_COMMIT
    elif old is S.PREPARE_ABORT:
        assert complete(at(old), 0).record.state is S.COMPLETE_ABORT
    else:
        with pytest.raises(IllegalTransition):
            complete(at(old), 0)


@pytest.mark.parametrize("state", [s for s in S if s is not S.DEAD])
def test_pending_transition_blocks_others(state):
    for old in VALID_PREVIOUS_STATES[state]:
        transaction = at(old)
        transaction.pending_state = S.ONGOING
        with pytest.raises(IllegalTransition):
            go(transaction, state)


def test_only_newer_clients_abort_without_transaction():
    with pytest.raises(IllegalTransition):
        go(at(S.EMPTY), S.PREPARE_ABORT, TV_0)


def test_state_labels_equal_kafkas():
    assert [state.label for state in S] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
