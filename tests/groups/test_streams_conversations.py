"""The APIs of streams groups against the answers and records of Apache Kafka 4.3.1."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.handlers.local_talk import LocalTalk
from tests.interop.side_by_side import differences
from tests.interop.streams_group_conversations import CONVERSATIONS, SETTINGS, hold, kafkas_answers
from tests.interop.streams_group_talk import StreamsGroupTalk

if TYPE_CHECKING:
    from collections.abc import Iterator


def logs(local: LocalTalk) -> Iterator[bytes]:
    """The segments of the groups' topic."""
    disk = local.world.disk
    for folder in sorted(disk.list("/data")):
        if folder.startswith("__consumer_offsets-"):
            for name in sorted(disk.list(f"/data/{folder}")):
                if name.endswith(".log"):
                    yield disk.read(f"/data/{folder}/{name}")


@pytest.mark.parametrize("sync", [False, True], ids=["", "durable"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_answers_and_records_are_kafkas(name: str, sync: bool) -> None:
    local = LocalTalk(SETTINGS, sync=sync)
    talk = StreamsGroupTalk(local, lambda: logs(local), local.pause)
    talk.find_coordinators()
    answers = json.loads(json.dumps(hold(name, talk)))
    found = differences(kafkas_answers()[name], answers)
    local.close()
    assert not found, "\n".join(f"{label}\n  {what}" for label, what in found.items())
