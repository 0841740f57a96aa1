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
