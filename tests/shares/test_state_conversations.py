"""The APIs of share groups and their state against recorded responses and records of Apache Kafka 4.3.1."""

from __future__ import annotations

import pytest

from tests.conversations.local_talk import LocalTalk
from tests.conversations.recording import assert_as_recorded
from tests.conversations.shares.catalogue import CONVERSATIONS, RECORDINGS, SETTINGS, hold
from tests.conversations.shares.talk import ShareGroupTalk


@pytest.mark.parametrize("sync", [False, True], ids=["", "durable"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_responses_and_records_equal_kafkas(name: str, sync: bool) -> None:
    local = LocalTalk(SETTINGS, sync=sync)
    talk = ShareGroupTalk(
        local,
        lambda: local.segments("__consumer_offsets"),
        local.pause,
        share_logs=lambda: local.segments("__share_group_state"),
    )
    talk.find_coordinators()
    responses = hold(name, talk)
    local.close()
    assert_as_recorded(RECORDINGS, name, responses)
