"""ReadShareGroupState (API 84): the leader of a share partition reads its state and fences earlier leaders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode

from .share_state_requests import ACKNOWLEDGED

if TYPE_CHECKING:
    from .share_state_requests import ShareStateRequests


def test_read_returns_state_and_batches(share_state: ShareStateRequests) -> None:
    share_state.initialize(1, 5)
    share_state.write(5, 9)
    state = share_state.read()
    assert (state.error_code, state.state_epoch, state.start_offset) == (ErrorCode.NONE, 1, 5)
    batches = [(batch.first_offset, batch.last_offset, batch.delivery_state) for batch in state.state_batches]
    assert batches == [(5, 9, ACKNOWLEDGED)]


def test_read_fences_earlier_leader_epochs(share_state: ShareStateRequests) -> None:
    share_state.initialize()
    assert share_state.read(leader_epoch=3).error_code == ErrorCode.NONE
    assert share_state.read(leader_epoch=2).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert share_state.write(5, 5, leader_epoch=2).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_uninitialized_state_is_invalid_request(share_state: ShareStateRequests) -> None:
    result = share_state.read()
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert result.error_message == "Read operation on uninitialized share partition not allowed."
