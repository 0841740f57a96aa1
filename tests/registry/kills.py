"""Kills a broker with a registry (SIGKILL) during registrations: `python -m tests.registry.kills --kills 100`.

After every kill: each acknowledged registration is there with its id and version, and no id has two schemas.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from .http_client import Http

WRITERS = 3


def run(kills: int, directory: str, seed: int = 1) -> dict[str, int]:
    """Start, register from several threads, kill, check; return the counts."""
    chance = random.Random(seed)
    acknowledged: dict[str, tuple[int, int]] = {}
    counter = iter(range(10**9))
    for _ in range(kills):
        process, url = _start(directory)
        try:
            _check(Http(url), acknowledged)
            stop = threading.Event()
            with ThreadPoolExecutor(WRITERS) as threads:
                writers = [threads.submit(_write, url, counter, stop) for _ in range(WRITERS)]
                time.sleep(chance.uniform(0.05, 0.6))
                process.send_signal(signal.SIGKILL)
                process.wait()
                stop.set()
                for writer in writers:
                    acknowledged |= writer.result()
        finally:
            _end(process)
    process, url = _start(directory)
    try:
        _check(Http(url), acknowledged)
    finally:
        _end(process)
    return {"kills": kills, "acknowledged": len(acknowledged)}


def _start(directory: str) -> tuple[subprocess.Popen[str], str]:
    words = ["serve", "-d", directory, "-p", "0", "--registry", "0", "--json", "-l", "error"]
    process = subprocess.Popen([sys.executable, "-m", "ottla", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the broker did not start again"
    return process, json.loads(line)["registry"]


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _write(url: str, counter: object, stop: threading.Event) -> dict[str, tuple[int, int]]:
    registry, done = Http(url), {}
    while not stop.is_set():
        number = next(counter)  # type: ignore[call-overload]
        try:
            answer = registry.register(f"s{number % 50}", _schema(number))
        except (http.client.HTTPException, OSError, ValueError):
            break
        if answer.status == 200:
            done[_schema(number)] = answer.body["id"], answer.body["version"]
    return done


def _schema(number: int) -> str:
    fields = [{"name": f"f{number}", "type": "int", "default": 0}]
    return json.dumps({"type": "record", "name": "R", "fields": fields}, separators=(",", ":"))


def _check(http: Http, acknowledged: dict[str, tuple[int, int]]) -> None:
    rows = http("GET", "/schemas?deleted=true").body
    stored = {row["schema"]: (row["id"], row["version"]) for row in rows}
    schemas_of: dict[int, set[str]] = {}
    for row in rows:
        schemas_of.setdefault(row["id"], set()).add(row["schema"])
    assert all(len(schemas) == 1 for schemas in schemas_of.values()), "an id has two schemas"
    for schema, expected in acknowledged.items():
        assert stored.get(schema) == expected, f"{schema} was acknowledged as {expected}, is {stored.get(schema)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(run(given.kills, place, given.seed)))
