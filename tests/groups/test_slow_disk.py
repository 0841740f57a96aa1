"""Responses under `--sync` on a slow disk: none is sent before the records appended earlier are durable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import encode_request
from ottla.protocol.messages import k08_offset_commit as k08
from ottla.protocol.messages import k10_find_coordinator as k10
from ottla.protocol.messages import k11_join_group as k11
from ottla.protocol.messages import k14_sync_group as k14
from ottla.world.disk_faulty import FaultyDisk
from tests.conversations.local_talk import CLIENT_ID, LocalTalk
from tests.groups.world import subscription

if TYPE_CHECKING:
    from ottla.protocol.schema import Message

GROUP = "g"
SYNC_SECONDS = 5.0
SETTINGS = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}


class SlowBroker:
    """A broker with `--sync` in virtual time; a sync of its disk takes five seconds once `slow()` was called."""

    def __init__(self) -> None:
        self.local = LocalTalk(SETTINGS, sync=True)
        self.local.create("t")
        self.local.quietly(k10.FindCoordinatorRequest(coordinator_keys=[GROUP]), k10.FindCoordinatorResponse, version=4)

    def slow(self) -> None:
        disk = self.local.world.disk
        assert isinstance(disk, FaultyDisk)
        disk.sync_seconds = (SYNC_SECONDS, SYNC_SECONDS)

    def advance(self, seconds: float) -> None:
        self.local.world.clock.advance(seconds)

    def send(self, request: Message, version: int) -> Any:
        """Send a request; return its response, or the Pending of it."""
        key = request.__schema__.api_key
        assert key is not None
        return self.local.ask_frame(encode_request(key, version, 7, CLIENT_ID, request))

    def commit(self, offset: int) -> Any:
        partition = k08.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = k08.OffsetCommitRequestTopic(name="t", partitions=[partition])
        return self.send(k08.OffsetCommitRequest(group_id="other", topics=[topic]), 9)

    def join(self, member_id: str = "") -> k11.JoinGroupRequest:
        protocol = k11.JoinGroupRequestProtocol(name="range", metadata=subscription("t"))
        return k11.JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=600_000,
            rebalance_timeout_ms=600_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[protocol],
        )

    def joined_member(self) -> str:
        """Join the group as its only member; return the member id."""
        response = self.local.quietly(self.join(), k11.JoinGroupResponse, version=3)
        assert (response.error_code, response.generation_id) == (ErrorCode.NONE, 1)
        return response.member_id

    def sync(self, member_id: str) -> k14.SyncGroupRequest:
        assignment = k14.SyncGroupRequestAssignment(member_id=member_id, assignment=b"assigned")
        return k14.SyncGroupRequest(group_id=GROUP, generation_id=1, member_id=member_id, assignments=[assignment])


@pytest.fixture
def broker() -> SlowBroker:
    return SlowBroker()


def is_answered(response: Any) -> bool:
    return not isinstance(response, Pending) or response.done


def assert_waits_for_disk(broker: SlowBroker, *responses: Any) -> None:
    """Assert that no response comes before the disk has synced, and that all come once it has."""
    broker.advance(SYNC_SECONDS - 1)
    assert [is_answered(response) for response in responses] == [False] * len(responses)
    broker.advance(SYNC_SECONDS + 1)
    assert [is_answered(response) for response in responses] == [True] * len(responses)


def test_member_id_required_waits_for_the_record_of_the_new_group(broker: SlowBroker) -> None:
    broker.slow()
    assert_waits_for_disk(broker, broker.send(broker.join(), 4))


def test_join_of_new_group_waits_for_its_record(broker: SlowBroker) -> None:
    broker.slow()
    assert_waits_for_disk(broker, broker.send(broker.join(), 3))


def test_rejoin_waits_for_earlier_records_of_other_groups(broker: SlowBroker) -> None:
    member_id = broker.joined_member()
    broker.slow()
    commit = broker.commit(1)
    assert_waits_for_disk(broker, commit, broker.send(broker.join(member_id), 3))


def test_leaders_sync_waits_for_the_assignment(broker: SlowBroker) -> None:
    member_id = broker.joined_member()
    broker.slow()
    assert_waits_for_disk(broker, broker.send(broker.sync(member_id), 3))


def test_sync_of_stable_group_waits_for_earlier_records_of_other_groups(broker: SlowBroker) -> None:
    member_id = broker.joined_member()
    stable = broker.local.quietly(broker.sync(member_id), k14.SyncGroupResponse, version=3)
    assert stable.assignment == b"assigned"
    broker.slow()
    commit = broker.commit(1)
    assert_waits_for_disk(broker, commit, broker.send(broker.sync(member_id), 3))


def test_join_and_sync_respond_at_once_when_everything_is_durable(broker: SlowBroker) -> None:
    member_id = broker.joined_member()
    broker.local.quietly(broker.sync(member_id), k14.SyncGroupResponse, version=3)
    broker.slow()
    assert is_answered(broker.send(broker.sync(member_id), 3))
