"""A cluster as text, for the report of a test that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.events import for_people

if TYPE_CHECKING:
    from ottla.testing.control.reading import StateReading


def cluster_report(cluster: StateReading, most: int) -> str:
    """The last events, then what the cluster holds."""
    lines = [f"cluster {cluster.cluster_id}, nodes " + ", ".join(f"{n} at {a}" for n, a in cluster.nodes().items())]
    for topic in cluster.topics():
        if topic.startswith("__"):
            continue
        shown = [f"{p.index}: {p.log_start_offset}..{p.high_watermark}" for p in cluster.partitions(topic)[:8]]
        lines.append(f"topic {topic}: {', '.join(shown)}")
    for group in cluster.groups():
        lines.append(f"group {group.group_id} ({group.type}): {group.state}, epoch {group.epoch}")
        lines += [
            f"  member {member.member_id}: {_partitions(member.assignment)}, epoch {member.epoch}"
            for member in group.members
        ]
        lines += [f"  committed {topic}-{index}: {offset}" for (topic, index), offset in group.offsets.items()]
    for each in cluster.transactions():
        places = ", ".join(f"{topic}-{index}" for topic, index in each.partitions) or "no partitions"
        producer = f"producer {each.producer_id} epoch {each.producer_epoch}"
        lines.append(f"transaction {each.transactional_id}: {each.state}, {producer}, {places}")
    events = cluster.events()
    lines.append(f"the last {min(most, len(events))} of {len(events)} events:")
    lines += [f"  {event['time']} {for_people(event)}" for event in events[-most:]]
    return "\n".join(lines)


def _partitions(assignment: object) -> str:
    if not isinstance(assignment, dict) or not assignment:
        return "nothing"
    return ", ".join(f"{topic}{list(indexes)}" for topic, indexes in assignment.items())
