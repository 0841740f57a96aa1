"""Inputs that are missing, empty, truncated, mixed or have wrong clocks: clear messages, and no silent loss."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from ottla.analysis.analyses import ANALYSES
from ottla.analysis.engine import run_here
from ottla.analysis.event import fits
from ottla.analysis.inputs import InputError, find_pieces, read_piece
from ottla.cli import build
from ottla.history import write_history
from tests.analysis.histories import Histories
from tests.analysis.test_rules import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

FIXTURES = Path(__file__).parent.parent / "fixtures"
KGO = FIXTURES / "analysis" / "kgo.log"
DUAL = ANALYSES["dual-assign"]


def run(*words: str, code: int) -> str:
    result = CliRunner().invoke(build(["analyze"]), ["analyze", *map(str, words)])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def event(seq: int, kind: str, time: int = 1000, **fields: object) -> str:
    return json.dumps({"seq": seq, "time": time, "node": 1, "kind": kind, **fields}, separators=(",", ":"))


def assigned(seq: int, member: str, partitions: list[int], time: int, epoch: int = 1) -> str:
    return event(
        seq,
        "member.assigned",
        time,
        group="g",
        type="consumer",
        member=member,
        epoch=epoch,
        partitions={"t": partitions},
    )


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_missing_inputs_and_wrong_options_exit_2():
    assert "does not exist" in run("dual-assign", "/not/there", code=2)
    assert "neither a log directory nor" in run("diff", "/not/there", "/nor/there", code=2)
    assert "write 2026" in run("txn-timeout", str(KGO), "--now", "yesterday", code=2)
    assert "auto, here or spark" in run("dual-assign", str(KGO), "--engine", "hadoop", code=2)


def test_empty_and_unknown_inputs_exit_2(tmp_path):
    empty = tmp_path / "empty.log"
    empty.touch()
    assert "there are no events" in run("dual-assign", empty, code=2)
    folder = tmp_path / "folder"
    folder.mkdir()
    assert "is an empty folder" in run("dual-assign", folder, code=2)
    garbage = write(tmp_path / "garbage.log", "Lorem ipsum", "dolor sit amet")
    output = run("dual-assign", garbage, code=2)
    assert "2 lines match no known format and are kept" in output
    assert "Lorem ipsum" in output


def test_dual_assign_finds_two_owners_in_event_log(tmp_path):
    path = write(
        tmp_path / "events.jsonl",
        assigned(0, "a", [0, 1], 1_000),
        assigned(1, "b", [1], 5_000, epoch=2),
        assigned(2, "a", [0], 9_000, epoch=2),
    )
    output = run("dual-assign", path, code=1)
    assert output.startswith(
        "1 partition of group g had two owners at the same time: t-1 belonged to a and b for 4.0 s"
    )
    assert "Steps" in output
    report = json.loads(run("dual-assign", path, "--json", code=1))
    (finding,) = report["findings"]
    assert finding["facts"]["members"] == ["a", "b"]
    assert finding["facts"]["epochs"] == [1, 2]
    page = tmp_path / "report.html"
    run("dual-assign", path, "--html", page, code=1)
    html = page.read_text()
    assert "<svg" in html
    assert "two owners of t-1" in html
    assert "http" not in html.replace("http://www.w3.org/2000/svg", ""), "it needs nothing from elsewhere"
    assert "<script" not in html
    assert "is one it uses about group other" in run("dual-assign", path, "--group", "other", code=2)


def test_dual_assign_counts_pending_revocation_as_ownership(tmp_path):
    lines = [
        event(0, "member.assigned", 1_000, group="g", type="consumer", member="a", epoch=2, partitions={"t": [0]},
              pending={"t": [1]}),
        assigned(1, "b", [1], 2_000, epoch=2),
        event(2, "member.revoked", 2_500, group="g", type="consumer", member="a", epoch=2, partitions={"t": [1]}),
    ]  # fmt: skip
    report = run_here(DUAL, find_pieces([str(write(tmp_path / "events", *lines))]), {})
    assert "while the revocation by a was pending" in report.findings[0].cause
    whole = [lines[0], lines[2], lines[1].replace("2000", "2600")]
    report = run_here(DUAL, find_pieces([str(write(tmp_path / "fine", *whole))]), {})
    assert not report.has_problem


def test_dual_assign_compares_classic_owners_within_a_generation(tmp_path):
    def given(seq: int, member: str, generation: int, partitions: list[int]) -> str:
        return event(seq, "member.assigned", 1000 * generation, group="g", type="classic", member=member,
                     epoch=generation, partitions={"t": partitions})  # fmt: skip

    fine = [given(0, "a", 1, [0, 1]), given(1, "b", 2, [1]), given(2, "a", 2, [0])]
    assert not run_here(DUAL, find_pieces([str(write(tmp_path / "fine", *fine))]), {}).has_problem
    twice = [given(0, "a", 1, [0, 1]), given(1, "b", 2, [1]), given(2, "a", 2, [0, 1]), event(3, "node.stopped", 9_000)]
    report = run_here(DUAL, find_pieces([str(write(tmp_path / "twice", *twice))]), {})
    assert report.has_problem
    assert "holds it twice" in report.findings[0].cause


def test_truncated_line_is_kept_as_unparsed(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(assigned(0, "a", [0], 1_000) + "\n" + assigned(1, "b", [1], 2_000)[:40])
    report = run_here(DUAL, find_pieces([str(path)]), {})
    assert not report.has_problem
    assert report.inputs[0].unparsed == 1
    assert any("match no known format" in note for note in report.notes)


def test_mixed_formats_are_read_and_noted(tmp_path):
    path = tmp_path / "all.log"
    lines = [*KGO.read_text().splitlines()[:50], assigned(0, "a", [0], 1_000), "nobody knows"]
    write(path, *lines)
    report = run_here(DUAL, find_pieces([str(path)]), {})
    assert report.inputs[0].formats == {"kgo": 50, "ottla-events": 1}
    assert any("mixes formats" in note for note in report.notes)


def test_clock_jumps_are_noted(tmp_path):
    path = write(
        tmp_path / "events.jsonl",
        assigned(0, "a", [0], 100_000),
        assigned(1, "a", [0, 1], 40_000),
        assigned(2, "b", [2], 41_000),
    )
    report = run_here(DUAL, find_pieces([str(path)]), {})
    assert any("goes back 1 time, by up to 60.0 s" in note for note in report.notes)
    later = write(tmp_path / "later.jsonl", assigned(0, "c", [7], 10_000_000))
    report = run_here(DUAL, find_pieces([str(path), str(later)]), {})
    assert any("do not overlap, or their clocks differ" in note for note in report.notes)


def test_clock_skew_between_hosts_is_noted(tmp_path):
    def line(seq: int, node: int, time: int) -> str:
        return assigned(seq, f"m{node}", [node], time).replace('"node":1', f'"node":{node}')

    lines = [line(seq, 1 + seq % 2, 1_000 * seq + 300_000 * (seq % 2)) for seq in range(1, 20)]
    report = run_here(DUAL, find_pieces([str(write(tmp_path / "events.jsonl", *lines))]), {})
    assert not any("goes back" in note for note in report.notes), "each by itself is right"
    (note,) = [note for note in report.notes if "their clocks differ" in note]
    assert "by up to 5.0 min" in note
    kgo = [f"[10:0{minute % 2 * 5}:00.00{minute} {minute % 2}][DEBUG] heartbeating; group: g" for minute in range(8)]
    report = run_here(DUAL, find_pieces([str(write(tmp_path / "client.log", *kgo))]), {})
    assert any("their clocks differ" in note for note in report.notes)


def test_malformed_events_are_unparsed(tmp_path):
    wrong = [
        '{"seq":0,"time":"x","node":1,"kind":"request"}',
        '{"seq":1,"time":99999999999999999999,"node":1,"kind":"group.state","group":"g"}',
        event(2, "member.assigned", group="g", type="consumer", member="m", epoch="x", partitions={}),
        event(3, "member.assigned", group="g", type="consumer", member="m", epoch=1, partitions=[1, 2]),
        event(4, "member.assigned", group=5, type="consumer", member="m", epoch=1, partitions={"t": [1]}),
        event(5, "member.assigned", group="g", type="consumer", member="m", epoch=1, partitions={"t": "abc"}),
        '{"seq":6,"time":6,"node":1,"kind":["x"]}',
        '{"seq":7,"time":6,"node":1}',
    ]
    path = write(tmp_path / "events.jsonl", *wrong)
    output = run("dual-assign", path, code=2)
    assert output.startswith("there are no events in the input")
    assert "8 lines match no known format" in output
    others = [
        event(8, "offsets.committed", group="g", offsets=[{"topic": "t"}]),
        event(9, "leader.changed", topic="t"),
        event(10, "transaction.state", transactional_id="t", to="Ongoing", producer_id="7", producer_epoch=1),
        '{"process":"a","status":"ok","steps":[{"send":"t-0"}]}',
        '{"process":"a","steps":5}',
    ]
    path = write(tmp_path / "more.jsonl", *others)
    for command in ("txn-timeout", "lag", "rebalances", "hot-partitions", "anomalies"):
        run(command, path, code=2)


SCRAPS = [
    "null",
    "[]",
    "{}",
    "-1",
    "1e400",
    '"x"',
    "9" * 23,
    "true",
    '"',
    "\\",
    "\x00",
    "é",
    ",",
    ":",
    "[",
    "]",
    "}",
    "NaN",
]


def broken_lines(count: int, seed: int) -> Iterator[str]:
    """Yield lines of every format with parts cut off, removed, inserted or replaced."""
    chance = random.Random(seed)
    lines = [line for name in ("kgo", "java", "librdkafka") for line in (KGO.parent / f"{name}.log").open()][::3]
    cases = FIXTURES.parent.parent / "docs" / "debugging"
    lines += [
        line for name in ("two-owners", "timed-out") for line in (cases / f"{name}.jsonl").read_text().splitlines()[:60]
    ]
    wire = Wire()
    wire.heartbeat(1_000, "a", 0, [], [0, 1])
    wire.heartbeat(2_000, "b", 1, [0, 1], None)
    lines += [*wire.lines * 10, *write_history(Histories(seed, 60).history)]
    for _ in range(count):
        line = chance.choice(lines).rstrip("\n")
        for _ in range(1 + chance.randrange(3)):
            at = chance.randrange(len(line) + 1)
            how = chance.randrange(4)
            values = list(re.finditer(r'(?<=:)("[^"]*"|-?\d+|\[[^\]]*\])', line)) if how == 3 else []
            if how == 0:
                line = line[:at]
            elif how == 1:
                line = line[:at] + chance.choice(SCRAPS) + line[at:]
            elif values:
                value = chance.choice(values)
                line = line[: value.start()] + chance.choice(SCRAPS) + line[value.end() :]
            else:
                line = line[:at] + line[at + chance.randrange(12) :]
        yield line.replace("\n", " ")


def test_fuzzed_lines_of_every_format_fail_no_analysis(tmp_path):
    path = tmp_path / "broken.log"
    for seed in range(3):
        path.write_text("\n".join(broken_lines(1_500, seed)))
        for analysis in ANALYSES.values():
            options = {"partition": 0, "input": "orders", "output": "bills"}
            report = run_here(analysis, find_pieces([str(path)]), options)
            assert report.inputs[0].lines > 1_000
        events = [event for piece in find_pieces([str(path)]) for event in read_piece(piece)]
        assert any(event.event == "unparsed" for event in events)
        assert all(fits(event) for event in events)


def test_wrong_arguments_exit_2(tmp_path):
    kgo = str(KGO)
    assert "such as 3 or orders-3" in run("client-trace", kgo, "-p", "x", code=2)
    assert "such as 3 or orders-3" in run("client-trace", kgo, "-p", "-1", code=2)
    assert "names another topic" in run("client-trace", kgo, "-p", "22bd11-2", "--topic", "x", code=2)
    assert "11 fetches" in run("client-trace", kgo, "-p", "22bd11-2", code=0)
    assert "later than" in run("client-trace", kgo, "-p", "1", "--since", "2030-01-01", "--until", "2020-01-01", code=2)
    assert "more than 1" in run("hot-partitions", kgo, "--factor", "nan", code=2)
    assert "cannot be written" in run("dual-assign", kgo, "--html", tmp_path / "no" / "x.html", code=2)
    run("lag", kgo, "--max-lag", "-1", code=2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "neither a file nor a folder" in run("dual-assign", pipe, code=2)
    output = run("hot-partitions", kgo, code=2)
    assert "hot-partitions cannot use this input (franz-go log): give it one of: log directory" in output


def test_svg_is_one_valid_document(tmp_path):
    kafka = FIXTURES / "kafka" / "4.3.1" / "data"
    two, none = tmp_path / "two.svg", tmp_path / "none.svg"
    run("lag", kafka, "--max-lag", "1", "--html", two, code=1)
    run("hot-partitions", KGO, "--html", none, code=2)
    for path in (two, none):
        assert ElementTree.fromstring(path.read_text()).tag.endswith("svg")
    assert "cannot use this input (franz-go log)" in none.read_text()


def test_compressed_logs_and_folders_are_read(tmp_path):
    with gzip.open(tmp_path / "kgo.log.gz", "wb") as file:
        file.write(KGO.read_bytes())
    plain = run_here(DUAL, find_pieces([str(KGO)]), {})
    packed = run_here(DUAL, find_pieces([str(tmp_path)]), {})
    assert packed.inputs[0].events == plain.inputs[0].events
    (tmp_path / "broken.gz").write_bytes((tmp_path / "kgo.log.gz").read_bytes()[:5_000])
    (tmp_path / "kgo.log.gz").unlink()
    report = run_here(DUAL, find_pieces([str(tmp_path)]), {})
    assert any("cannot be read to its end" in note for note in report.notes)


def test_piece_size_does_not_change_lines():
    whole = [line.position for piece in find_pieces([str(KGO)]) for line in read_piece(piece) if line.format]
    for size in (997, 4_096):
        parts = [line.position for piece in find_pieces([str(KGO)], size) for line in read_piece(piece) if line.format]
        assert sorted(set(parts)) == sorted(set(whole))
    with pytest.raises(InputError):
        find_pieces(["/not/there"])


def test_analyses_read_apache_kafka_directory(tmp_path):
    kafka = FIXTURES / "kafka" / "4.3.1" / "data"
    assert "no partition had two owners" in run("dual-assign", kafka, code=0)
    assert "1 was open when the logs end" in run("txn-timeout", kafka, code=0)
    late = run("txn-timeout", kafka, "--now", "2026-12-01T00:00:00", code=1)
    assert "hangs in Ongoing" in late
    assert "open-0" in late
    assert "7 groups" in run("lag", kafka, code=0)
    assert "with too much lag" in run("lag", kafka, "--max-lag", "1", code=1)
    assert "rebalances in" in run("rebalances", kafka, code=0)
    assert "topics" in run("hot-partitions", kafka, code=0)


def test_client_trace_finds_rewinds_and_silence(tmp_path):
    lines = [
        "[10:00:00 1][INFO] new group session begun; group: g, added: t[3], lost: ",
        "[10:00:01 1][DEBUG] updated uncommitted; group: g, to: t[3{0=>0=>10 r10 e0}]",
        "[10:00:02 1][DEBUG] updated committed; group: g, to: t[3{0=>10}]",
        "[10:00:50 1][DEBUG] updated uncommitted; group: g, to: t[3{10=>4=>20 r16 e0}]",
        "[10:00:51 1][DEBUG] updated committed; group: g, to: t[3{10=>7}]",
    ]
    path = write(tmp_path / "client.log", *lines)
    output = run("client-trace", path, "-p", "3", code=1)
    for words in ("silence", "offsets were read again", "commit went back"):
        assert words in output
    assert "no client in the input uses partition 9" in run("client-trace", path, "-p", "9", code=2)
    fine = run("client-trace", KGO, "-p", "2", code=0)
    assert "nothing wrong" in fine
