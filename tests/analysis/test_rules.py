"""Each rule on a few lines written for it: captures, client logs, log directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.analysis.analyses import ANALYSES
from ottla.analysis.engine import evaluate, find_pieces, run_here
from ottla.analysis.event import Event
from ottla.protocol.capture import REQUEST, RESPONSE, CapturedFrame, header_line, to_line
from ottla.protocol.framing import encode_request, encode_response
from ottla.protocol.messages.k68_consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.protocol.uuids import Uuid
from tests.analysis.worlds import with_summary

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = Uuid(bytes(range(16)))


class Wire:
    """Write a capture of heartbeats."""

    def __init__(self) -> None:
        self.lines = [header_line(listen="l", target="t")]
        self.number = 0

    def heartbeat(
        self,
        time_ms: int,
        member: str,
        epoch: int,
        owned: list[int] | None,
        partitions: list[int] | None,
        error: int = 0,
    ) -> None:
        self.number += 1
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member,
            member_epoch=epoch,
            topic_partitions=None if owned is None else [TopicPartitions(topic_id=TOPIC, partitions=owned)],
        )
        assignment = None
        if partitions is not None:
            assignment = Assignment(topic_partitions=[TopicPartitions(topic_id=TOPIC, partitions=partitions)])
        response = ConsumerGroupHeartbeatResponse(
            member_id=member, member_epoch=epoch, assignment=assignment, error_code=error
        )
        self._frame(time_ms, REQUEST, member, encode_request(68, 1, self.number, member, request)[4:])
        self._frame(time_ms + 1, RESPONSE, member, encode_response(68, 1, self.number, response)[4:])

    def _frame(self, time_ms: int, direction: str, member: str, data: bytes) -> None:
        self.lines.append(
            to_line(
                CapturedFrame(
                    time_ms * 1000,
                    1,
                    direction,
                    "client:1",
                    "server:1",
                    1,
                    68,
                    "ConsumerGroupHeartbeat",
                    1,
                    self.number,
                    member,
                    len(data),
                    data,
                )
            )
        )

    def evaluate(self, path: Path):
        path.write_text("".join(self.lines))
        return run_here(ANALYSES["dual-assign"], find_pieces([str(path)]), {})


def test_dual_assign_finds_two_owners_in_capture(tmp_path):
    wire = Wire()
    wire.heartbeat(1_000, "a", 0, [], [0, 1])
    wire.heartbeat(2_000, "a", 1, [0, 1], None)
    wire.heartbeat(3_000, "b", 0, [], [1])
    wire.heartbeat(4_000, "a", 1, [0, 1], [0])
    wire.heartbeat(6_000, "a", 2, [0], None)
    report = wire.evaluate(tmp_path / "capture.jsonl")
    assert not report.inputs[0].unparsed
    (finding,) = report.findings
    assert finding.facts["members"] == ["a", "b"]
    assert finding.facts["partitions"] == [f"{TOPIC}-1"]
    assert finding.facts["culprit"] == "the coordinator"
    assert finding.facts["lasted"] == "3.0 s"


def test_dual_assign_accepts_a_revocation_in_capture(tmp_path):
    wire = Wire()
    wire.heartbeat(1_000, "a", 0, [], [0, 1])
    wire.heartbeat(4_000, "a", 1, [0, 1], [0])
    wire.heartbeat(6_000, "a", 2, [0], None)
    wire.heartbeat(7_000, "b", 2, [], [1])
    wire.heartbeat(8_000, "b", 2, [1], None)
    wire.heartbeat(60_000, "c", 0, [], [0])  # a has not been heard of again
    assert not wire.evaluate(tmp_path / "capture.jsonl").has_problem


def test_dual_assign_finds_a_zombie_in_capture(tmp_path):
    wire = Wire()
    wire.heartbeat(1_000, "a", 0, [], [0])
    wire.heartbeat(60_000, "b", 0, [], [0])
    wire.heartbeat(63_000, "a", 1, None, None, error=25)
    (finding,) = wire.evaluate(tmp_path / "capture.jsonl").findings
    assert finding.facts["culprit"] == "a"
    assert "zombie" in finding.cause


def test_member_that_keeps_revoked_partition_is_found(tmp_path):
    lines = [
        "[10:00:00 1][INFO] new group session begun; group: g, added: t[0 1], lost: ",
        "[10:00:05 2][INFO] new group session begun; group: g, added: t[1], lost: ",
        "[10:00:06 1][DEBUG] heartbeating; group: g",
        "[10:00:08 1][DEBUG] entering OnPartitionsRevoked; with: t[1]",
        "[10:00:09 2][DEBUG] heartbeating; group: g",
    ]
    path = tmp_path / "client.log"
    path.write_text("\n".join(lines) + "\n")
    (finding,) = run_here(ANALYSES["dual-assign"], find_pieces([str(path)]), {}).findings
    assert finding.facts["culprit"] == f"{path}#1"
    assert finding.facts["lasted"] == "3.0 s"
    assert "did not release them in time" in finding.cause
    assert not run_here(ANALYSES["dual-assign"], find_pieces([str(path)]), {"slack_ms": 5_000}).has_problem
    path.write_text("\n".join([*lines[:2], lines[4]]) + "\n")
    assert not run_here(ANALYSES["dual-assign"], find_pieces([str(path)]), {}).has_problem, "1 was dead by then"


def commit(time_ms: int, offset: int, partition: int = 0) -> Event:
    return Event(time_ms, "commit", format="kafka-log", group="g", topic="t", partition=partition, offset=offset)


def append(time_ms: int, end: int, partition: int = 0, records: int = 10, size: int = 1_000) -> Event:
    return Event(
        time_ms, "append", format="kafka-log", topic="t", partition=partition, offset=end, text=f"{records} {size}"
    )


def test_lag_finds_a_group_that_stopped_committing():
    events = [append(minute * 60_000, 100 * minute) for minute in range(1, 30)]
    moving = [*events, *[commit(minute * 60_000 + 1, 100 * minute - 5) for minute in range(1, 30)]]
    report = evaluate(ANALYSES["lag"], with_summary(moving))
    assert not report.has_problem
    assert report.tables[0].rows[0][4] == 5
    stuck = [*events, *[commit(minute * 60_000 + 1, 100 * minute - 5) for minute in range(1, 10)]]
    report = evaluate(ANALYSES["lag"], with_summary(stuck))
    (finding,) = report.findings
    assert finding.facts["lag"] == 2_900 - 895
    assert "has not committed for 20.0 min" in finding.cause
    assert report.series[0].points[-1] == (29 * 60_000, 2_005)


def test_hot_partitions_finds_skew():
    even = [append(second * 1_000, 10 * second, partition) for second in range(1, 20) for partition in range(4)]
    assert not evaluate(ANALYSES["hot-partitions"], with_summary(even)).has_problem
    skewed = [*even, *[append(second * 1_000 + 500, 99, 2, records=100) for second in range(1, 20)]]
    report = evaluate(ANALYSES["hot-partitions"], with_summary(skewed))
    assert {finding.facts["culprit"] for finding in report.findings} == {"t-2"}


def test_rebalances_finds_an_unsteady_member():
    events = []
    for number in range(10):
        now = 10_000 * number
        events += [
            Event(now, "group.fenced", group="g", protocol="classic", member="m1", state="session timeout"),
            Event(now + 1, "group.state", group="g", protocol="classic", state="PreparingRebalance", epoch=number),
            Event(now + 500, "group.join", group="g", protocol="classic", member="m1", api="JoinGroup"),
            Event(now + 900, "group.state", group="g", protocol="classic", state="Stable", epoch=number + 1),
        ]
    report = evaluate(
        ANALYSES["rebalances"], with_summary([entry._replace(position=n) for n, entry in enumerate(events)])
    )
    (finding,) = report.findings
    assert finding.facts["rebalances"] == 10
    assert finding.facts["culprit"] == "m1"
    assert finding.facts["because a member"] == "was evicted (session timeout) (10)"


def test_txn_timeout_distinguishes_causes():
    def event(time_ms: int, name: str, **fields: object) -> Event:
        return Event(time_ms, name, transactional_id="pay", producer_id=7, producer_epoch=0, **fields)  # type: ignore[arg-type]

    def story(*middle: Event) -> list[Event]:
        whole = [
            event(1_000, "txn.state", state="Ongoing", partitions=["t-0"], duration_ms=10_000),
            *middle,
            event(12_000, "txn.timeout"),
            event(12_000, "txn.state", state="PrepareAbort", partitions=["t-0"], duration_ms=10_000),
            event(12_100, "txn.state", state="CompleteAbort", partitions=["t-0"], duration_ms=10_000),
        ]
        return with_summary([entry._replace(position=number) for number, entry in enumerate(whole)])

    rule = ANALYSES["txn-timeout"]
    (fenced,) = evaluate(rule, story(event(8_000, "txn.init", api="InitProducerId", client="new"))).findings
    assert (fenced.facts["culprit"], "fenced by new" in fenced.cause) == ("new", True)
    (busy,) = evaluate(rule, story(event(11_500, "request", api="Produce", client="old"))).findings
    assert "longer than the timeout" in busy.cause
    (stopped,) = evaluate(rule, story(event(1_500, "request", api="Produce", client="old"))).findings
    assert (stopped.facts["culprit"], stopped.facts["last request"][:7]) == ("old", "Produce")
    end_txn = event(9_000, "txn.end", api="EndTxn", client="old", state="commit")
    (stalled,) = evaluate(rule, story(end_txn)).findings
    assert "coordinator stalled" in stalled.cause
    moved = Event(5_000, "coordinator", host="node 2", state="loaded", topic="__transaction_state", partition=3)
    (moving,) = evaluate(rule, [*story(end_txn), moved]).findings
    assert "coordinator moved: node 2 loaded __transaction_state-3" in moving.cause
