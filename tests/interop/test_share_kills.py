"""Kills ottla (SIGKILL) while members share a partition: acknowledged records stay acknowledged, in Kafka too."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k78_share_fetch as k78
from ottla.protocol.messages import k79_share_acknowledge as k79
from tests.conversations.broker.shares import ACCEPT, REJECT, RELEASE, Sharing
from tests.conversations.side_by_side import Talk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.ottla_node import OttlaNode

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop

KILLS = 6
RECORDS = 60
SETTINGS = {
    "share.coordinator.snapshot.update.records.per.snapshot": "3",
    # What a member has in its hands stays there until the broker dies.
    "group.share.max.record.lock.duration.ms": "3600000",
    "group.share.record.lock.duration.ms": "3600000",
}
# A leader that has just begun may have nothing to give before it has read its state.
NOT_YET = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
}


class Member:
    """A member that fetches and acknowledges until the broker is killed."""

    def __init__(self, shared: Sharing, name: str, seed: int) -> None:
        self.shared = shared
        self.name = name
        self.random = random.Random(seed)
        self.over: set[int] = set()
        self.epoch = 0

    def fetch(self) -> list[tuple[int, int]]:
        """What the member is given; there must be something."""
        acquired: list[tuple[int, int]] = []

        def come() -> bool:
            acquired[:] = self.fetch_once()
            return bool(acquired)

        self.shared.talk.wait_until(come, f"{self.name} is given nothing")
        return acquired

    def fetch_once(self) -> list[tuple[int, int]]:
        """What the member is given, if anything."""
        request = k78.ShareFetchRequest(
            group_id=self.shared.group,
            member_id=self.name,
            share_session_epoch=self.epoch,
            max_wait_ms=2_000,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=20,
            batch_size=500,
        )
        if self.epoch == 0:
            partition = k78.FetchPartition(partition_index=0)
            request.topics = [k78.FetchTopic(topic_id=self.shared.topic_id, partitions=[partition])]
        response = self.shared.talk.quietly(request, k78.ShareFetchResponse)
        assert response.error_code == 0, response
        self.epoch += 1
        parts = [data for topic in response.responses for data in topic.partitions]
        assert {ErrorCode(part.error_code) for part in parts} <= {ErrorCode.NONE} | NOT_YET, response
        return [
            (acquired_record.first_offset, acquired_record.last_offset)
            for data in parts
            for acquired_record in data.acquired_records
        ]

    def acknowledge(self, first: int, last: int) -> None:
        """Say of each record what became of it, and remember what is over."""
        types = [self.random.choice((ACCEPT, ACCEPT, REJECT, RELEASE)) for _ in range(first, last + 1)]
        batch = k79.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
        partition = k79.AcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])
        request = k79.ShareAcknowledgeRequest(
            group_id=self.shared.group,
            member_id=self.name,
            share_session_epoch=self.epoch,
            topics=[k79.AcknowledgeTopic(topic_id=self.shared.topic_id, partitions=[partition])],
        )
        response = self.shared.talk.quietly(request, k79.ShareAcknowledgeResponse)
        self.epoch += 1
        assert [partition.error_code for topic in response.responses for partition in topic.partitions] == [0], response
        self.over.update(offset for offset, kind in enumerate(types, first) if kind != RELEASE)


def test_acknowledged_records_are_not_redelivered_after_kills(
    ottla_factory: Callable[..., OttlaNode], apache_kafka_factory: Callable[..., ApacheKafka], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    over: set[int] = set()
    node = ottla_factory(data, settings=SETTINGS)
    shared: Sharing | None = None
    for kill in range(KILLS):
        node.start()
        talk = Talk(node.bootstrap, str(node.log_dir))
        if shared is None:
            shared = Sharing(talk)
        shared.talk = talk
        talk.wait_for("t")
        shared.write(*[3] * (RECORDS // 3))
        member = Member(shared, f"member-{kill}", kill)
        for _ in range(kill + 2):
            for first, last in member.fetch():
                assert not over & set(range(first, last + 1)), f"{first}-{last} came again after kill {kill}"
                middle = (first + last) // 2
                member.acknowledge(first, middle)  # the other half is in the member's hands when the broker dies
        over |= member.over
        talk.close()
        node.kill()
    assert shared is not None
    assert over
    for broker in (ottla_factory(data, settings=SETTINGS), apache_kafka_factory(data, settings=SETTINGS)):
        with broker:
            shared.talk = talk = Talk(broker.bootstrap, str(broker.log_dir))
            talk.wait_for("t")
            shared.find_coordinator()
            name = type(broker).__name__
            reader = Member(shared, f"reader of {name}", 0)
            acquired: set[int] = set()
            while len(acquired) <= RECORDS:
                for first, last in reader.fetch():
                    acquired.update(range(first, last + 1))
            while ranges := reader.fetch_once():
                for first, last in ranges:
                    acquired.update(range(first, last + 1))
            assert not over & acquired, f"{name} gave again {sorted(over & acquired)[:5]}"
            talk.close()
