"""The records of a streams group as events: its tasks are partitions of its subtopologies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.analysis.analyses import ANALYSES
from ottla.analysis.engine import evaluate
from ottla.analysis.parse.kafka_records import group_events
from ottla.groups.settings import GroupSettings
from ottla.records.iterate import iter_all_records
from tests.analysis.worlds import with_summary
from tests.groups.streams.members import StreamsClient
from tests.groups.streams.test_simulation import Simulation
from tests.groups.world import World

if TYPE_CHECKING:
    from ottla.analysis.event import Event


def log_of(world: World) -> list[Event]:
    return [
        event
        for batch in world.log.batches.get(0, [])
        for _, record in iter_all_records(batch)
        for event in group_events(record, "__consumer_offsets-0", {})
    ]


def test_streams_records_hold_task_assignments() -> None:
    world = World()
    world.create_topic("t", 2)
    world.settings.default_group = GroupSettings(streams_initial_rebalance_delay_ms=0, streams_assignment_interval_ms=0)
    first, second = StreamsClient(world, "a"), StreamsClient(world, "b")
    first.join()
    second.join()
    first.beat()
    first.beat()
    second.beat()
    first.leave()
    events = log_of(world)
    assert {(event.group, event.protocol) for event in events} == {("g", "streams")}
    assert [(event.member, event.text) for event in events if event.event == "group.join"] == [
        ("a", "a thread of process process of a"),
        ("b", "a thread of process process of b"),
    ]
    assert [
        (event.member, event.epoch, event.state, event.partitions, event.pending)
        for event in events
        if event.event == "group.assigned"
    ] == [
        ("a", 2, "Stable", ["0-0", "0-1"], []),
        ("b", 3, "UnreleasedTasks", [], []),
        ("a", 2, "UnrevokedTasks", ["0-0"], ["0-1"]),
        ("a", 3, "Stable", ["0-0"], []),
        ("b", 3, "Stable", ["0-1"], []),
    ]
    assert [event.member for event in events if event.event == "group.left"] == ["a", "a"]
    assert [event.epoch for event in events if event.event == "group.state"] == [2, 3, 4]


def test_streams_tasks_have_one_owner() -> None:
    for seed in range(10):
        simulation = Simulation(seed)
        simulation.run()
        report = evaluate(ANALYSES["dual-assign"], with_summary(log_of(simulation.world)))
        assert not report.has_problem, f"seed {seed}: {report.verdict}"
