"""Run a command while its processes are stopped at random for short times, as on an overloaded machine.

python tools/stutter.py [--seed N] [--longest SECONDS] COMMAND ...

What waits for a time instead of a condition fails under it in minutes, and not in one run of fifty. Every few
seconds one process of the command's tree, or now and then all of them, stands still for up to the longest pause;
short pauses are more likely. The exit code is the command's.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path


def tree(root: int) -> list[int]:
    """A process and all that come from it."""
    children = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            parent = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
            children[int(parent)].append(int(stat.parent.name))
    pids = [root]
    for pid in pids:
        pids += children[pid]
    return pids


def send(processes: list[int], what: signal.Signals) -> None:
    """Send a signal to those that are still there."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, what)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="the pauses of an earlier run")
    parser.add_argument("--longest", type=float, default=5, metavar="SECONDS", help="the longest pause (5)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("which command?")
    print(f"stutter: seed {options.seed}", file=sys.stderr)
    chance = random.Random(options.seed)
    running = subprocess.Popen(options.command)
    while running.poll() is None:
        time.sleep(chance.uniform(0.2, 3))
        processes = tree(running.pid)
        chosen = processes if chance.random() < 0.25 else [chance.choice(processes)]
        send(chosen, signal.SIGSTOP)
        try:
            time.sleep(options.longest * chance.random() ** 3)
        finally:
            send(chosen, signal.SIGCONT)
    return running.returncode


if __name__ == "__main__":
    sys.exit(main())
