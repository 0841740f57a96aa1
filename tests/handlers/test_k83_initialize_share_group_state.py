"""InitializeShareGroupState (API 83): the state of a share partition is initialized or reset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k83_initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)

if TYPE_CHECKING:
    from .share_state_requests import ShareStateRequests


def test_state_has_start_offset(share_state: ShareStateRequests) -> None:
    assert share_state.initialize(start_offset=5).error_code == ErrorCode.NONE
    assert share_state.summary().start_offset == 5


def test_later_state_epoch_resets_state(share_state: ShareStateRequests) -> None:
    share_state.initialize(1, 5)
    share_state.write(5, 9)
    assert share_state.initialize(2, 7).error_code == ErrorCode.NONE
    state = share_state.read()
    assert (state.state_epoch, state.start_offset, state.state_batches) == (2, 7, [])


def test_earlier_state_epoch_is_fenced(share_state: ShareStateRequests) -> None:
    share_state.initialize(2)
    assert share_state.initialize(1).error_code == ErrorCode.FENCED_STATE_EPOCH


@pytest.mark.parametrize(
    ("partition", "code"), [(9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (-1, ErrorCode.INVALID_REQUEST)]
)
def test_unknown_partition_is_refused(share_state: ShareStateRequests, partition: int, code: ErrorCode) -> None:
    share_state.partition = partition
    assert share_state.initialize().error_code == code


def test_empty_group_gets_empty_response(share_state: ShareStateRequests) -> None:
    request = InitializeShareGroupStateRequest(group_id="")
    assert share_state.broker.quietly(request, InitializeShareGroupStateResponse).results == []
