"""Replica placement for new partitions, striped over racks and brokers (Kafka's StripedReplicaPlacer).

Deterministic for a seeded `Random`. Uses registrations only, not load.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.cluster.partitions.state import MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.cluster.image import ClusterImage
    from ottla.protocol.schema import Uuid
    from ottla.world.random import Random


@dataclass(slots=True)
class _BrokerList:
    """Brokers of one rack in round-robin order; each epoch starts at the next broker."""

    brokers: list[int] = field(default_factory=list)
    index: int = 0
    offset: int = 0
    epoch: int = 0

    def initialize(self, random: Random) -> None:
        if self.brokers:
            self.brokers.sort()
            self.offset = random.below(len(self.brokers))

    def next(self, epoch: int) -> int | None:
        if not self.brokers:
            return None
        if self.epoch != epoch:
            self.epoch = epoch
            self.index = 0
            self.offset = (self.offset + 1) % len(self.brokers)
        if self.index >= len(self.brokers):
            return None
        broker = self.brokers[(self.index + self.offset) % len(self.brokers)]
        self.index += 1
        return broker


@dataclass(slots=True)
class _Rack:
    unfenced: _BrokerList = field(default_factory=_BrokerList)
    fenced: _BrokerList = field(default_factory=_BrokerList)

    def next(self, epoch: int) -> int | None:
        broker = self.unfenced.next(epoch)
        return broker if broker is not None else self.fenced.next(epoch)


class _RackList:
    """Racks in round-robin order: the leader goes to the next rack with an active broker, followers to later ones."""

    def __init__(self, random: Random, image: ClusterImage) -> None:
        self._random = random
        self._racks: dict[str | None, _Rack] = {}
        self._epoch = 0
        self.total = self.unfenced = 0
        for broker_id, broker in sorted(image.brokers.items()):
            if not broker.takes_new_replicas:
                continue
            rack = self._racks.setdefault(broker.rack, _Rack())
            if broker.fenced:
                rack.fenced.brokers.append(broker_id)
            else:
                self.unfenced += 1
                rack.unfenced.brokers.append(broker_id)
            self.total += 1
        for rack in self._racks.values():
            rack.fenced.initialize(random)
            rack.unfenced.initialize(random)
        self._names: list[str | None] = sorted(self._racks, key=lambda name: (name is not None, name or ""))
        self._offset = random.below(len(self._names)) if self._names else 0

    def place(self, replicas: int) -> list[int]:
        if self._epoch == self.unfenced and self.unfenced > 1:
            self._shuffle()
            self._epoch = 0
        if self._offset == len(self._names):
            self._offset = 0
        first_rack, leader = self._leader()
        brokers = [leader]
        rack_index = self._offset
        while len(brokers) < replicas:
            broker: int | None = None
            # Skip the leader's rack once: it already holds a replica of this partition.
            if rack_index == first_rack:
                first_rack = -1
            else:
                broker = self._racks[self._names[rack_index]].next(self._epoch)
            rack_index = (rack_index + 1) % len(self._names)
            if broker is not None:
                brokers.append(broker)
        self._epoch += 1
        self._offset += 1
        return brokers

    def _leader(self) -> tuple[int, int]:
        rack_index = self._offset
        while True:
            broker = self._racks[self._names[rack_index]].unfenced.next(self._epoch)
            if broker is not None:
                return rack_index, broker
            rack_index = (rack_index + 1) % len(self._names)

    def _shuffle(self) -> None:
        self._random.shuffle(self._names)
        for rack in self._racks.values():
            self._random.shuffle(rack.fenced.brokers)
            self._random.shuffle(rack.unfenced.brokers)


def place_replicas(image: ClusterImage, random: Random, partitions: int, replicas: int) -> list[list[int]]:
    """Return the brokers of each new partition, preferred leader first, or raise INVALID_REPLICATION_FACTOR."""
    racks = _RackList(random, image)
    if replicas <= 0:
        raise _impossible(f"Invalid replication factor {replicas}: the replication factor must be positive.")
    if racks.unfenced == 0:
        raise _impossible("All brokers are currently fenced, or have all their log directories cordoned.")
    if replicas > racks.total:
        raise _impossible(
            f"The target replication factor of {replicas} cannot be reached because only {racks.total} broker(s) are "
            "registered or some brokers have all their log directories cordoned."
        )
    return [racks.place(replicas) for _ in range(partitions)]


def _impossible(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)


def default_directory(image: ClusterImage, broker_id: int) -> Uuid:
    """Return the directory of a new replica: the broker's only one, or UNASSIGNED if it has several."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        return UNASSIGNED_DIRECTORY
    if not broker.directories:
        return MIGRATING_DIRECTORY
    return broker.directories[0] if len(broker.directories) == 1 else UNASSIGNED_DIRECTORY


def directories_for(image: ClusterImage, replicas: Sequence[int]) -> tuple[Uuid, ...]:
    """Return the directory of each replica of a new partition."""
    return tuple(default_directory(image, broker_id) for broker_id in replicas)
