"""The event log filter selects the same events, and counts the same lines, as parsing every line."""

from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")
from ottla.analysis import event_log_filter
from ottla.analysis.analyses import ANALYSES
from ottla.analysis.inputs import SUMMARY, Piece, Summary, read_piece
from ottla.analysis.parse.ottla import FORMAT
from tests.analysis.worlds import event_log, healthy_group, stopped_client

if TYPE_CHECKING:
    from ottla.analysis.event import Event


def requests(count: int, seed: int) -> list[str]:
    """Return requests and responses of all kinds, with clock jumps and commits of several offsets."""
    chance = random.Random(seed)
    lines = []
    now = 1_700_000_000_000
    for seq in range(count):
        now += chance.choice([0, 1, 5, 400, -3_000])
        api = chance.choice(["Fetch", "Produce", "Heartbeat", "ConsumerGroupHeartbeat", "EndTxn", "InitProducerId"])
        event = {"seq": seq, "time": now, "node": chance.randrange(3), "kind": ("request", "response")[seq % 2]}
        event |= {"connection": 3, "api": api, "version": 1, "correlation_id": seq // 2, "client_id": 'c "quoted" ü'}
        if chance.randrange(2):
            event |= {"group": chance.choice(["g", 'g"2\\']), "member": "m", "epoch": 1}
        if chance.randrange(4) == 0:
            event |= {"producer_id": 7, "producer_epoch": 0, "transactional_id": "t"}
        if event["kind"] == "response" and chance.randrange(3) == 0:
            event |= {"errors": ["NOT_COORDINATOR"]}
        if chance.randrange(9) == 0:
            offsets = [{"topic": "t", "partition": partition, "offset": 5} for partition in range(chance.randrange(3))]
            event = event | {"kind": "offsets.committed", "group": "g", "offsets": offsets}
            event = {key: value for key, value in event.items() if key not in ("connection", "api")}
        lines.append(json.dumps(event, separators=(",", ":"), ensure_ascii=False) + "\n")
    return lines


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> str:
    with event_log() as lines:
        healthy_group(4)
        stopped_client(2)
    lines = [*lines, *requests(800, 1)]
    lines.insert(30, "something else\n")
    lines.insert(60, "\n")
    lines.insert(90, lines[90][:70] + "\n")
    lines.insert(200, "[10:00:06 1][DEBUG] heartbeating; group: g\n")
    path = tmp_path_factory.mktemp("sieve") / "events.jsonl"
    path.write_text("".join(lines) + '{"seq":1,"time":5,"no')
    return str(path)


def read(path: str, kind: str, wants: frozenset[str], size: int) -> tuple[list[Event], Summary]:
    events: list[Event] = []
    summary = Summary()
    length = os.path.getsize(path)
    for start in range(0, length, size):
        for event in read_piece(Piece(path, start, min(start + size, length), kind), wants):
            if event.event == SUMMARY:
                summary.add(Summary.from_text(event.text or ""))
            else:
                events.append(event)
    return sorted(events, key=lambda event: (event.position, event.event, event.partition or 0)), summary


def of_interest(event: Event) -> bool:
    """Return whether a rule uses an event: not requests without a producer, nor responses without an error."""
    if event.event == "request":
        return event.producer_id is not None
    return event.event != "response" or event.error is not None


@pytest.mark.parametrize("size", [10**9, 20_000])
@pytest.mark.parametrize("name", ["dual-assign", "txn-timeout", "rebalances", "client-trace", "lag"])
def test_filter_equals_parsing_every_line(log, name, size, monkeypatch):
    monkeypatch.setattr(event_log_filter, "BLOCK", 5_000)
    wants = ANALYSES[name].wants
    filtered, quick = read(log, FORMAT, wants, size)
    every, slow = read(log, "", wants, size)
    fields = [(event.position, event.event, event.time_ms, event.group, event.member, event.host) for event in filtered]
    expected = [(event.position, event.event, event.time_ms, event.group, event.member, event.host)
                for event in every if of_interest(event)]  # fmt: skip
    assert [values for values in fields if values[1] not in ("request", "response")] == [
        values for values in expected if values[1] not in ("request", "response")
    ]
    assert {values[:3] for values in fields} == {values[:3] for values in expected}
    assert (quick.lines, quick.events, quick.unparsed) == (slow.lines, slow.events, slow.unparsed)
    assert (quick.first_ms, quick.last_ms) == (slow.first_ms, slow.last_ms)
    assert quick.formats == slow.formats
    assert (quick.jumps, quick.worst_jump_ms) == (slow.jumps, slow.worst_jump_ms)


def test_filter_keeps_heartbeats_around_group_events(log, monkeypatch):
    monkeypatch.setattr(event_log_filter, "BLOCK", 5_000)
    heartbeat = '{{"seq":{0},"time":{0},"node":1,"kind":"request","connection":1,"api":"Heartbeat","group":"{1}"}}\n'
    moved = '{{"seq":{0},"time":{0},"node":1,"kind":"group.state","group":"{1}","to":"Stable","epoch":1}}\n'
    lines = [(moved if number == 500 else heartbeat).format(number, f"g{number % 2}") for number in range(1_000)]
    path = log + ".heartbeats"
    with open(path, "w") as file:
        file.writelines(lines)
    analysis = ANALYSES["dual-assign"]
    events = list(read_piece(Piece(path, 0, len("".join(lines)), FORMAT), analysis.wants, analysis.evidence))
    summary = Summary.from_text(events.pop().text or "")
    assert (summary.lines, summary.events) == (1_000, 1_000)
    times = {group: [event.time_ms for event in events if event.group == group] for group in ("g0", "g1")}
    assert times["g0"] == [*range(488, 514, 2), *range(988, 1_000, 2)], "six before, six after, six at the end"
    assert times["g1"] == list(range(989, 1_000, 2)), "only those that may belong to what comes next"
