"""The transaction APIs, in every version and with every mistake, against the answers of Apache Kafka 4.3.1."""

from __future__ import annotations

import pytest

from tests.interop.conversation import assert_as_kept
from tests.interop.transaction_conversations import CONVERSATIONS, KAFKAS_ANSWERS, SETTINGS, hold
from tests.interop.transaction_talk import TransactionTalk

from .local_talk import LocalTalk


@pytest.mark.parametrize("sync", [False, True], ids=["", "durable"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_answers_are_kafkas(name: str, sync: bool) -> None:
    local = LocalTalk(SETTINGS, sync=sync)
    talk = TransactionTalk(local, local.pause)
    talk.find_coordinators()
    answers = hold(name, talk)
    local.close()
    assert_as_kept(KAFKAS_ANSWERS, name, answers)
