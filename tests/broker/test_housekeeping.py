"""Background tasks: retention, compaction, checkpoints, metadata snapshots."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from ottla.testing import Cluster
from ottla.world.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

PATIENCE = 300.0
SMALL = {"segment.bytes": "1048576", "retention.ms": "60000", "file.delete.delay.ms": "1000"}
COMPACTED = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
CONFIGS = {
    "log.cleaner.backoff.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "metadata.log.max.record.bytes.between.snapshots": "500",
}


def produce(cluster: Cluster, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5, "log_level": 0})
    for number in range(count):
        producer.produce(topic, b"%d " % number + bytes(20_000), key=b"%d" % (number % 5))
        producer.poll(0)
    assert producer.flush(PATIENCE) == 0


def advance_until(cluster: Cluster, condition: Callable[[], bool], what: str) -> None:
    """Advance virtual time until a condition holds; the tasks themselves run in threads, in real time."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        cluster.advance(1)


def test_background_tasks_compact_delete_and_snapshot(tmp_path: Path) -> None:
    topics = {"old": {"configs": SMALL}, "latest": {"configs": COMPACTED}}
    clock = VirtualClock(int(time.time() * 1000))
    with Cluster(topics=topics, configs=CONFIGS, clock=clock, data_dir=str(tmp_path)) as cluster:
        for topic in topics:
            produce(cluster, topic, 200)
        advance_until(cluster, lambda: len(cluster.records("latest", 0)) < 150, "nothing was compacted")
        left = cluster.records("latest", 0)
        newest = {record.key: record.offset for record in left}
        assert newest == {b"%d" % key: 195 + key for key in range(5)}
        cluster.advance(120)
        advance_until(cluster, lambda: cluster.partition("old", 0).log_start_offset > 0, "nothing was forgotten")
        produce(cluster, "old", 10)
        assert cluster.partition("old", 0).high_watermark == 210
        advance_until(cluster, lambda: snapshots(tmp_path) > 0, "no snapshot of the metadata was written")

        def checkpointed() -> bool:
            return any("latest 0" in path.read_text() for path in tmp_path.rglob("cleaner-offset-checkpoint"))

        advance_until(cluster, checkpointed, "no checkpoint was written")


def snapshots(path: Path) -> int:
    return sum(1 for name in path.rglob("*.checkpoint") if name.name[0].isdigit() and int(name.name[:20]) > 0)


def test_failed_task_is_logged_and_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock(int(time.time() * 1000))
    with Cluster(configs=CONFIGS, clock=clock) as cluster:
        calls = []

        def fail() -> None:
            calls.append(1)
            raise RuntimeError("the lamp fell over")

        cluster.call(lambda broker: broker.housekeeping._schedule("lamp", lambda: 1000, fail))
        advance_until(cluster, lambda: len(calls) > 2, "the task did not come again")
    assert "lamp failed" in caplog.text
