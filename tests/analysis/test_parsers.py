"""The events that each parser returns for lines of its format, real ones first."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from ottla.analysis.engine import find_pieces
from ottla.analysis.event import COLUMNS, EVENTS, Event, split_partition
from ottla.analysis.inputs import SUMMARY, detect, read_piece
from ottla.analysis.parse import java as parse_java
from ottla.analysis.parse import kgo as parse_kgo
from ottla.analysis.parse import librdkafka as parse_librdkafka
from ottla.analysis.parse import ottla as parse_ottla
from ottla.analysis.parse.timestamps import DAY, milliseconds
from ottla.events import KINDS, Events

FIXTURES = Path(__file__).parent.parent / "fixtures" / "analysis"
BASE = Event(None, "log", file="x", text="")


def events_of(path: Path) -> list[Event]:
    return [event for piece in find_pieces([str(path)]) for event in read_piece(piece) if event.event != SUMMARY]


@pytest.mark.parametrize("name", ["kgo", "librdkafka", "java"])
def test_real_client_logs_are_detected_and_parsed(name):
    path = FIXTURES / f"{name}.log"
    assert detect(str(path)) == name
    events = events_of(path)
    unparsed = [event for event in events if event.event == "unparsed"]
    assert {event.format for event in events if event not in unparsed} == {name}
    # The Java client praises its new protocol in a frame of stars; nothing else is lost on us.
    assert not [event for event in unparsed if not (event.text or "").startswith("*")]
    assert {event.event for event in events} <= EVENTS.keys()
    counts = Counter(event.event for event in events)
    assert counts["group.added"]
    assert counts["group.released"]
    assert counts["group.join"]


def test_columns_match_event_fields():
    assert list(COLUMNS) == list(Event._fields)


def test_kgo_lines_are_parsed():
    line = "[10:19:45.893 29][DEBUG] updated uncommitted; group: g, to: t[2{0=>25=>50 r25 e0}, 3{7=>9 r1 e0}]"
    first, second = parse_kgo.parse(line, BASE)
    assert (first.event, first.topic, first.partition, first.offset, first.state) == (
        "fetch",
        "t",
        2,
        50,
        "from 25, 25 records",
    )
    assert (second.partition, second.offset, second.client) == (3, 9, "29")
    (ended,) = parse_kgo.parse(
        "10:19:45.398 [INFO] ending transaction; transactional_id: p, commit: true, producer_id: 1000, epoch: 3", BASE
    )
    assert (ended.event, ended.state, ended.producer_id, ended.producer_epoch) == ("txn.end", "commit", 1000, 3)
    (failed,) = parse_kgo.parse(
        "[10:19:46.436 16][INFO] heartbeat errored; group: g, err: REBALANCE_IN_PROGRESS: The group is", BASE
    )
    assert failed.error == "REBALANCE_IN_PROGRESS"
    lost, added = parse_kgo.parse("[10:19:46 1][INFO] new group session begun; group: g, added: t[1], lost: t[0]", BASE)
    assert (lost.event, lost.partitions, added.event, added.partitions) == (
        "group.released",
        ["t-0"],
        "group.added",
        ["t-1"],
    )


def test_librdkafka_lines_are_parsed():
    (added,) = parse_librdkafka.parse(
        '%7|1794738087.287|PARTADD|c1#consumer-3| [thrd:main]: Group "g1": add o [3]', BASE
    )
    assert (added.event, added.group, added.partitions, added.time_ms) == (
        "group.added",
        "g1",
        ["o-3"],
        1794738087287,
    )
    (failed,) = parse_librdkafka.parse(
        "%7|1794738087.402|FETCHERR|c1#consumer-3| [thrd:b]: b/1: o [3]: Fetch failed at offset 51 (leader epoch 0): "
        "OFFSET_OUT_OF_RANGE",
        BASE,
    )
    assert (failed.event, failed.error, failed.offset) == ("fetch", "OFFSET_OUT_OF_RANGE", 51)


@pytest.mark.parametrize(
    "head",
    [
        "[2026-11-15 10:00:00,123] INFO ",
        "2026-11-15 10:00:00.123 [main] INFO  o.a.k.c.c.i.ConsumerCoordinator -- ",
        "2026-11-15T10:00:00.123Z INFO ",
    ],
)
def test_java_layouts_are_parsed(head):
    message = "[Consumer clientId=c1, groupId=g] Adding newly assigned partitions: orders-0, orders-1"
    (event,) = parse_java.parse(head + message, BASE)
    assert (event.event, event.client, event.group, event.partitions) == (
        "group.added",
        "c1",
        "g",
        ["orders-0", "orders-1"],
    )
    assert event.time_ms == 1794736800123


def test_timestamps_are_parsed():
    assert milliseconds("2026-11-15T10:00:00+02:00", None) == 1794736800000 - 2 * 3_600_000
    written = 1794736800000
    assert milliseconds("[09:59:59.5 3]", written) == written - 500
    assert milliseconds("[23:00:00 3]", written) == written + 13 * 3_600_000 - DAY, "it was yesterday's"
    assert milliseconds("no time", written) is None
    assert milliseconds("2026-99-99 10:00:00", written) is None


def test_every_event_log_kind_is_parsed():
    lines: list[str] = []
    log = Events(lambda: 5_000, [lambda event: lines.append(json.dumps(event))])
    for kind, about in KINDS.items():
        values = dict.fromkeys((*about.always, *about.sometimes), 1)
        values |= {"partitions": {"t": [0, 1]}, "pending": {}, "offsets": [{"topic": "t", "partition": 0, "offset": 3}]}
        values["errors"] = ["NOT_COORDINATOR"]
        log.emit(2, kind, values)
    for line in lines:
        events = parse_ottla.parse(line, BASE)
        assert events
        assert {event.event for event in events} <= EVENTS.keys(), line
        assert all(event.time_ms == 5_000 for event in events)
    assert parse_ottla.parse('{"seq": 1, "time"', BASE) is None
    assert parse_ottla.parse('{"seq": 1, "time": "x", "kind": "request", "node": 1}', BASE) is None


def test_partition_name_is_split():
    assert split_partition("a-b-3") == ("a-b", 3)
    assert split_partition("nothing") is None
