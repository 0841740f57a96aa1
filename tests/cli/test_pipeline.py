"""`ottla pipeline` without Spark: a stand-in takes the place of the runner."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from ottla.cli import build
from tests.testing.clients import eventually

if TYPE_CHECKING:
    from pathlib import Path

TESTS = """
import pytest

def test_good(): pass
def test_bad(): assert 1 == 2
@pytest.mark.skip(reason="not today")
def test_later(): pass
"""


# Runs `ottla pipeline run` with a runner that needs no Spark: it is running until SIGINT, then it writes "stopped".
COMMAND = """
import contextlib, subprocess, sys
from ottla.cli import main
from ottla.spark import session
from ottla.spark.pipeline import broker, folder

RUNNER = '''
import os, signal, sys, time
from pathlib import Path
from ottla.spark.pipeline.folder import begin_status, write_status
state = Path(sys.argv[1])
status = begin_status(state)
def stop(*_):
    if sys.argv[2] == "obeys":
        write_status(state / "status.json", {**status, "state": "stopped"})
        os._exit(0)
signal.signal(signal.SIGINT, stop)
write_status(state / "status.json", {**status, "state": "running"})
(state / "ready").touch()
while True: time.sleep(60)
'''

def start(pipeline, settings):
    pipeline.state.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen([sys.executable, "-c", RUNNER, str(pipeline.state), MANNERS], start_new_session=True)

MANNERS = sys.argv.pop()
folder.start = start
session.check_setup = lambda: None
broker.broker = lambda bootstrap, data: contextlib.nullcontext(("nowhere:1", False))
main()
"""


def run(*words: str) -> tuple[int, list[dict[str, Any]]]:
    """Return how `ottla pipeline` ends, and the objects that it prints."""
    result = CliRunner().invoke(build(["pipeline"]), ["pipeline", *words, "--json"])
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


def test_init_creates_files_and_test_reports_results(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    code, (made,) = run("init", str(folder))
    assert code == 0
    assert made["pipeline"] == str(folder)
    assert str(folder / "pipeline.py") in made["files"]
    for file in folder.glob("test_*.py"):
        file.unlink()
    assert run("test", str(folder)) == (1, [])
    (folder / "test_shop.py").write_text(TESTS)
    code, tests = run("test", str(folder))
    assert code == 1
    assert [(test["test"], test["result"]) for test in tests] == [
        ("test_shop::test_good", "passed"),
        ("test_shop::test_bad", "failed"),
        ("test_shop::test_later", "skipped"),
    ]
    assert [test["problem"] for test in tests][::2] == [None, "not today"]


def interrupt(tmp_path: Path, runner: str, *signals: int) -> tuple[int, dict[str, Any], str]:
    """Send signals to a running `ottla pipeline run`; return exit code, status and standard error."""
    shop = tmp_path / "shop"
    run("init", str(shop))
    (shop / "topics.txt").unlink(missing_ok=True)
    command = [sys.executable, "-c", COMMAND, "pipeline", "run", str(shop), "-b", "nowhere:1"]
    process = subprocess.Popen(
        [*command, runner], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    ready = shop / ".ottla" / "ready"
    eventually(lambda: ready.exists() or process.poll() is not None, "the start of the runner")
    for number in signals:
        process.send_signal(number)
        if number == signal.SIGINT and len(signals) > 1:
            assert process.stderr is not None
            assert "Ctrl-C again" in process.stderr.readline()
    _, errors = process.communicate(timeout=120)
    return process.returncode, run("status", str(shop))[1][0], errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_run_ends_with_0_and_status_stopped(tmp_path: Path, number: int) -> None:
    code, status, errors = interrupt(tmp_path, "obeys", number)
    assert (code, status["state"]) == (0, "stopped")
    assert "Traceback" not in errors


def test_second_interrupt_kills_the_runner(tmp_path: Path) -> None:
    code, status, errors = interrupt(tmp_path, "refuses", signal.SIGINT, signal.SIGTERM)
    assert (code, status["state"]) == (0, "stopped")
    assert "Traceback" not in errors


def test_full_refresh_of_a_plain_pipeline_is_refused(tmp_path: Path) -> None:
    run("init", str(tmp_path / "shop"))
    assert run("run", str(tmp_path / "shop"), "--full-refresh")[0] == 2


def with_status(tmp_path: Path, **status: Any) -> str:
    """Return a pipeline's folder with a status file."""
    folder = tmp_path / "shop"
    run("init", str(folder))
    (folder / ".ottla").mkdir()
    (folder / ".ottla" / "status.json").write_text(json.dumps({"queries": [], "pid": 0, **status}))
    return str(folder)


@pytest.mark.parametrize(
    ("state", "code"), [("running", 1), ("finished", 0), ("stopped", 0), ("failed", 1), ("never run", 4)]
)
def test_status_exit_code_tells_the_state(tmp_path: Path, state: str, code: int) -> None:
    assert run("status", with_status(tmp_path, state=state))[0] == code  # the process of "running" is gone


QUERY = {
    "name": "spending",
    "active": True,
    "batch": 3,
    "rows": 5,
    "total_rows": 50,
    "rows_per_second": 2.5,
    "at": "2026-11-15T10:00:00.000Z",
    "sources": [{"source": "orders", "lag": 12, "rows": 5, "rows_per_second": 1.0}],
    "expectations": {"orders": {"rows": 50, "has an amount": 2}},
}


def test_status_above_max_lag_fails(tmp_path: Path) -> None:
    folder = with_status(tmp_path, state="finished", queries=[QUERY])
    assert run("status", folder, "--max-lag", "12")[0] == 0
    assert run("status", folder, "--max-lag", "11")[0] == 1


def test_status_prints_expectations_and_metrics(tmp_path: Path) -> None:
    folder = with_status(tmp_path, state="finished", queries=[QUERY])
    shown = CliRunner().invoke(build(["pipeline"]), ["pipeline", "status", folder]).stdout
    assert shown.splitlines()[-1].split() == ["spending", "orders", "has", "an", "amount", "2", "50"]
    page = CliRunner().invoke(build(["pipeline"]), ["pipeline", "status", folder, "--prometheus"]).stdout.splitlines()
    for line in (
        'ottla_pipeline_state{pipeline="shop",state="finished"} 1.0',
        'ottla_pipeline_query_rows_total{pipeline="shop",query="spending"} 50.0',
        'ottla_pipeline_source_lag{pipeline="shop",query="spending",source="orders"} 12.0',
        'ottla_pipeline_checked_rows_total{check="orders",pipeline="shop",query="spending"} 50.0',
    ):
        assert line in page
    (violations,) = [line for line in page if line.startswith("ottla_pipeline_violations_total{")]
    assert 'expectation="has an amount"' in violations
    assert violations.endswith(" 2.0")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--from", "now", "--until", "-1h"), "--from must be before --until"),
        (("--from", "yesterday", "--until", "now"), "is not a time"),
    ],
)
def test_backfill_refuses_wrong_range(tmp_path: Path, words: tuple[str, ...], problem: str) -> None:
    run("init", str(tmp_path / "shop"))
    result = CliRunner().invoke(build(["pipeline"]), ["pipeline", "backfill", str(tmp_path / "shop"), *words])
    assert result.exit_code == 2
    assert problem in result.stderr


def test_unknown_template_names_the_templates(tmp_path: Path) -> None:
    result = CliRunner().invoke(build(["pipeline"]), ["pipeline", "init", str(tmp_path / "x"), "--template", "scala"])
    assert result.exit_code == 2
    assert "there are python, sql, join, declarative" in result.stderr
