"""The APIs of share groups and of their state against the answers and records of Apache Kafka 4.3.1."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.handlers.local_talk import LocalTalk
from tests.interop.share_group_conversations import CONVERSATIONS, SETTINGS, hold, kafkas_answers
from tests.interop.share_group_talk import ShareGroupTalk
from tests.interop.side_by_side import differences

if TYPE_CHECKING:
    from collections.abc import Iterator


def logs(local: LocalTalk, topic: str) -> Iterator[bytes]:
    """The segments of a topic."""
    disk = local.world.disk
    for folder in sorted(disk.list("/data")):
        if folder.startswith(f"{topic}-"):
            for name in sorted(disk.list(f"/data/{folder}")):
                if name.endswith(".log"):
                    yield disk.read(f"/data/{folder}/{name}")


@pytest.mark.parametrize("sync", [False, True], ids=["", "durable"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_answers_and_records_are_kafkas(name: str, sync: bool) -> None:
    local = LocalTalk(SETTINGS, sync=sync)
    talk = ShareGroupTalk(
        local,
        lambda: logs(local, "__consumer_offsets"),
        local.pause,
        share_logs=lambda: logs(local, "__share_group_state"),
    )
    talk.find_coordinators()
    answers = json.loads(json.dumps(hold(name, talk)))
    found = differences(kafkas_answers()[name], answers)
    local.close()
    assert not found, "\n".join(f"{label}\n  {what}" for label, what in found.items())
