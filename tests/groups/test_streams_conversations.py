"""The APIs of streams groups against the answers and records of Apache Kafka 4.3.1."""

from __future__ import annotations

import pytest

from tests.conversations.local_talk import LocalTalk
from tests.conversations.recording import assert_as_recorded
from tests.conversations.streams.catalogue import CONVERSATIONS, RECORDINGS, SETTINGS, hold
from tests.conversations.streams.talk import StreamsGroupTalk


@pytest.mark.parametrize("sync", [False, True], ids=["", "durable"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_answers_and_records_are_kafkas(name: str, sync: bool) -> None:
    local = LocalTalk(SETTINGS, sync=sync)
    talk = StreamsGroupTalk(local, lambda: local.segments("__consumer_offsets"), local.pause)
    talk.find_coordinators()
    answers = hold(name, talk)
    local.close()
    assert_as_recorded(RECORDINGS, name, answers)
