"""Runs the benchmarks and writes what they print to docs/BENCHMARKS.md: `python -m bench [NAME ...]`.

Each benchmark is a script of its own and measures ottla next to a peer in the same run, because machines are noisy:
read the ratios. A run of some leaves the figures of the others as they are.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "BENCHMARKS.md"
BENCHMARKS = {
    "codec": "Messages: ottla's compiled codecs next to kio's native decoder",
    "kernel": "Record batches: the native kernel, compiled and uncompiled",
    "storage": "The log: append, read, recover, open",
    "broker": "The broker next to Apache Kafka and kfake, one client for all",
    "groups": "Consumer groups",
    "transactions": "Transactions",
    "shares": "Share groups",
    "testing": "The test kit: clusters in tests, the tap, the event log",
    "analysis": "Analyses: an event log on Spark, next to a plain Python script over the same lines",
    "stalls": "One loop: how long a client waits while others send what is slow to handle",
    "security": "Security: what ACLs and TLS cost",
    "registry": "The schema registry: writes, lookups, start and memory with many subjects",
    "console": "The console: pages of a large cluster, a fast tail, memory, idle",
    "columns": "Typed columns: Avro values in Spark, next to from_avro",
    "spark": "Topics as Spark tables: the official connector, ottla over the network, ottla-log on the files",
    "scaling": "Scaling: what a scan costs per GB, per task and per partition, and what the driver costs",
}
HEADING = """# Benchmarks

Every figure is taken next to a peer, or next to its own slower form, in the same run: machines are noisy, so read the
ratios. `make bench` measures all of them and writes this page; `python -m bench codec` measures one group.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"which ones: {', '.join(BENCHMARKS)}; all if none is named")
    requested = parser.parse_args().names or list(BENCHMARKS)
    unknown = [name for name in requested if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}")
    sections = read_sections()
    failed = False
    for name in requested:
        script = ROOT / "bench" / f"{name}.py"
        if not script.exists():
            continue
        print(f"== {BENCHMARKS[name]}", flush=True)
        done = subprocess.run([sys.executable, str(script)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        print(done.stdout)
        if done.returncode:
            print(f"bench/{name}.py ended with exit code {done.returncode}", file=sys.stderr)
            failed = True
            continue
        sections[name] = section(name, done.stdout)
    PAGE.write_text(HEADING + "".join(sections[name] for name in BENCHMARKS if name in sections))
    return int(failed)


def section(name: str, output: str) -> str:
    taken = datetime.datetime.now(tz=datetime.UTC).date()
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    shown = output.strip() if "|---" in output else f"```\n{output.strip()}\n```"
    return f"\n## {BENCHMARKS[name]}\n\n`python bench/{name}.py`, {taken}, {machine}\n\n{shown}\n"


def read_sections() -> dict[str, str]:
    """The page's sections as they are, by benchmark."""
    text = PAGE.read_text() if PAGE.exists() else ""
    sections = {}
    for part in re.split(r"(?m)^(?=## )", text):
        match = re.search(r"`python bench/(\w+)\.py`", part)
        if match:
            sections[match[1]] = "\n" + part.rstrip() + "\n"
    return sections


if __name__ == "__main__":
    sys.exit(main())
