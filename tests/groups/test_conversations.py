"""Recorded conversations of classic, consumer and streams groups: responses and records equal Apache Kafka 4.3.1's."""

from __future__ import annotations

import pytest

from tests.conversations.groups import catalogue as groups
from tests.conversations.groups.talk import GroupTalk
from tests.conversations.local_talk import LocalTalk
from tests.conversations.recording import assert_as_recorded
from tests.conversations.streams import catalogue as streams
from tests.conversations.streams.talk import StreamsGroupTalk

SYNC = pytest.mark.parametrize("sync", [False, True], ids=["", "durable"])


@SYNC
@pytest.mark.parametrize("name", groups.CONVERSATIONS)
def test_group_responses_and_records_equal_kafkas(name: str, sync: bool) -> None:
    local = LocalTalk(groups.SETTINGS, sync=sync)
    talk = GroupTalk(local, lambda: local.segments("__consumer_offsets"), local.pause)
    talk.find_coordinators()
    responses = groups.hold(name, talk)
    local.close()
    assert_as_recorded(groups.RECORDINGS, name, responses)


@SYNC
@pytest.mark.parametrize("name", streams.CONVERSATIONS)
def test_streams_group_responses_and_records_equal_kafkas(name: str, sync: bool) -> None:
    local = LocalTalk(streams.SETTINGS, sync=sync)
    talk = StreamsGroupTalk(local, lambda: local.segments("__consumer_offsets"), local.pause)
    talk.find_coordinators()
    responses = streams.hold(name, talk)
    local.close()
    assert_as_recorded(streams.RECORDINGS, name, responses)
