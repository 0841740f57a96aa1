"""`ottla analyze dual-assign` on Spark over generated event logs, next to a plain Python script over the same lines.

    python bench/analysis.py [--sizes 0.1,1,10] [--folder DIR] [--plot FILE]

The log is what a broker under load writes: mostly requests and responses, groups that rebalance; a few
partitions are given away too early, and both sides have to find exactly those. Spark runs as `local[2]`; what is
measured is that of the whole tree of processes, the start of Spark included: processor seconds, which a busy machine
changes little, seconds, and memory at its worst.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.plot import line_chart

PLANTED = 7
GROUPS = 200
MEMBERS = 4
PARTITIONS = 12

PLAIN = """
import json, sys
owners, found = {}, set()
with open(sys.argv[1]) as file:
    for line in file:
        event = json.loads(line)
        if event["kind"] == "member.assigned":
            group, member = event["group"], event["member"]
            now = {(t, p) for field in ("partitions", "pending") for t, ps in event.get(field, {}).items() for p in ps}
            held = owners.setdefault(group, {})
            for place in [place for place, each in held.items() if member in each and place not in now]:
                held[place].discard(member)
            for place in now:
                each = held.setdefault(place, set())
                each.add(member)
                if len(each) > 1:
                    found.add((group, place))
print(len(found))
"""


def generate(path: Path, size: int) -> int:
    """Write a log of about so many bytes; how many partitions are given away too early."""
    chance = random.Random(size)
    seq, now, written, planted = 0, 1_790_000_000_000, 0, 0
    epochs = [1] * GROUPS
    every = max(size // (PLANTED + 1), 1)
    with path.open("w") as file:
        while written < size:
            lines = []
            for _ in range(2_000):
                now += chance.randrange(3)
                group, client = chance.randrange(GROUPS), chance.randrange(1_000)
                api = ("Fetch", "Fetch", "Produce", "ConsumerGroupHeartbeat", "OffsetCommit")[chance.randrange(5)]
                member = f"group-{group}-member-{client % MEMBERS}"
                about = (
                    f',"group":"group-{group}","member":"{member}","epoch":{epochs[group]}' if api[0] in "CO" else ""
                )
                head = f'"time":{now},"node":{1 + client % 3}'
                call = f'"connection":{client},"api":"{api}","version":1,"correlation_id":{seq}'
                call += f',"client_id":"c-{client}"'
                lines.append(f'{{"seq":{seq},{head},"kind":"request",{call},"bytes":120{about}}}\n')
                lines.append(f'{{"seq":{seq + 1},{head},"kind":"response",{call},"bytes":900,"ms":1.250}}\n')
                seq += 2
            group = chance.randrange(GROUPS)
            early = written > every * (planted + 1) and planted < PLANTED
            planted += early
            epochs[group] += 1
            for line in rebalance(group, epochs[group], seq, now, early=early):
                lines.append(line)
                seq += 1
            text = "".join(lines)
            file.write(text)
            written += len(text)
    return planted


def rebalance(group: int, epoch: int, seq: int, now: int, *, early: bool) -> list[str]:
    """All members move on by one partition: first everybody gives up, then everybody takes; unless it is too early."""
    lines = []

    def assigned(member: int, partitions: list[int], at: int) -> None:
        fields = {"group": f"group-{group}", "type": "consumer", "member": f"group-{group}-member-{member}"}
        event = {"seq": seq + len(lines), "time": at, "node": 1, "kind": "member.assigned", **fields, "epoch": epoch,
                 "partitions": {"orders": partitions}}  # fmt: skip
        lines.append(json.dumps(event, separators=(",", ":")) + "\n")

    share = PARTITIONS // MEMBERS
    own = {
        member: [(member * share + index + epoch) % PARTITIONS for index in range(share)] for member in range(MEMBERS)
    }
    for member in range(MEMBERS):
        before = [(member * share + index + epoch - 1) % PARTITIONS for index in range(share)]
        assigned(member, [partition for partition in before if partition in own[member]], now)
    for member in range(MEMBERS):
        assigned(member, own[member], now + 1)
    if early:
        assigned(1, [*own[1], own[0][0]], now + 2)
        assigned(1, own[1], now + 500)
    return lines


class Memory(threading.Thread):
    """The largest sum of resident memory of a process and all that it started, and their processor time."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self._root, self._over = root, threading.Event()
        self.peak = 0
        self._used: dict[int, float] = {}

    def run(self) -> None:
        while not self._over.wait(0.2):
            tree = self.tree()
            self.peak = max(self.peak, sum(resident(pid) for pid in tree))
            self._used |= {pid: used(pid) or self._used.get(pid, 0) for pid in tree}

    @property
    def seconds(self) -> float:
        """Processor time."""
        return sum(self._used.values())

    def tree(self) -> set[int]:
        parents = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, IndexError, ValueError):
                    parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()[1])
        processes = {self._root}
        while more := {pid for pid, parent in parents.items() if parent in processes} - processes:
            processes |= more
        return processes

    def stop(self) -> None:
        self._over.set()
        self.join()


