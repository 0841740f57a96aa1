"""ReadShareGroupStateSummary (API 87): the start offset of a share partition without batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from .share_state_requests import ShareStateRequests


@pytest.mark.parametrize("version", [0, 1])
def test_summary_has_start_offset_and_epochs(share_state: ShareStateRequests, version: int) -> None:
    share_state.initialize(3, 5)
    share_state.write(5, 9, state_epoch=3, complete=5)
    summary = share_state.summary(version)
    assert (summary.error_code, summary.state_epoch, summary.start_offset) == (ErrorCode.NONE, 3, 5)
    assert summary.delivery_complete_count == (5 if version else -1)


def test_uninitialized_state_has_no_start_offset(share_state: ShareStateRequests) -> None:
    summary = share_state.summary()
    assert (summary.error_code, summary.start_offset) == (ErrorCode.NONE, -1)


def test_unknown_partition_is_refused(share_state: ShareStateRequests) -> None:
    share_state.partition = 9
    assert share_state.summary().error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
