"""The brokers that ottla is measured next to: how each is started, and what it costs while it runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / ".cache" / "bench"


@dataclass
class Peer:
    """A running broker."""

    name: str
    bootstrap: str
    pid: int
    started: float
    stop: Callable[[], None]

    def cpu_seconds(self) -> float:
        """Processor time that it has used, in the kernel and outside."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        """Memory that it holds."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _ended(process: subprocess.Popen[str]) -> Callable[[], None]:
    def stop() -> None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    return stop


def start_ottla(folder: Path) -> Peer:
    """ottla on disk, everything on, as `ottla serve` starts it."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", "serve", "-d", str(folder), "-p", "0", "-l", "warn", "--json",
         "-c", "group.initial.rebalance.delay.ms=0"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    bootstrap = json.loads(process.stdout.readline())["bootstrap"]
    return Peer("ottla (disk)", bootstrap, process.pid, began, _ended(process))


def start_kfake(folder: Path) -> Peer:
    """kfake in memory, as its own main does."""
    binary = CACHE / "kfake"
    if not binary.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(["go", "build", "-o", str(binary), "."], cwd=ROOT / "bench" / "peers" / "kfake", check=True)
    began = time.perf_counter()
    process = subprocess.Popen([str(binary), str(free_port())], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return Peer("kfake (memory)", process.stdout.readline().strip(), process.pid, began, _ended(process))


def start_apache_kafka(folder: Path, heap: str = "384m") -> Peer:
    """Apache Kafka on disk, one combined node."""
    sys.path.insert(0, str(ROOT))
    from tests.interop.apache_kafka import ApacheKafka

    node = ApacheKafka(folder / "kafka", heap=heap)
    began = time.perf_counter()
    node.start()
    return Peer("Apache Kafka (disk)", node.bootstrap, node.pid, began, node.stop)


def available() -> list[Callable[[Path], Peer]]:
    """The peers that this machine can run; who cannot be is named."""
    peers: list[Callable[[Path], Peer]] = [start_ottla]
    if shutil.which("go"):
        peers.append(start_kfake)
    else:
        print("kfake is left out: Go is not installed", file=sys.stderr)
    if shutil.which("java") and shutil.which("mvn"):
        peers.append(start_apache_kafka)
    else:
        print("Apache Kafka is left out: Java or Maven is not installed", file=sys.stderr)
    return peers
