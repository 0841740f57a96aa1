"""The group APIs, in every version and with every mistake, against the answers and records of Apache Kafka 4.3.1."""

from __future__ import annotations

import pytest

from tests.conversations.groups.catalogue import CONVERSATIONS, RECORDINGS, SETTINGS, hold
from tests.conversations.groups.script import configure
from tests.conversations.groups.talk import GroupTalk
from tests.conversations.local_talk import LocalTalk
from tests.conversations.recording import assert_as_recorded


@pytest.mark.parametrize("sync", [False, True], ids=["", "durable"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_answers_and_records_are_kafkas(name: str, sync: bool) -> None:
    local = LocalTalk(SETTINGS, sync=sync)
    talk = GroupTalk(local, lambda: local.segments("__consumer_offsets"), local.pause)
    talk.find_coordinators()
    answers = hold(name, talk)
    local.close()
    assert_as_recorded(RECORDINGS, name, answers)


class MayNotKnowOf:
    """An authorizer that hides one topic."""

    def __init__(self, hidden: str) -> None:
        self._hidden = hidden

    def allowed(self, principal: object, host: str, operation: object, resource: object, name: str) -> bool:
        return name != self._hidden


def test_a_regular_expression_finds_only_topics_that_the_member_may_know_of() -> None:
    local = LocalTalk(SETTINGS)
    talk = GroupTalk(local, lambda: local.segments("__consumer_offsets"), local.pause)
    talk.find_coordinators()
    for name in ("news-1", "news-2"):
        talk.create(name, 1)
    local.cluster.authorizer = MayNotKnowOf("news-2")  # type: ignore[assignment]
    talk.arrive("readers", "m-1", regex="news.*", topics=None)
    talk.until("readers", "Assigning")
    answer = talk.beat("readers", "m-1")
    assert answer.assignment is not None
    assert [each.topic_id for each in answer.assignment.topic_partitions] == [talk.topic_id("news-1")]
    local.close()


def test_configs_of_a_group_change_while_its_members_send_heartbeats() -> None:
    local = LocalTalk(
        {**SETTINGS, "group.consumer.session.timeout.ms": "45000", "group.consumer.max.session.timeout.ms": "60000"}
    )
    talk = GroupTalk(local, lambda: local.segments("__consumer_offsets"), local.pause)
    talk.find_coordinators()
    talk.create("news", 2)
    assert talk.arrive("readers", "m-1", "news").heartbeat_interval_ms == 5_000
    configure(talk, "readers", "consumer.heartbeat.interval.ms", "700")
    configure(talk, "readers", "consumer.session.timeout.ms", "2000")
    assert talk.beat("readers", "m-1").heartbeat_interval_ms == 700
    local.world.clock.advance(1.9)
    assert talk.described("readers") == ("Stable", 1)
    local.world.clock.advance(0.2)
    assert talk.described("readers") == ("Empty", 0)
    # A longer session counts from the next heartbeat on, too; what is not a value changes nothing.
    talk.arrive("readers", "m-2", "news")
    configure(talk, "readers", "consumer.session.timeout.ms", "60001")
    configure(talk, "readers", "consumer.session.timeout.ms", "30000")
    talk.beat("readers", "m-2")
    local.world.clock.advance(29)
    assert talk.described("readers") == ("Stable", 1)
    local.close()
