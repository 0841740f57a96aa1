"""WriteShareGroupState (API 85): the leader of a share partition persists changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from .share_state_requests import ShareStateRequests


def test_writes_are_merged(share_state: ShareStateRequests) -> None:
    share_state.initialize(1, 0)
    assert share_state.write(0, 4).error_code == ErrorCode.NONE
    assert share_state.write(5, 9).error_code == ErrorCode.NONE
    batches = [(batch.first_offset, batch.last_offset) for batch in share_state.read().state_batches]
    assert batches == [(0, 9)]


def test_later_start_offset_drops_batches(share_state: ShareStateRequests) -> None:
    share_state.initialize(1, 0)
    share_state.write(0, 4)
    share_state.write(8, 9, start_offset=5)
    state = share_state.read()
    assert (state.start_offset, [batch.first_offset for batch in state.state_batches]) == (5, [8])


@pytest.mark.parametrize(("version", "expected"), [(0, -1), (1, 3)])
def test_delivery_complete_count_needs_v1(share_state: ShareStateRequests, version: int, expected: int) -> None:
    share_state.initialize(1, 0)
    share_state.write(0, 2, complete=3, version=version)
    assert share_state.summary().delivery_complete_count == expected


def test_other_state_epoch_is_fenced(share_state: ShareStateRequests) -> None:
    share_state.initialize(2)
    assert share_state.write(5, 5, state_epoch=1).error_code == ErrorCode.FENCED_STATE_EPOCH


def test_uninitialized_state_is_invalid_request(share_state: ShareStateRequests) -> None:
    result = share_state.write(0, 0)
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert result.error_message == "Write operation on uninitialized share partition not allowed."
