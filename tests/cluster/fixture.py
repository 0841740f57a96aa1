"""Files of Apache Kafka 4.3.1 on a memory disk, so that a test may open and change them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.protocol.record_values import decode_metadata_record
from ottla.records.iterate import iter_all_records
from ottla.storage.directory import LogDirectory
from ottla.world.clock import VirtualClock
from ottla.world.disk_memory import MemoryDisk
from ottla.world.random import SeededRandom

if TYPE_CHECKING:
    from ottla.protocol.record_values import UnknownRecord
    from ottla.protocol.schema import Message

KAFKA = Path(__file__).parents[1] / "fixtures" / "kafka" / "4.3.1"
METADATA = "__cluster_metadata-0"


def facts() -> dict[str, Any]:
    """Return the responses of Kafka's admin client about the directory."""
    result: dict[str, Any] = json.loads((KAFKA / "facts.json").read_text())
    return result


def on_disk(name: str | None = None) -> LogDirectory:
    """Return a log directory in memory: empty, or a copy of a captured one without its topics' logs."""
    clock = VirtualClock()
    disk = MemoryDisk(clock=clock)
    disk.make_dirs("/data")
    if name is not None:
        root = KAFKA / name
        for file in sorted(root.rglob("*")):
            relative = file.relative_to(root)
            if file.is_dir() or (len(relative.parts) > 1 and relative.parts[0] != METADATA):
                continue
            target = f"/data/{relative}"
            disk.make_dirs(target.rsplit("/", 1)[0])
            opened = disk.open(target, create=True)
            opened.append(file.read_bytes())
            opened.close()
    directory = LogDirectory(disk, clock, SeededRandom(7), "/data")
    directory.open()
    return directory


def log_records(name: str) -> list[tuple[int, Message | UnknownRecord]]:
    """Return the metadata records of a captured log with their offsets."""
    data = (KAFKA / name / METADATA / "00000000000000000000.log").read_bytes()
    return [(record.offset, decode_metadata_record(record.value or b"")) for _, record in iter_all_records(data)]
