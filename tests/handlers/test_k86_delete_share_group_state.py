"""DeleteShareGroupState (API 86): the state of a share partition is deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from .share_state_requests import ShareStateRequests


def test_deleted_state_is_uninitialized(share_state: ShareStateRequests) -> None:
    share_state.initialize(1, 5)
    assert share_state.delete().error_code == ErrorCode.NONE
    assert share_state.summary().start_offset == -1
    assert share_state.read().error_code == ErrorCode.INVALID_REQUEST


def test_delete_of_unknown_state_succeeds(share_state: ShareStateRequests) -> None:
    assert share_state.delete().error_code == ErrorCode.NONE


def test_delete_of_unknown_partition_is_refused(share_state: ShareStateRequests) -> None:
    share_state.partition = 9
    assert share_state.delete().error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
