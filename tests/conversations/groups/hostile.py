"""Conversations with members who mean no good: names of control characters, repetitions, numbers out of any range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.messages import k08_offset_commit as k08
from ottla.protocol.messages import k09_offset_fetch as k09
from ottla.protocol.messages import k14_sync_group as k14
from ottla.protocol.messages import k15_describe_groups as k15
from ottla.protocol.messages import k42_delete_groups as k42
from ottla.protocol.messages import k68_consumer_group_heartbeat as k68
from ottla.protocol.messages import k69_consumer_group_describe as k69
from tests.conversations.groups.script import conversation, delete_offsets

if TYPE_CHECKING:
    from tests.conversations.groups.talk import GroupTalk

STRANGE = "a\0b\x07\n\u202e\ud7ff"
LEAST, MOST = -(2**31), 2**31 - 1
LEAST_LONG, MOST_LONG = -(2**63), 2**63 - 1


@conversation
def hostile_classic_members(talk: GroupTalk, name: str) -> None:
    for version in (0, 4, 9):
        group = f"{name}-{version}"
        talk.join(f"{group}-{STRANGE}", protocols={STRANGE: b""}, kind=STRANGE, version=version)
        talk.join(group, session_ms=-1, version=version)
        talk.join(group, session_ms=MOST, version=version)
        talk.join(group, STRANGE, version=version)
        talk.join(f"{group}-least", rebalance_ms=LEAST, version=version)
    # Kafka never answers a member that names a protocol twice: that is not asked.
    joined = talk.join(f"{name}-repeated", version=3)
    talk.describe(f"{name}-repeated")
    assigned = [
        k14.SyncGroupRequestAssignment(member_id=member, assignment=data)
        for member, data in ((joined.member_id, b"1"), ("nobody", b"2"), (joined.member_id, b"3"))
    ]
    sync = talk.sync_request(f"{name}-repeated", joined.member_id, 1, protocol=joined.protocol_name)
    sync.assignments = assigned
    talk.ask(sync, k14.SyncGroupResponse, 3)
    for generation in (LEAST, -1, 0, MOST):
        talk.sync(f"{name}-repeated", joined.member_id, generation, version=3)
        talk.heartbeat(f"{name}-repeated", joined.member_id, generation, version=3)
        talk.commit(f"{name}-repeated", {(name, 0): 1}, member=joined.member_id, generation=generation)
    talk.heartbeat(f"{name}-repeated", STRANGE, 1)
    talk.heartbeat(f"{name}-{STRANGE}-none", STRANGE, 1)
    talk.describe(f"{name}-repeated", f"{name}-repeated", f"{name}-none", f"{name}-none")
    talk.leave(f"{name}-repeated", *[(joined.member_id, None)] * 3, ("", STRANGE), version=4)
    for version in range(3):
        request = k42.DeleteGroupsRequest(groups_names=[f"{name}-repeated"] * 3 + [f"{name}-none"] * 2)
        talk.ask(request, k42.DeleteGroupsResponse, version)


@conversation
def hostile_consumers(talk: GroupTalk, name: str) -> None:
    talk.arrive(f"{name}-{STRANGE}", STRANGE, name)
    talk.arrive(f"{name}-strange", "m-1", STRANGE)
    talk.arrive(f"{name}-same", "m-1", *[name] * 5)
    talk.arrive(f"{name}-least", "m-1", name, rebalance_ms=LEAST)
    talk.arrive(f"{name}-empty", "m-1", "")
    talk.arrive(f"{name}-long", "m-1", "n" * 300)
    talk.arrive(name, "m-1", name)
    for epoch in (LEAST, -3, MOST):
        talk.beat(name, "m-1", epoch=epoch)
        talk.fetch(name, [(name, 0)], member="m-1", epoch=epoch)
        talk.commit(name, {(name, 0): 1}, member="m-1", generation=epoch)
    owned = k68.TopicPartitions(topic_id=talk.topic_id(name), partitions=[0, 0, 1, -1, 7, MOST])
    request = k68.ConsumerGroupHeartbeatRequest(
        group_id=name, member_id="m-1", member_epoch=talk.epoch(name, "m-1"), topic_partitions=[owned] * 3
    )
    talk.ask(request, k68.ConsumerGroupHeartbeatResponse)
    talk.beat(name, "m-1", instance=STRANGE)
    talk.beat(name, "m-1", rack=STRANGE)
    talk.beat(name, "m-1", assignor=STRANGE)
    talk.describe_consumers(name, name, f"{name}-none", f"{name}-none")
    request = k69.ConsumerGroupDescribeRequest(group_ids=["", name, f"{name}-{STRANGE}"])
    talk.ask(request, k69.ConsumerGroupDescribeResponse)
    request = k15.DescribeGroupsRequest(groups=[f"{name}-none", STRANGE])
    talk.ask(request, k15.DescribeGroupsResponse)


@conversation
def hostile_offsets(talk: GroupTalk, name: str) -> None:
    def committed(*pairs: tuple[int, int]) -> list[k08.OffsetCommitRequestPartition]:
        return [
            k08.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset) for index, offset in pairs
        ]

    for version in (2, 9):
        topics = [
            k08.OffsetCommitRequestTopic(name=name, partitions=committed((0, 1), (0, 2), (9, 3), (0, 4))),
            k08.OffsetCommitRequestTopic(name=f"{name}-none", partitions=committed((0, 1), (0, 2))),
            k08.OffsetCommitRequestTopic(name=name, partitions=committed((1, 5), (-1, 6), (0, 7))),
            k08.OffsetCommitRequestTopic(name=name, partitions=[]),
            k08.OffsetCommitRequestTopic(name=STRANGE, partitions=committed((0, 1))),
        ]
        request = k08.OffsetCommitRequest(group_id=f"{name}-{version}", topics=topics)
        talk.ask(request, k08.OffsetCommitResponse, version)
        talk.commit(f"{name}-{version}", {(name, 2): LEAST_LONG, (name, 3): MOST_LONG}, version=version)
        talk.commit(f"{name}-{version}", {(name, 2): 1}, metadata=STRANGE, version=version)
        talk.commit(f"{name}-{version}", {(name, 2): 1}, generation=LEAST, version=version)
        talk.commit(f"{name}-{version}", {(name, 2): 1}, member=STRANGE, generation=-1, version=version)
        talk.commit(f"{name}-{version}", {}, version=version)
        talk.fetch(f"{name}-{version}", None)
    topic_partitions = [(name, 0), (name, 0), (name, -1), (name, MOST), (STRANGE, 0), (f"{name}-none", 0)]
    for version in (7, 9, 10):
        talk.fetch(f"{name}-2", topic_partitions, version=version)
        talk.fetch(f"{name}-2", [], version=version)
    topic = k09.OffsetFetchRequestTopics(name=name, partition_indexes=[2, 2, 0, -1])
    group = k09.OffsetFetchRequestGroup(group_id=f"{name}-2", topics=[topic, topic])
    talk.ask(k09.OffsetFetchRequest(groups=[group, group]), k09.OffsetFetchResponse, 9)
    talk.fetch(f"{name}-{STRANGE}", None)
    delete_offsets(talk, f"{name}-2", (name, 0), (name, 0), (name, -1), (name, MOST), (STRANGE, 0))
    delete_offsets(talk, f"{name}-2")
    delete_offsets(talk, STRANGE, (name, 0))
