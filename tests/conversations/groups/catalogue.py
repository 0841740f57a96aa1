"""Conversations about groups: classic and consumer members, static ones, late ones, wrong ones, and their offsets.

They are held with Apache Kafka, whose answers and records are kept as a fixture, and with ottla, which must give the
same. Where a hash of a made-up id decides (a new leader among several members), nothing is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conversations.conversation import LONG_MS
from tests.conversations.groups import classic as group_classic_conversations
from tests.conversations.groups import consumer as group_consumer_conversations
from tests.conversations.groups import hostile as group_hostile_conversations
from tests.conversations.groups import topics as group_topic_conversations
from tests.conversations.groups import transactional_offsets as group_transaction_conversations
from tests.conversations.groups.script import CONVERSATIONS
from tests.conversations.groups.talk import OFFSETS_PARTITIONS

if TYPE_CHECKING:
    from tests.conversations.groups.talk import GroupTalk

__all__ = [
    "CONVERSATIONS",
    "RECORDINGS",
    "SETTINGS",
    "group_classic_conversations",
    "group_consumer_conversations",
    "group_hostile_conversations",
    "group_topic_conversations",
    "group_transaction_conversations",
]

SETTINGS = {
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "200",
    "group.max.session.timeout.ms": str(LONG_MS),
    "offsets.retention.check.interval.ms": str(LONG_MS),
    "group.max.size": "3",
    "group.consumer.max.size": "3",
    "group.consumer.min.session.timeout.ms": "200",
    "group.consumer.session.timeout.ms": str(LONG_MS),
    "group.consumer.max.session.timeout.ms": str(LONG_MS),
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": "5000",
    "group.consumer.assignment.interval.ms": "0",
    "offset.metadata.max.bytes": "10",
    "auto.create.topics.enable": "false",
}
RECORDINGS = Path(__file__).with_name("recorded")


def hold(name: str, talk: GroupTalk) -> dict[str, Any]:
    """Have one of these conversations."""
    return talk.hold(name, CONVERSATIONS[name])