def resident(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def used(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


class Run(NamedTuple):
    wall: float
    cpu: float
    peak: int
    out: str


def run(command: list[str], codes: tuple[int, ...] = (0,)) -> Run:
    """Run a command to its end and measure it."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    memory = Memory(process.pid)
    memory.start()
    out, _ = process.communicate()
    took = time.monotonic() - began
    memory.stop()
    if process.returncode not in codes:
        sys.exit(f"{' '.join(command)} ended with exit code {process.returncode}\n{out}")
    return Run(took, memory.seconds, memory.peak, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="0.1,1", help="in GB (0.1,1)")
    parser.add_argument("--folder", type=Path, help="where the logs go, and stay")
    parser.add_argument("--plot", type=Path, help="also draw seconds over size")
    options = parser.parse_args()
    rows = []
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        for size in [float(text) for text in options.sizes.split(",")]:
            log = folder / f"events-{size:g}.jsonl"
            planted = generate(log, int(size * 1e9))
            command = [sys.executable, "-m", "ottla", "analyze", "dual-assign", str(log), "--engine", "spark"]
            spark = run([*command, "--master", "local[2]", "--json"], codes=(1,))
            findings = len(json.loads(spark.out[spark.out.index("{") :])["findings"])
            plain = run([sys.executable, "-c", PLAIN, str(log)])
            if (findings, int(plain.out)) != (planted, planted):
                sys.exit(f"{planted} were planted, Spark found {findings} and the plain script {plain.out}")
            rows.append((size, spark, plain))
            if options.folder is None:
                log.unlink()
    print(
        "| event log | Spark: processor | wall | memory | plain Python: processor | wall | Spark / plain (processor) |"
    )
    print("|---|---|---|---|---|---|---|")
    for size, spark, plain in rows:
        print(
            f"| {size:g} GB | {spark.cpu:.1f} s | {spark.wall:.1f} s | {spark.peak / 1e9:.1f} GB | {plain.cpu:.1f} s | "
            f"{plain.wall:.1f} s | {spark.cpu / max(plain.cpu, 0.01):.2f} |"
        )
    if len(rows) > 1:
        slope = (rows[-1][1].cpu - rows[0][1].cpu) / (rows[-1][0] - rows[0][0])
        print(f"\nEach further GB costs Spark {slope:.1f} processor seconds; both found what was planted.")
    if options.plot:
        options.plot.write_text(draw([(size, spark.cpu, plain.cpu) for size, spark, plain in rows]))


def draw(points: list[tuple[float, float, float]]) -> str:
    """Processor seconds over size: what is linear is a straight line."""
    lines = {
        "Spark local[2], its start included": [(size, spark) for size, spark, _ in points],
        "plain Python, one core": [(size, plain) for size, _, plain in points],
    }
    return line_chart("dual-assign over an event log", "GB", "processor seconds", lines)


if __name__ == "__main__":
    main()
