"""Conversations about share groups and what is kept of them, held with Apache Kafka and with ottla.

Kafka's answers and records are kept as a fixture. Where a hash of a made-up id decides, nothing is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.k16_list_groups import ListGroupsRequest, ListGroupsResponse
from tests.conversations.conversation import LONG_MS
from tests.conversations.groups.script import delete
from tests.conversations.groups.talk import subscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conversations.shares.talk import ShareGroupTalk

SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.snapshot.update.records.per.snapshot": "3",
    "group.initial.rebalance.delay.ms": "0",
    "group.share.session.timeout.ms": str(LONG_MS),
    "group.share.max.session.timeout.ms": str(LONG_MS),
    "group.consumer.session.timeout.ms": str(LONG_MS),
    "group.consumer.max.session.timeout.ms": str(LONG_MS),
    "group.max.session.timeout.ms": str(LONG_MS),
    "share.coordinator.cold.partition.snapshot.interval.ms": str(LONG_MS),
    "group.share.min.heartbeat.interval.ms": "50",
    "group.share.heartbeat.interval.ms": "5000",
    "group.share.assignment.interval.ms": "0",
    "group.share.max.size": "3",
    "group.consumer.heartbeat.interval.ms": "5000",
    "auto.create.topics.enable": "false",
}
RECORDINGS = Path(__file__).with_name("recorded")
CONVERSATIONS: dict[str, Callable[[ShareGroupTalk, str], None]] = {}


def conversation(function: Callable[[ShareGroupTalk, str], None]) -> Callable[[ShareGroupTalk, str], None]:
    CONVERSATIONS[function.__name__] = function
    return function


def hold(name: str, talk: ShareGroupTalk) -> dict[str, Any]:
    """Have one of these conversations."""
    return talk.hold(name, CONVERSATIONS[name])


# Members


@conversation
def one_sharer(talk: ShareGroupTalk, name: str) -> None:
    talk.share_join(name, "m-1", name)
    talk.share(name, "m-1")
    talk.share(name, "m-1")
    talk.share(name, "m-1", by=-1)
    talk.share(name, "m-1", by=-2)
    talk.share(name, "m-1", by=1)
    talk.share(name, "m-1", topics=[name])
    talk.share(name, "m-1", rack="r")
    talk.describe_shares(name)
    talk.share(name, "m-1", epoch=0, topics=[name])
    talk.share(name, "m-1", topics=[name, f"{name}-none"])
    talk.share(name, "m-1", topics=[f"{name}-none"])
    talk.share(name, "m-1")
    talk.describe_shares(name)
    talk.share(name, "m-1", topics=[name])
    talk.share(name, "m-1")
    delete(talk, name)
    talk.share(name, "m-1", epoch=-1)
    talk.share(name, "m-1", epoch=-1)
    talk.share(name, "m-1")
    talk.describe_shares(name, f"{name}-none", "")
    talk.describe(name)
    talk.describe_consumers(name)
    delete(talk, name)


@conversation
def wrong_sharers(talk: ShareGroupTalk, name: str) -> None:
    talk.share(name, "m-1", epoch=5)
    talk.share(name, "m-1", epoch=-1)
    talk.share(name, "", epoch=0, topics=[name])
    talk.share(name, "m" * 37, epoch=0, topics=[name])
    talk.share(name, " ", epoch=0, topics=[name])
    talk.share("", "m-1", epoch=0, topics=[name])
    talk.share(name, "m-1", epoch=0, topics=[name], rack="")
    talk.share(name, "m-1", epoch=0)
    talk.share(name, "m-1", epoch=0, topics=[])
    talk.share(name, "m-1", epoch=-2, topics=[name])
    talk.share_join(name, "m-1", name)
    talk.share(name, "m-2", epoch=3)
    talk.share(name, "m-2", epoch=-1)
    talk.arrive(name, "c-1", name)
    talk.join(name, protocols={"range": subscription(name)})
    talk.heartbeat(name, "m-1", 1)
    talk.leave(name, ("m-1", None))
    talk.commit(name, {(name, 0): 9})
    talk.fetch(name, [(name, 0)])
    other = f"{name}-c"
    talk.arrive(other, "c-1", name)
    talk.share(other, "m-1", epoch=0, topics=[name])
    talk.share(other, "m-1", epoch=3)
    talk.describe_shares(other)


@conversation
def many_sharers(talk: ShareGroupTalk, name: str) -> None:
    talk.counts_partitions = True
    talk.share_join(name, "m-1", name)
    for member in ("m-2", "m-3"):
        talk.share(name, member, epoch=0, topics=[name])
    for member in ("m-1", "m-2", "m-3"):
        talk.share(name, member)
    talk.share(name, "m-4", epoch=0, topics=[name])
    talk.describe_shares(name)
    talk.share(name, "m-2", epoch=-1)
    for member in ("m-1", "m-3"):
        talk.share(name, member)
    talk.create(f"{name}-2", 4)
    talk.share(name, "m-3", topics=[name, f"{name}-2"])
    talk.until_initialized(name, f"{name}-2", 4)
    for member in ("m-1", "m-3", "m-1"):
        talk.share(name, member)
    talk.describe_shares(name)
    request = ListGroupsRequest(types_filter=["share"], states_filter=["Stable"])
    listed = talk.patiently(lambda: talk.talk.quietly(request, ListGroupsResponse))
    talk.note("listed", [talk.tree(group, 5) for group in listed.groups if group.group_id == name])


# Offsets


@conversation
def offsets_of_sharers(talk: ShareGroupTalk, name: str) -> None:
    none = f"{name}-none"
    talk.share_offsets(name, None)
    talk.share_offsets(name, {})
    talk.share_offsets(name, {name: [0, 1], none: [0]})
    talk.delete_share_offsets(name, name)
    talk.alter_share_offsets(name, {name: {0: 25, 9: 1}, none: {0: 1}})
    talk.until_initialized(name, name, 1)
    for version in range(2):
        talk.share_offsets(name, None, version=version)
    talk.describe_shares(name)
    talk.share_join(name, "m-1", name)
    talk.share(name, "m-1")
    talk.alter_share_offsets(name, {name: {1: 25}})
    talk.delete_share_offsets(name, name)
    talk.share_offsets(name, {name: [0, 1], none: [0]})
    talk.share(name, "m-1", epoch=-1)
    talk.alter_share_offsets(name, {name: {1: 30, 2: 3}})
    talk.alter_share_offsets(name, {name: {1: 31}})
    talk.alter_share_offsets("", {name: {1: 31}})
    talk.share_offsets(name, None)
    talk.delete_share_offsets(name, name, none)
    talk.delete_share_offsets(name, name)
    talk.delete_share_offsets("", name)
    talk.share_offsets(name, None)
    delete(talk, name)


@conversation
def deleted_sharers(talk: ShareGroupTalk, name: str) -> None:
    talk.share_join(name, "m-1", name)
    talk.share(name, "m-1")
    talk.share(name, "m-1", epoch=-1)
    delete(talk, name)
    talk.state_summary(name, name, 0, 1)
    talk.share(name, "m-1", epoch=0, topics=[name])
    talk.until_initialized(name, name, 4)
    talk.share(name, "m-1")


# What is kept


@conversation
def kept_state(talk: ShareGroupTalk, name: str) -> None:
    talk.read_state(name, name, 0, 0)
    talk.write_state(name, name, 0)
    talk.state_summary(name, name, 0, 9)
    talk.delete_state(name, name, 0)
    talk.initialize_state(name, name, 0, 1, 10)
    talk.initialize_state(name, name, 9, 1, 10)
    talk.initialize_state(name, name, -1, 1, 10)
    talk.initialize_state(name, f"{name}-none", 0, 1, 10)
    talk.initialize_state("", name, 0, 1, 10)
    talk.initialize_state(name, name, 0, 0, 10)
    talk.read_state(name, name, 0, -1)
    talk.read_state(name, name, 0, 2)
    talk.read_state(name, name, 0, 1)
    talk.read_state(name, name, -1, 1)
    talk.write_state(name, name, 0, (10, 14, 2, 1), state_epoch=1, leader_epoch=2, start_offset=10, complete=5)
    talk.write_state(name, name, 0, state_epoch=1, leader_epoch=1)
    talk.write_state(name, name, 0, state_epoch=0, leader_epoch=2)
    talk.write_state(name, name, -1)
    talk.state_summary(name, name, 0, version=0)
    talk.state_summary(name, name, 0, -1)
    talk.write_state(
        name, name, 0, (15, 19, 0, 1), (12, 16, 4, 2), state_epoch=1, leader_epoch=3, start_offset=11, version=0
    )
    talk.read_state(name, name, 0, 3)
    talk.write_state(name, name, 0, (11, 30, 0, 2), state_epoch=1, leader_epoch=3, start_offset=-1, complete=1)
    talk.read_state(name, name, 0, 3)
    talk.write_state(name, name, 0, (31, 32, 2, 1), state_epoch=1, leader_epoch=3, start_offset=20, complete=1)
    talk.write_state(name, name, 0, (33, 34, 2, 1), state_epoch=1, leader_epoch=3, start_offset=20, complete=1)
    talk.read_state(name, name, 0, 3)
    talk.initialize_state(name, name, 0, 2, -1)
    talk.read_state(name, name, 0, 3)
    talk.read_state(name, name, 0, 2)
    talk.delete_state(name, name, 0, 1)
    talk.read_state(name, name, 0, 3)
    talk.state_summary(name, name, 0)
    talk.initialize_state(name, name, 0, 0, -1)


@conversation
def coordinators_of_shares(talk: ShareGroupTalk, name: str) -> None:
    topic_id = talk.topic_id(name)
    for key in (f"{name}:{topic_id}:0", f"a:b:{topic_id}:3", f":{topic_id}:0", f"{name}:{topic_id}", f"{name}:x:0"):
        for version in (4, 6):
            request = FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
            response = talk.patiently(
                lambda request=request, version=version: talk.talk.quietly(  # type: ignore[misc]
                    request, FindCoordinatorResponse, version=version
                )
            )
            kind = key.replace(str(topic_id), "<id>")
            talk.note(
                f"coordinator of {kind} v{version}", [coordinator.error_code for coordinator in response.coordinators]
            )
