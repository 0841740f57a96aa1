"""A cluster as text, for the report of a failed test."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ottla.events import for_people

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.testing.control.reading import StateReader

MAX_PARTITIONS = 8


def cluster_report(cluster: StateReader, max_events: int) -> str:
    """Return nodes, topics, groups and transactions of a cluster, then its last events with their times in UTC."""
    nodes = ", ".join(f"{node} at {address}" for node, address in cluster.nodes().items())
    lines = [f"cluster {cluster.cluster_id}, nodes {nodes}"]
    for topic in cluster.topics():
        if not topic.startswith("__"):
            offsets = [
                f"{partition.partition}: {partition.log_start_offset}..{partition.high_watermark}"
                for partition in cluster.partitions(topic)[:MAX_PARTITIONS]
            ]
            lines.append(f"topic {topic}: {', '.join(offsets)}")
    for group in cluster.groups():
        lines.append(f"group {group.group_id} ({group.type}): {group.state}, epoch {group.epoch}")
        lines += [
            f"  member {member.member_id}: {_partition_list(member.assignment)}, epoch {member.epoch}"
            for member in group.members
        ]
        lines += [f"  committed {topic}-{index}: {offset}" for (topic, index), offset in group.offsets.items()]
    for transaction in cluster.transactions():
        partitions = ", ".join(f"{topic}-{index}" for topic, index in transaction.partitions) or "no partitions"
        producer = f"producer {transaction.producer_id} epoch {transaction.producer_epoch}"
        lines.append(f"transaction {transaction.transactional_id}: {transaction.state}, {producer}, {partitions}")
    events = cluster.events()
    lines.append(f"the last {min(max_events, len(events))} of {len(events)} events:")
    lines += [f"  {format_time(event['time'])} {for_people(event)}" for event in events[-max_events:]]
    return "\n".join(lines)


def format_time(time_ms: int) -> str:
    """Return the time of an event in UTC with milliseconds: `2026-11-18 09:30:00.125`."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")


def _partition_list(assignment: Mapping[str, tuple[int, ...]]) -> str:
    if not assignment:
        return "no partitions"
    return ", ".join(f"{topic}{list(indexes)}" for topic, indexes in assignment.items())
