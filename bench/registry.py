"""The schema registry: registrations and lookups per second, start time and memory with many subjects.

    python bench/registry.py [--subjects N] [--versions N] [--seconds S]

Broker and registry are processes of their own. Figures in brackets are processor time of the registry's process.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ottla.client import Client
from ottla.client.producer import Producer
from ottla.client.topics import create_topic
from ottla.registry.records import SchemaVersion

if TYPE_CHECKING:
    from collections.abc import Callable

TICKS = os.sysconf("SC_CLK_TCK")
HEADERS = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
CLIENTS = 4


class Process:
    """An ottla command that prints a line of JSON when it is ready."""

    def __init__(self, *words: str) -> None:
        began = time.monotonic()
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        command = [sys.executable, "-m", "ottla", *words, "--json"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        assert self._process.stdout is not None
        self.row = json.loads(self._process.stdout.readline())
        self.start_seconds = time.monotonic() - began
        self.start_processor = self.processor()

    def processor(self) -> float:
        """Return the processor time used so far in seconds."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_mb(self) -> float:
        """Return the resident memory in MB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def schema(number: int) -> str:
    fields = [{"name": f"field_{index}", "type": "string", "default": ""} for index in range(number % 7 + 3)]
    return json.dumps({"type": "record", "name": f"Order{number}", "fields": fields}, separators=(",", ":"))


def fill(bootstrap: str, subjects: int, versions: int) -> None:
    """Write the topic as a registry would have."""
    with Client(bootstrap) as client:
        create_topic(client, "_schemas", partitions=1, configs={"cleanup.policy": "compact"})
        producer = Producer(client)
        number = 0
        for subject in range(subjects):
            for version in range(1, versions + 1):
                number += 1
                entry = SchemaVersion(f"subject-{subject}-value", version, number, "AVRO", schema(number))
                producer.send("_schemas", entry.key(), entry.value(), partition=0)
        producer.flush()


def rate(
    registry: Process, seconds: float, ask: Callable[[http.client.HTTPConnection, int], None]
) -> tuple[float, float]:
    """Return requests per second of some clients, and the registry's processor time per request in ms."""
    host = registry.row["url"].removeprefix("http://")
    counts = [0] * CLIENTS
    end = time.monotonic() + seconds
    used = registry.processor()

    def work(client: int) -> None:
        connection = http.client.HTTPConnection(host)
        while time.monotonic() < end:
            ask(connection, client * 10_000_000 + counts[client])
            counts[client] += 1
        connection.close()

    threads = [threading.Thread(target=work, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = sum(counts)
    return total / seconds, (registry.processor() - used) / total * 1000


def send(connection: http.client.HTTPConnection, method: str, path: str, body: object = None) -> None:
    connection.request(method, path, None if body is None else json.dumps(body), HEADERS)
    response = connection.getresponse()
    data = response.read()
    assert response.status == 200, data


def register(connection: http.client.HTTPConnection, number: int) -> None:
    send(connection, "POST", f"/subjects/new-{number}/versions", {"schema": schema(10**8 + number)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subjects", type=int, default=10_000)
    parser.add_argument("--versions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    total = given.subjects * given.versions

    def look_up(connection: http.client.HTTPConnection, number: int) -> None:
        send(connection, "GET", f"/schemas/ids/{number * 7919 % total + 1}")

    with tempfile.TemporaryDirectory() as directory, Process("serve", "-d", directory, "-p", "0") as broker:
        bootstrap = broker.row["bootstrap"]
        with Process("registry", "-b", bootstrap, "--listen", "0") as registry:
            empty, empty_mb = (registry.start_seconds, registry.start_processor), registry.memory_mb()
    with tempfile.TemporaryDirectory() as directory, Process("serve", "-d", directory, "-p", "0") as broker:
        bootstrap = broker.row["bootstrap"]
        fill(bootstrap, given.subjects, given.versions)
        with Process("registry", "-b", bootstrap, "--listen", "0") as registry:
            full, full_mb = (registry.start_seconds, registry.start_processor), registry.memory_mb()
            lookups, lookup_ms = rate(registry, given.seconds, look_up)
            registrations, register_ms = rate(registry, given.seconds, register)
    print("| | wall time | processor time |")
    print("|---|---:|---:|")
    print(f"| start with an empty topic | {empty[0]:.2f} s | {empty[1]:.2f} s |")
    print(
        f"| start with {given.subjects:,} subjects of {given.versions} versions | {full[0]:.2f} s | {full[1]:.2f} s |"
    )
    print()
    print("| | |")
    print("|---|---:|")
    print(f"| memory, empty | {empty_mb:.0f} MB |")
    print(f"| memory, {total:,} versions | {full_mb:.0f} MB |")
    print(f"| lookups by id, {CLIENTS} clients | {lookups:,.0f}/s ({lookup_ms:.2f} ms each) |")
    print(f"| registrations, {CLIENTS} clients | {registrations:,.0f}/s ({register_ms:.2f} ms each) |")


if __name__ == "__main__":
    main()
