"""The transaction APIs, in every version and with every mistake, against the answers of Apache Kafka 4.3.1."""

from __future__ import annotations

import json

import pytest

from tests.interop.side_by_side import differences
from tests.interop.transaction_conversations import CONVERSATIONS, SETTINGS, hold, kafkas_answers
from tests.interop.transaction_talk import TransactionTalk

from .local_talk import LocalTalk


@pytest.mark.parametrize("sync", [False, True], ids=["", "durable"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_answers_are_kafkas(name: str, sync: bool) -> None:
    local = LocalTalk(SETTINGS, sync=sync)
    talk = TransactionTalk(local, local.pause)
    talk.find_coordinators()
    answers = json.loads(json.dumps(hold(name, talk)))
    found = differences(kafkas_answers()[name], answers)
    local.close()
    assert not found, "\n".join(f"{label}\n  {what}" for label, what in found.items())
