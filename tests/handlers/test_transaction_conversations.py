"""The transaction APIs in every version, with invalid requests, against recorded responses of Apache Kafka 4.3.1."""

from __future__ import annotations

import pytest

from tests.conversations.local_talk import LocalTalk
from tests.conversations.recording import assert_as_recorded
from tests.conversations.transactions.catalogue import CONVERSATIONS, RECORDINGS, SETTINGS, hold
from tests.conversations.transactions.talk import TransactionTalk


@pytest.mark.parametrize("sync", [False, True], ids=["", "durable"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_responses_equal_kafkas(name: str, sync: bool) -> None:
    local = LocalTalk(SETTINGS, sync=sync)
    talk = TransactionTalk(local, local.pause)
    talk.find_coordinators()
    responses = hold(name, talk)
    local.close()
    assert_as_recorded(RECORDINGS, name, responses)
