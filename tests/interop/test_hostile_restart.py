"""Apache Kafka opens the directories that `tests/broker/test_hostile_restart.py` damages; its outcome is recorded.

One line per directory in `tests/fixtures/hostile_restart.jsonl`: the damage, and how Kafka and ottla start on it.
OTTLA_WRITE_FIXTURES=1 records again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.broker.hostile_directory import METADATA_FOLDER, Damaged, check_restart, stopped

from .apache_kafka import KafkaDiedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop

FIXTURE = Path(__file__).parents[1] / "fixtures" / "hostile_restart.jsonl"
EMPTIED = {
    "bootstrap.checkpoint": "/data/bootstrap.checkpoint",
    "partition.metadata": "/data/plain-0/partition.metadata",
    "leader-epoch-checkpoint": "/data/plain-0/leader-epoch-checkpoint",
    "recovery-point-offset-checkpoint": "/data/recovery-point-offset-checkpoint",
    "metadata log": f"{METADATA_FOLDER}{0:020d}.log",
}


def damaged_directories() -> dict[str, Damaged]:
    """Return each sampled damage by name: one emptied file each, and one byte of the metadata log changed."""
    files = stopped(True).files
    samples = {}
    for name, path in EMPTIED.items():
        samples[f"{name} emptied"] = Damaged({**files, path: b""}, [f"empty {path}"], {path})
    path = EMPTIED["metadata log"]
    changed = bytearray(files[path])
    changed[len(changed) // 2] ^= 1
    samples["metadata log, one byte changed"] = Damaged({**files, path: bytes(changed)}, [f"flip {path}"], {path})
    return samples


def recorded() -> dict[str, Any]:
    lines = FIXTURE.read_text().splitlines() if FIXTURE.exists() else []
    return {line["damage"]: line for line in map(json.loads, lines)}


@pytest.mark.parametrize("name", list(damaged_directories()))
def test_kafka_outcome_is_as_recorded(
    name: str, apache_kafka_factory: Callable[..., ApacheKafka], tmp_path: Path
) -> None:
    damaged = damaged_directories()[name]
    for path, data in damaged.files.items():
        target = tmp_path / path.removeprefix("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    kafka = apache_kafka_factory(tmp_path / "data")
    try:
        with kafka:
            outcome = "started"
    except (KafkaDiedError, OSError):
        outcome = "died"
    strays = sorted(path.name.partition(".")[0] for path in (tmp_path / "data").glob("*-stray"))
    line = {"damage": name, "kafka": outcome, "kafka_strays": strays, "ottla": check_restart(stopped(True), damaged)}
    if os.environ.get("OTTLA_WRITE_FIXTURES"):
        lines = {**recorded(), name: line}
        FIXTURE.write_text("".join(json.dumps(line) + "\n" for line in lines.values()))
    assert recorded()[name] == line
