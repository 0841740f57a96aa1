"""Events of groups with very many tasks."""

from __future__ import annotations

from typing import Any, cast

from ottla.groups.group_events import GroupEvents
from ottla.groups.streams.group import OwnedTasks, StreamsGroup, StreamsMember
from ottla.groups.streams.records import current_assignment


class Sink:
    """A sink that records events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def emit(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))


def test_release_of_one_of_very_many_tasks_is_reported() -> None:
    """Each task is visited once; a quadratic search would take minutes."""
    many = 100_000
    group = StreamsGroup("g")
    group.update_member(StreamsMember("m", assigned=OwnedTasks({"0": dict.fromkeys(range(many), 1)}, {}, {})))
    sink = Sink()
    left = StreamsMember("m", 2, assigned=OwnedTasks({"0": dict.fromkeys(range(1, many), 1)}, {}, {}))
    GroupEvents(cast("Any", sink), cast("Any", None)).writing({"g": group}, [current_assignment("g", left)], -1, -1)
    assert [kind for kind, _ in sink.events] == ["member.revoked", "member.assigned"]
    assert sink.events[0][1]["partitions"] == {"0": [0]}
