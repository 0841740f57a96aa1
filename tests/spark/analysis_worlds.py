"""Log directories for the analyses that look at records: written with ottla's own storage, without a broker."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ottla.records.builder import BatchBuilder
from ottla.records.control import ControlType
from ottla.storage.config import LogConfig
from ottla.storage.environment import StorageEnvironment
from ottla.storage.log import Log
from ottla.storage.names import TopicPartition
from ottla.world.clock import VirtualClock
from ottla.world.disk_real import RealDisk
from ottla.world.random import SeededRandom

if TYPE_CHECKING:
    from pathlib import Path


class Writer:
    """Writes partitions of a log directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._clock = VirtualClock()
        self._environment = StorageEnvironment(RealDisk(), self._clock, SeededRandom(1))
        self._logs: dict[TopicPartition, Log] = {}
        path.mkdir(parents=True, exist_ok=True)
        (path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abc\n")

    def _log(self, topic: str, partition: int) -> Log:
        place = TopicPartition(topic, partition)
        if place not in self._logs:
            folder = os.path.join(self.path, str(place))
            self._logs[place] = Log.open(self._environment, folder, place, LogConfig(), clean=True)
        return self._logs[place]

    def write(
        self,
        topic: str,
        partition: int,
        keys: list[str],
        *,
        producer: int = -1,
        epoch: int = 0,
        first: int = 0,
        value: str = "value of",
    ) -> None:
        """One batch, of a transaction if it has a producer."""
        transactional = producer >= 0
        builder = BatchBuilder(
            producer_id=producer,
            producer_epoch=epoch if transactional else -1,
            base_sequence=first if transactional else -1,
            transactional=transactional,
        )
        for key in keys:
            builder.append(key.encode(), f"{value} {key}".encode(), (("id", f"h{key}".encode()),), self._clock.now_ms())
        self._log(topic, partition).append_as_leader(builder.build(), 0, verified=True)

    def end(self, topic: str, partition: int, producer: int, *, committed: bool, epoch: int = 0) -> None:
        """The end of a transaction in a partition."""
        self._log(topic, partition).append_marker(
            ControlType.COMMIT if committed else ControlType.ABORT,
            0,
            producer_id=producer,
            producer_epoch=epoch,
            coordinator_epoch=0,
            transaction_version=0,
        )

    def close(self) -> None:
        """Nothing more will come."""
        for log in self._logs.values():
            log.close()
