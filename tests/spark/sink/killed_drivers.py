"""Kill and pause processes that write batches exactly once, without Spark, and kill their broker.

`python -m tests.spark.sink.killed_drivers --kills 100 --seed N [--target ottla|kafka]`: a forked process runs batches
as a driver with its tasks does. At a random moment it is killed (SIGKILL), or stopped (SIGSTOP) for longer than the
transaction timeout, also while another process takes over, or its broker is killed. Each process writes other rows; of
every batch the rows of one process must be visible, once.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.client.client import Client
from ottla.client.topics import create_topic
from tests.ottla_node import OttlaNode
from tests.spark.consume import consume

from .sink_crashes import ROWS, Sink

if TYPE_CHECKING:
    from tests.interop.apache_kafka import ApacheKafka

TIMEOUT_MS = 2_000
BATCHES = 4
SECONDS = 600  # a guard
OPTIONS = {"kafka.transaction.timeout.ms": str(TIMEOUT_MS), "kafka.request.timeout.ms": "120000"}


def drive(bootstrap: str, topic: str, query: str, commits: Path, run: str, seed: int) -> int:
    """Fork a process that writes all batches after the last committed one; return its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        chance = random.Random(seed)
        sink = Sink(bootstrap, topic, lambda _: None, query, OPTIONS)
        while (batch := len(list(commits.iterdir()))) < BATCHES:
            tasks = chance.randint(1, 3)
            sink.write(batch, tasks, f"{run}-{tasks}")
            (commits / str(batch)).touch()
        code = 0
    except BaseException as error:
        with (commits.parent / "errors").open("a") as log:
            log.write(f"{run}: {type(error).__name__}: {error}\n")
    finally:
        os._exit(code)


def ended(pid: int, patience: float) -> int | None:
    """Wait for a process; return its wait status, None if it still runs."""
    deadline = time.monotonic() + patience
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)


def attack(node: OttlaNode | ApacheKafka, topic: str, folder: Path, chance: random.Random, counts: Counter[str]) -> str:
    """Write the batches of one query with accidents until all are committed; return the query."""
    query = str(uuid.uuid4())
    commits = folder / query / "commits"
    commits.mkdir(parents=True)
    zombies: list[int] = []
    runs = 0
    while len(list(commits.iterdir())) < BATCHES:
        runs += 1
        pid = drive(node.bootstrap, topic, query, commits, f"r{runs}", chance.randrange(2**32))
        if runs > 6:  # let it end
            what = "none"
        else:
            what = chance.choices(("kill", "pause", "zombie", "broker"), (10, 2, 3, 1))[0]
        if what == "none" or ended(pid, chance.uniform(0.02, 1.2)) is not None:
            if what == "none":
                assert ended(pid, SECONDS) is not None, f"{query} does not end"
            continue
        counts[what] += 1
        if what == "kill":
            os.kill(pid, signal.SIGKILL)
            ended(pid, SECONDS)
        elif what == "pause":
            os.kill(pid, signal.SIGSTOP)
            time.sleep(TIMEOUT_MS / 1000 + 2.5)
            os.kill(pid, signal.SIGCONT)
            ended(pid, SECONDS)
        elif what == "zombie":
            os.kill(pid, signal.SIGSTOP)
            zombies.append(pid)
        else:
            node.kill()
            node.start()
            ended(pid, SECONDS)
        if zombies and chance.random() < 0.5:
            os.kill(zombies.pop(), signal.SIGCONT)  # beside the next process
    for zombie in zombies:
        os.kill(zombie, signal.SIGCONT)
    while True:  # wait for all zombies
        try:
            os.waitpid(-1, os.WNOHANG if not zombies else 0)
            zombies = zombies[1:]
            if not zombies:
                break
        except ChildProcessError:
            break
    return query


def check(bootstrap: str, topic: str, queries: list[str]) -> int:
    """Every batch has all rows of one run, once; return the number of rows."""
    batches: dict[tuple[str, int], Counter[str]] = {}
    for seen in consume(bootstrap, topic):
        query, batch, *_ = (seen.key or b"").decode().split("/")
        batches.setdefault((query, int(batch)), Counter())[(seen.key or b"").decode()] += 1
    for query in queries:
        for batch in range(BATCHES):
            rows = batches.pop((query, batch), Counter())
            runs = {key.split("/")[2] for key in rows}
            assert len(runs) == 1, f"batch {batch} of {query} has rows of runs {sorted(runs)}"
            assert set(rows.values()) == {1}, f"batch {batch} of {query} has rows twice: {rows}"
            expected = int(runs.pop().partition("-")[2]) * ROWS
            assert len(rows) == expected, f"batch {batch} of {query} has {len(rows)} rows instead of {expected}"
    assert not batches, f"rows of unknown batches: {list(batches)}"
    return len(queries) * BATCHES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=("ottla", "kafka"), default="ottla")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="killed-drivers-"))
    node: OttlaNode | ApacheKafka
    if given.target == "ottla":
        node = OttlaNode(folder / "ottla")
    else:
        from tests.interop.apache_kafka import ApacheKafka

        interval = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
        node = ApacheKafka(folder / "kafka", settings=interval)
    chance = random.Random(given.seed)
    counts: Counter[str] = Counter()
    queries: list[str] = []
    with node:
        with Client(node.bootstrap, timeout=300) as client:
            create_topic(client, "orders", partitions=2, replication_factor=1)
        while counts.total() < given.kills:
            queries.append(attack(node, "orders", folder, chance, counts))
            print(f"\r{len(queries)} queries, {dict(counts)}", end="", file=sys.stderr, flush=True)
        batches = check(node.bootstrap, "orders", queries)
    errors = Counter(
        line.split(": ")[1]
        for path in folder.glob("*/errors")
        for line in path.read_text().splitlines()
        if ": " in line
    )
    print(f"\n{given.target}: {counts.total()} kills and pauses {dict(counts)}; {batches} batches, each once")
    print(f"processes that failed: {dict(errors)}")


if __name__ == "__main__":
    main()
