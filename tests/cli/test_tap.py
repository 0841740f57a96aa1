"""`ottla tap` as a process: output, captures, control API."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from ottla.testing import Cluster
from tests.testing.clients import send

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OTTLA = [sys.executable, "-m", "ottla"]


@contextlib.contextmanager
def tapping(target: str, *options: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the lines of its start message, and a list that has its output after it has ended."""
    command = [*OTTLA, "tap", "127.0.0.1:0", target, *options]
    lines: list[str] = []
    printed: list[str] = []
    with tempfile.TemporaryFile("w+") as out:  # a full pipe would block it
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        try:
            while not lines or " listens on " not in lines[-1]:
                line = process.stderr.readline()
                assert line, lines
                lines.append(line)
            yield lines, printed
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            out.seek(0)
            printed += out.read().splitlines()
            assert process.returncode == 0


def address(lines: list[str]) -> str:
    match = re.search(r"listens on (\S+)", lines[-1])
    assert match is not None
    return match[1]


def produce(bootstrap: str, *values: str) -> None:
    client = Producer({"bootstrap.servers": bootstrap, "client.id": "me"})
    for value in values:
        assert send(client, "t", value).error is None


def test_selected_frames_are_printed_and_captured(tmp_path: Path) -> None:
    path = tmp_path / "capture.jsonl"
    with Cluster(topics=["t"]) as cluster:
        with tapping(cluster.bootstrap, "--api", "Produce", "--topic", "t", "-o", str(path)) as (lines, printed):
            produce(address(lines), "hello")
        text = "\n".join(printed)
        assert "ProduceRequest" in text
        assert "ProduceResponse" in text
        assert "hello" in text
        assert "Metadata" not in text
    decoded = subprocess.run([*OTTLA, "decode", "--json", str(path)], capture_output=True, text=True, check=True)
    frames = [json.loads(line) for line in decoded.stdout.splitlines()]
    assert [frame["kind"] for frame in frames] == ["request", "response"]
    assert all(frame["error"] is None for frame in frames)


def test_brief_output_and_control_api() -> None:
    with Cluster(topics=["t"]) as cluster:
        with tapping(cluster.bootstrap, "--brief", "--client-id", "me", "--control", "0") as (lines, printed):
            match = re.search(r"http://\S+", lines[0])
            assert match is not None
            url = match[0]
            body = json.dumps({"api": "Produce", "action": "error", "error": "NOT_LEADER_OR_FOLLOWER"}).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{url}/rules", body, headers, method="POST")
            rule = json.load(urllib.request.urlopen(request, timeout=60))["rule"]
            produce(address(lines), "hello")
            assert json.load(urllib.request.urlopen(f"{url}/rules/{rule}", timeout=60))["hits"] == 1
            paths = json.load(urllib.request.urlopen(f"{url}/openapi.json", timeout=60))["paths"]
            assert {path.split("/")[1] for path in paths} == {"rules", "requests"}
        produced = [line for line in printed if "Produce v" in line]
        assert sum("-> " in line for line in produced) == 2
        assert all("(me)" in line for line in printed)
        assert len(cluster.requests("Produce")) == 1


def test_frames_are_printed_as_json() -> None:
    with Cluster(topics=["t"]) as cluster:
        with tapping(cluster.bootstrap, "--json", "--api", "Produce") as (lines, printed):
            produce(address(lines), "hello")
        frames = [json.loads(line) for line in printed]
        assert [(frame["api"], frame["direction"]) for frame in frames] == [
            ("Produce", "request"),
            ("Produce", "response"),
        ]
        assert all(frame["client_id"] == "me" and frame["error"] is None and frame["tree"] for frame in frames)
        with tapping(cluster.bootstrap, "--json", "--brief", "--api", "Produce") as (lines, printed):
            produce(address(lines), "hello")
        assert [sorted({"tree", "size"} & set(json.loads(line))) for line in printed] == [["size"], ["size"]]


def test_wrong_usage_exits_with_2_and_the_reason() -> None:
    for options, problem in (
        (["kafka", "localhost:1"], "write host:port"),
        (["0", "localhost:1", "--api", "Nope"], "no API 'Nope'"),
    ):
        done = subprocess.run([*OTTLA, "tap", *options], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert problem in done.stderr
        assert "Traceback" not in done.stderr
