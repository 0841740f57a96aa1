"""The console: pages of a large cluster, a fast tail, memory, and what an idle console costs.

    python bench/console.py [--topics N]

The console runs in a process of its own beside a broker. Processor time says more than wall time on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx

from ottla.client import Client
from ottla.client.groups import commit
from ottla.client.producer import Producer
from ottla.client.topics import create_topic

PAGES = ("/", "/topics", "/topics?q=0042", "/topics?sort=records&down=1", "/topics/wide", "/groups", "/groups?q=00042")
TAIL_SECONDS = 10
IDLE_SECONDS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, default=10_000)
    count = parser.parse_args().topics
    ottla = [sys.executable, "-m", "ottla"]
    broker = subprocess.Popen([*ottla, "serve", "-p", "0", "-l", "error", "--json"], stdout=subprocess.PIPE, text=True)
    bootstrap = json.loads(broker.stdout.readline())["bootstrap"]
    words = ["console", "-b", bootstrap, "--listen", "0", "--no-auth", "--json"]
    console = subprocess.Popen([*ottla, *words], stdout=subprocess.PIPE, text=True)
    url = json.loads(console.stdout.readline())["url"]
    try:
        with Client(bootstrap, timeout=120) as client, httpx.Client(base_url=url, timeout=120) as browser:
            fill(client, count)
            print(f"{count:,} topics, {count:,} groups, one topic with 1,000 partitions, records of 5 MB\n")
            print("| page | wall, ms | console's processor time, ms | broker's, ms | console's memory, MB |")
            print("|---|---|---|---|---|")
            for path in PAGES:
                page(browser, path, console.pid, broker.pid)
            large(browser, client, console.pid)
            tail(browser, bootstrap, console.pid)
            before = cpu(console.pid)
            time.sleep(IDLE_SECONDS)
            used = (cpu(console.pid) - before) * 1000
            print(f"\nidle for {IDLE_SECONDS} s: {used:.0f} ms of the console's processor time")
    finally:
        for process in (console, broker):
            process.terminate()
            process.wait()


def fill(client: Client, count: int) -> None:
    for number in range(count):
        create_topic(client, f"topic-{number:05d}", partitions=1)
        commit(client, f"group-{number:05d}", {(f"topic-{number:05d}", 0): 0})
    create_topic(client, "wide", partitions=1000)
    create_topic(client, "large", partitions=1, configs={"max.message.bytes": "20000000"})
    create_topic(client, "fast", partitions=4)


def page(browser: httpx.Client, path: str, console: int, broker: int) -> None:
    browser.get(path)
    time.sleep(3)  # longer than results are cached
    wall, of_console, of_broker = time.perf_counter(), cpu(console), cpu(broker)
    browser.get(path).raise_for_status()
    row = [(time.perf_counter() - wall), cpu(console) - of_console, cpu(broker) - of_broker]
    figures = " | ".join(f"{seconds * 1000:.0f}" for seconds in row)
    print(f"| `{path}` | {figures} | {memory(console)} |", flush=True)


def large(browser: httpx.Client, client: Client, console: int) -> None:
    producer = Producer(client, batch_bytes=8_000_000, idempotent=False)
    for number in range(12):
        producer.send("large", b"key", json.dumps({"n": number, "text": "x" * 5_000_000}).encode())
        producer.flush()
    wall, before = time.perf_counter(), cpu(console)
    browser.get("/topics/large/records/stream?limit=50").raise_for_status()
    row = [(time.perf_counter() - wall) * 1000, (cpu(console) - before) * 1000]
    print(f"| 12 records of 5 MB | {row[0]:.0f} | {row[1]:.0f} | | {memory(console)} |", flush=True)


def tail(browser: httpx.Client, bootstrap: str, console: int) -> None:
    stop = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        with Client(bootstrap) as client:
            producer = Producer(client, idempotent=False)
            while not stop.wait(0.05):
                for number in range(600):
                    producer.send("fast", b"key", b'{"n": %d}' % number, (), number % 4)
                producer.flush()
                written += 600

    writer = threading.Thread(target=write)
    writer.start()
    seen = shown = 0
    started, before = time.monotonic(), cpu(console)
    with browser.stream("GET", "/topics/fast/records/stream?from=tail") as stream:
        for line in stream.iter_lines():
            match = re.search(r'"shown": (\d+), "count": (\d+)', line)
            if match:
                shown, seen = shown + int(match[1]), seen + int(match[2])
            if time.monotonic() - started > TAIL_SECONDS:
                break
    seconds = time.monotonic() - started
    stop.set()
    writer.join()
    print(
        f"\ntail: {seen / seconds:,.0f} records/s read of {written / seconds:,.0f} written, {shown / seconds:.0f} shown"
    )
    print(f"the console used {(cpu(console) - before) / seconds:.0%} of a core and {memory(console)} MB")


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def memory(pid: int) -> int:
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) // 1024


if __name__ == "__main__":
    main()
