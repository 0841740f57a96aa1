"""Conversations with classic groups, about their offsets, and with administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.messages import k10_find_coordinator as k10
from ottla.protocol.messages import k15_describe_groups as k15
from ottla.protocol.messages import k16_list_groups as k16
from ottla.protocol.messages import k20_delete_topics as k20
from tests.conversations.conversation import LONG_MS, PASSING_MS
from tests.conversations.groups.script import CHANGED, CHANGED_AGAIN, NEWS, conversation, delete, delete_offsets
from tests.conversations.groups.talk import subscription

if TYPE_CHECKING:
    from tests.conversations.groups.talk import GroupTalk

# Classic groups


@conversation
def joining_in_every_version(talk: GroupTalk, name: str) -> None:
    for version in range(10):
        group = f"{name}-{version}"
        member = talk.join(group, version=version).member_id
        if version >= 4:
            talk.join(group, "made-up", version=version)
            member = talk.join(group, member, version=version).member_id
        old = min(version, 4)
        talk.heartbeat(group, member, 1, version=old)
        talk.sync(group, member, 1, {member: b"all of it"}, version=min(version, 5), **whole(version))
        talk.heartbeat(group, member, 1, version=old)
        talk.sync(group, member, 1, version=min(version, 5), **whole(version))
        talk.describe(group, version=min(version, 6))
        talk.leave(group, (member, None), version=min(version, 5))
        talk.heartbeat(group, member, 1, version=old)
        talk.describe(group, version=min(version, 6))


def whole(version: int) -> dict[str, str]:
    return {} if version >= 5 else {"kind": None, "protocol": None}


@conversation
def two_members(talk: GroupTalk, name: str) -> None:
    one = talk.enter(name).member_id
    talk.sync(name, one, 1, {one: b"everything"})
    two = talk.join(name).member_id
    talk.heartbeat(name, one, 1)
    waiting = talk.send_join(name, two)
    talk.until(name, "PreparingRebalance", 2)
    talk.heartbeat(name, one, 1)
    talk.heartbeat(name, two, 1)
    talk.sync(name, one, 1)
    talk.commit(name, {(name, 0): 3}, member=one, generation=1)
    talk.describe(name)
    talk.join(name, one)
    talk.got(waiting)
    talk.until(name, "CompletingRebalance", 2)
    talk.heartbeat(name, one, 2)
    talk.commit(name, {(name, 0): 4}, member=one, generation=2)
    # The same metadata again: the same answer, and no rebalance.
    talk.join(name, two)
    follower = talk.send_sync(name, two, 2)
    talk.sync(name, one, 2, {one: b"half", two: b"other half"})
    talk.got(follower)
    talk.heartbeat(name, one, 2)
    talk.heartbeat(name, two, 2)
    talk.heartbeat(name, two, 1)
    talk.heartbeat(name, two, 3)
    talk.commit(name, {(name, 0): 5}, member=two, generation=2)
    talk.describe(name)
    # In Stable a follower that says nothing new is answered, one whose metadata changed starts a rebalance.
    talk.join(name, two)
    changed = talk.send_join(name, two, protocols={"range": CHANGED})
    talk.until(name, "PreparingRebalance", 2)
    talk.join(name, one)
    talk.got(changed)
    # In CompletingRebalance other metadata starts another one.
    again = talk.send_join(name, two, protocols={"range": CHANGED_AGAIN})
    talk.until(name, "PreparingRebalance", 2)
    talk.sync(name, one, 3, {one: b"1"})
    talk.join(name, one)
    talk.got(again)
    talk.sync(name, one, 4, {one: b"1"})
    talk.sync(name, two, 4)
    # The leader may always start one.
    leading = talk.send_join(name, one)
    talk.until(name, "PreparingRebalance", 2)
    talk.join(name, two, protocols={"range": CHANGED_AGAIN})
    talk.got(leading)
    talk.sync(name, one, 5, {two: b"2"})
    talk.leave(name, (two, None))
    talk.heartbeat(name, one, 5)
    talk.join(name, one)
    talk.sync(name, one, 6, {one: b"alone"})
    talk.leave(name, (one, None), ("nobody", None), (one, None))
    talk.describe(name)
    talk.fetch(name, [(name, 0)])


@conversation
def protocols(talk: GroupTalk, name: str) -> None:
    both = {"range": NEWS, "roundrobin": NEWS}
    one = talk.enter(name, protocols=both).member_id
    talk.sync(name, one, 1, {one: b"all"}, kind="consumer", protocol="roundrobin")
    talk.sync(name, one, 1, {one: b"all"}, kind="connect", protocol="range")
    talk.sync(name, one, 1, {one: b"all"}, kind="consumer", protocol="range")
    talk.join(name, kind="connect")
    talk.join(name, protocols={"sticky": NEWS})
    talk.join(name, one, kind="connect")
    talk.join(name, one, protocols={"sticky": NEWS})
    two = talk.join(name, protocols={"roundrobin": CHANGED, "range": NEWS}).member_id
    waiting = talk.send_join(name, two, protocols={"roundrobin": CHANGED})
    talk.until(name, "PreparingRebalance", 2)
    talk.join(name, one, protocols=both)
    talk.got(waiting)
    talk.sync(name, one, 2, {one: b"1", two: b"2"})
    talk.describe(name)
    # As many like the one best as the other.
    for other in ("roundrobin", "cooperative-sticky", "sticky", "custom"):
        group = f"{name}-{other}"
        one = talk.enter(group, protocols={"range": NEWS, other: NEWS}).member_id
        talk.sync(group, one, 1, {one: b"all"})
        two = talk.join(group, protocols={other: NEWS, "range": NEWS}).member_id
        waiting = talk.send_join(group, two, protocols={other: NEWS, "range": NEWS})
        talk.until(group, "PreparingRebalance", 2)
        talk.join(group, one, protocols={"range": NEWS, other: NEWS})
        talk.got(waiting)
    talk.join(f"{name}-none", protocols={})
    talk.join(f"{name}-no-kind", kind="")
    talk.join(f"{name}-connect", kind="connect", protocols={"sessioned": b"x"})


@conversation
def mistakes_of_classic_members(talk: GroupTalk, name: str) -> None:
    for version in (0, 3, 4, 9):
        talk.join("", version=version)
        talk.join(name, version=version, session_ms=199)
        talk.join(name, version=version, session_ms=LONG_MS + 1)
        talk.join(name, "nobody", version=version)
        talk.join(f"{name}-unheard-of", "nobody", version=version)
    for group in ("", name, f"{name}-nothing"):
        talk.heartbeat(group, "nobody", 1)
        talk.heartbeat(group, "", -1)
        talk.sync(group, "nobody", 1)
        for version in (0, 2, 3, 5):
            talk.leave(group, ("nobody", None), version=version)
        talk.describe(group)
        talk.describe(group, version=5)
        talk.describe_consumers(group)
    one = talk.enter(name).member_id
    for member, generation in ((one, 0), (one, 2), (one, -1), ("nobody", 1), ("", 1)):
        talk.heartbeat(name, member, generation)
        talk.sync(name, member, generation)
        talk.commit(name, {(name, 0): 1}, member=member, generation=generation)
    talk.commit(name, {(name, 0): 1}, member=one, generation=1)
    talk.commit(name, {(name, 0): 1})
    talk.heartbeat(name, one, 1, instance="nobody")
    talk.sync(name, one, 1, instance="nobody")
    talk.commit(name, {(name, 0): 1}, member=one, generation=1, instance="nobody")
    talk.leave(name, (one, "nobody"), ("", "nobody"), ("nobody", None))
    talk.leave(name)
    talk.sync(name, one, 1, {one: b"all", "nobody": b"nothing"})
    talk.commit(name, {(name, 0): 1})
    delete(talk, name, f"{name}-nothing", "", name)
    talk.leave(name, (one, None))
    delete(talk, name)
    talk.describe(name)


@conversation
def static_members(talk: GroupTalk, name: str) -> None:
    one = talk.join(name, instance="i-1").member_id
    talk.sync(name, one, 1, {one: b"all"}, instance="i-1")
    talk.heartbeat(name, one, 1, instance="i-1")
    talk.heartbeat(name, one, 1)
    talk.heartbeat(name, "nobody", 1, instance="i-1")
    talk.heartbeat(name, one, 1, instance="i-2")
    talk.describe(name)
    talk.describe(name, version=3)
    # It comes back without its id: a new id, the same generation, and the old id is fenced.
    new = talk.join(name, instance="i-1").member_id
    talk.heartbeat(name, one, 1, instance="i-1")
    talk.sync(name, one, 1, instance="i-1")
    talk.commit(name, {(name, 0): 1}, member=one, generation=1, instance="i-1")
    talk.commit(name, {(name, 0): 1}, member=new, generation=1, instance="i-1")
    talk.join(name, one, instance="i-1")
    talk.leave(name, (one, "i-1"))
    talk.sync(name, new, 1, instance="i-1")
    talk.heartbeat(name, new, 1, instance="i-1")
    # Another member by the old version's rules, and a second static one.
    waiting = talk.send_join(name, instance="i-2")
    talk.until(name, "PreparingRebalance", 2)
    talk.join(name, new, instance="i-1")
    two = talk.got(waiting).member_id
    talk.sync(name, new, 2, {new: b"1", two: b"2"}, instance="i-1")
    talk.sync(name, two, 2, instance="i-2")
    # Even with other metadata it comes back without a rebalance, unless another protocol is chosen for it.
    two = talk.join(name, instance="i-2", protocols={"range": CHANGED}).member_id
    talk.sync(name, two, 2, instance="i-2")
    talk.describe(name)
    # The leader comes back: it leads under its new id, and is told to leave the assignment as it is.
    leader = talk.join(name, instance="i-1").member_id
    talk.sync(name, leader, 2, instance="i-1")
    talk.join(f"{name}-old", instance="i-1", version=5)
    again = talk.join(f"{name}-old", instance="i-1", version=5).member_id
    talk.sync(f"{name}-old", again, 1, {again: b"all"}, instance="i-1")
    talk.join(f"{name}-old", instance="i-1", version=8)
    talk.leave(name, ("", "i-1"), ("", "i-2"), ("", "i-3"), (leader, None))
    talk.describe(name)


@conversation
def too_many_members(talk: GroupTalk, name: str) -> None:
    one = talk.enter(name).member_id
    talk.sync(name, one, 1, {one: b"all"})
    ids = [talk.join(name).member_id for _ in range(2)]
    waiting = []
    for count, member in enumerate(ids, 2):
        waiting.append(talk.send_join(name, member))
        talk.until(name, "PreparingRebalance", count)
    talk.join(name, one)
    for entry in waiting:
        talk.got(entry)
    for version in (3, 9):
        talk.join(name, version=version)
        talk.join(name, "another", version=version)
    talk.sync(name, one, 2, {one: b"1"})
    for version in (3, 9):
        talk.join(name, version=version)
    talk.join(name, instance="i-1")


@conversation
def late_members(talk: GroupTalk, name: str) -> None:
    # A time that shall pass is given to a member only when nothing is asked of it any more: a static one that comes
    # back brings its times along (a session from its next heartbeat on), and the group goes on. A session ends.
    member = talk.join(name, instance="i-1").member_id
    talk.sync(name, member, 1, {member: b"all"}, instance="i-1")
    member = talk.join(name, instance="i-1", session_ms=PASSING_MS).member_id
    talk.heartbeat(name, member, 1, instance="i-1")
    talk.until(name, "Empty", 0)
    talk.heartbeat(name, member, 1)
    talk.heartbeat(name, member, 1, instance="i-1")
    talk.commit(name, {(name, 0): 1}, member=member, generation=1)
    # The session of one that should sync.
    group = f"{name}-silent"
    member = talk.enter(group).member_id
    talk.sync(group, member, 1, {member: b"all"})
    talk.join(group, member, session_ms=PASSING_MS)
    talk.until(group, "Empty", 0)
    talk.heartbeat(group, member, 2)
    talk.sync(group, member, 2, {member: b"all"})
    # A member does not come to the rebalance, and a static one neither, which stays. Then nobody syncs.
    group = f"{name}-rebalance"
    static = talk.join(group, instance="i-1").member_id
    talk.sync(group, static, 1, {static: b"all"}, instance="i-1")
    one = talk.join(group, rebalance_ms=PASSING_MS).member_id
    waiting = talk.send_join(group, one, rebalance_ms=PASSING_MS)
    talk.until(group, "PreparingRebalance", 2)
    talk.join(group, static, instance="i-1")
    talk.got(waiting)
    follower = talk.send_sync(group, one, 2)
    talk.sync(group, static, 2, {static: b"1", one: b"2"}, instance="i-1")
    talk.got(follower)
    talk.join(group, instance="i-1", rebalance_ms=PASSING_MS)
    two = talk.join(group, rebalance_ms=PASSING_MS).member_id
    talk.got(talk.send_join(group, two, rebalance_ms=PASSING_MS))
    talk.heartbeat(group, one, 3)
    talk.until(group, "Empty", 0)
    talk.sync(group, two, 3, {two: b"all"})
    # A member never syncs.
    group = f"{name}-sync"
    one = talk.enter(group, rebalance_ms=PASSING_MS).member_id
    talk.until(group, "Empty", 0)
    talk.sync(group, one, 1, {one: b"all"})
    # One that was given an id never comes back.
    group = f"{name}-pending"
    talk.join(group, session_ms=PASSING_MS)
    two = talk.enter(group).member_id
    talk.sync(group, two, 1, {two: b"all"})
    talk.describe(group)


# Offsets and administration


@conversation
def topics_made_anew(talk: GroupTalk, name: str) -> None:
    topic = f"{name}-x"
    talk.create(topic, 2)
    talk.commit(name, {(topic, 0): 5, (name, 0): 6}, version=9)
    talk.commit(name, {(topic, 1): 7}, version=10)
    talk.fetch(name, None, version=10)
    request = k20.DeleteTopicsRequest(topics=[k20.DeleteTopicState(name=topic)], timeout_ms=LONG_MS)
    talk.ask(request, k20.DeleteTopicsResponse)
    talk.talk.wait_until(lambda: talk.offset(name, (topic, 1)) == -1, "the offsets are still there")
    talk.fetch(name, None, version=9)
    talk.commit(name, {(topic, 0): 8}, version=9)
    talk.commit(name, {(topic, 0): 8}, version=10)
    delete_offsets(talk, name, (topic, 0), (name, 0))
    talk.create(topic, 2)
    for version in (9, 10):
        talk.fetch(name, [(topic, 0), (topic, 1)], version=version)
        talk.commit(name, {(topic, 0): version}, version=version)
        talk.fetch(name, [(topic, 0)], version=version)
        talk.fetch(name, None, version=version)


@conversation
def offsets(talk: GroupTalk, name: str) -> None:
    for version in range(2, 11):
        group = f"{name}-{version}"
        topic_partitions = {(name, 0): version, (name, 1): 7}
        talk.commit(group, topic_partitions, version=version)
        talk.commit(group, {(name, 9): 1, (name, 0): 2, (f"{name}-none", 0): 3}, version=version)
        talk.commit(group, {(name, 0): 1}, version=version, metadata="01234567890")
        talk.commit(group, {(name, 0): 1}, version=version, metadata="0123456789")
        talk.commit(group, {(name, 1): 1}, version=version, metadata=None)
        talk.commit(group, {(name, 0): -5}, version=version)
        talk.commit(group, {}, version=version)
        talk.commit("", {(name, 0): 1}, version=version)
        talk.commit(group, {(name, 0): 2}, version=version, member="somebody")
        talk.commit(group, {(name, 0): 2}, version=version, generation=3)
        talk.commit(group, {(name, 0): 2}, version=version, member="somebody", generation=3)
        talk.commit(f"{group}-new", {(name, 0): 2}, version=version, member="somebody", generation=3)
        if version >= 7:
            talk.commit(group, {(name, 0): 2}, version=version, instance="somebody")
    talk.commit(f"{name}-kept", {(name, 0): 1}, version=3, retention_ms=3_600_000)
    talk.commit(f"{name}-kept", {(name, 0): 2}, version=2, retention_ms=0)
    group = f"{name}-2"
    for version in range(1, 11):
        talk.fetch(group, [(name, 0), (name, 1)], version=version)
        talk.fetch(group, [(name, 5), (f"{name}-none", 0)], version=version)
        talk.fetch(group, [], version=version)
        talk.fetch("", [(name, 0)], version=version)
        talk.fetch(f"{name}-nobody", [(name, 0)], version=version)
        if version >= 2:
            talk.fetch(group, None, version=version)
            talk.fetch(f"{name}-nobody", None, version=version)
    for version in (8, 9, 10):
        talk.fetch_many([group, f"{name}-nobody", "", f"{name}-3", group], (name, 0), version=version)
    talk.fetch(group, [(name, 0)], member="somebody", epoch=0)
    talk.fetch(f"{name}-nobody", [(name, 0)], member="somebody", epoch=0)
    talk.describe(group)
    delete_offsets(talk, group, (name, 0), (name, 5), (f"{name}-none", 0))
    delete_offsets(talk, group)
    delete_offsets(talk, "", (name, 0))
    delete_offsets(talk, f"{name}-nobody", (name, 0))
    talk.fetch(group, None)
    delete_offsets(talk, group, (name, 0), (name, 1))
    talk.describe(group)
    delete(talk, f"{name}-3")
    talk.fetch(f"{name}-3", None)
    subscribed = talk.enter(f"{name}-4", protocols={"range": subscription(name)}).member_id
    talk.sync(f"{name}-4", subscribed, 1, {subscribed: b""})
    delete_offsets(talk, f"{name}-4", (name, 0))
    delete(talk, f"{name}-4")


@conversation
def administration(talk: GroupTalk, name: str) -> None:
    member = talk.enter(f"{name}-stable").member_id
    talk.sync(f"{name}-stable", member, 1, {member: b"all"})
    talk.enter(f"{name}-completing")
    talk.join(f"{name}-pending")
    talk.commit(f"{name}-simple", {(name, 0): 1})
    talk.arrive(f"{name}-consumer", "m-1", name)
    talk.enter(f"{name}-connect", kind="connect")
    names = [
        f"{name}-{entry}" for entry in ("stable", "completing", "pending", "simple", "consumer", "connect", "none")
    ]
    for version in range(7):
        talk.describe(*names, version=version)
    for version in range(2):
        talk.describe_consumers(*names, version=version)
    talk.ask(
        k15.DescribeGroupsRequest(groups=names[:1], include_authorized_operations=True), k15.DescribeGroupsResponse
    )
    for states, types in (
        ([], []),
        (["Stable"], []),
        (["stable", "EMPTY"], []),
        (["CompletingRebalance", "Nonsense"], []),
        ([], ["classic"]),
        ([], ["Consumer"]),
        (["Stable"], ["consumer", "nonsense"]),
    ):
        response = talk.talk.quietly(
            k16.ListGroupsRequest(states_filter=states, types_filter=types), k16.ListGroupsResponse
        )
        response.groups = [group for group in response.groups if group.group_id.startswith(name)]
        talk.note(f"groups {states} {types}", talk.tree(response, 5))
    for version in range(6):
        response = talk.talk.quietly(k16.ListGroupsRequest(), k16.ListGroupsResponse, version=version)
        response.groups = [group for group in response.groups if group.group_id.startswith(name)]
        talk.note(f"groups v{version}", talk.tree(response, version))
    for version in range(1, 7):
        if version < 4:
            request = k10.FindCoordinatorRequest(key=name, key_type=0)
        else:
            request = k10.FindCoordinatorRequest(coordinator_keys=[name, ""], key_type=0)
        reply = talk.talk.quietly(request, k10.FindCoordinatorResponse, version=version)
        for entry in (reply, *reply.coordinators):
            entry.port = 0
        talk.note(f"coordinator v{version}", talk.tree(reply, version))
    for kind in (2, 3, -1):
        talk.ask(k10.FindCoordinatorRequest(key=name, key_type=kind), k10.FindCoordinatorResponse, 3)
        request = k10.FindCoordinatorRequest(coordinator_keys=[name], key_type=kind)
        talk.ask(request, k10.FindCoordinatorResponse, 4)
    delete(talk, *names)
