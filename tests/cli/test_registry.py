"""`ottla registry` and `ottla serve --registry` as processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ottla.testing import Cluster
from tests.registry.http_client import Http

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 120


class Processes:
    """Processes of the test, ended with it."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ottla", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.end()


def first_line(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    row: dict[str, str] = json.loads(process.stdout.readline())
    return row


def test_registry_serves_any_kafka_and_stops_on_sigterm(processes: Processes) -> None:
    with Cluster() as cluster:
        process = processes.start("registry", "-b", cluster.bootstrap, "--listen", "0", "--json")
        http = Http(first_line(process)["url"])
        assert http.register("a", '"string"').body["id"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("options", [[], ["--dev-tls"]], ids=["plain", "tls"])
def test_broker_serves_a_registry_that_survives_a_kill(
    processes: Processes, tmp_path: object, options: list[str]
) -> None:
    words = ["serve", "-d", f"{tmp_path}/data", "-p", "0", "--registry", "0", "--json", *options]
    process = processes.start(*words)
    assert Http(first_line(process)["registry"]).register("a", '"string"').body["id"] == 1
    process.kill()
    process.wait(PATIENCE)
    process = processes.start(*words)
    http = Http(first_line(process)["registry"])
    assert http("GET", "/subjects/a/versions/1").body["id"] == 1
    assert http.register("b", '"int"').body["id"] == 2
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["registry", "--listen", "x"], 2),
        (["registry", "-b", "127.0.0.1:1", "--timeout", "1", "--listen", "0"], 3),
        (["serve", "--registry", "70000"], 2),
    ],
)
def test_bad_call_ends_with_its_exit_code(processes: Processes, words: list[str], code: int) -> None:
    assert processes.start(*words).wait(PATIENCE) == code
