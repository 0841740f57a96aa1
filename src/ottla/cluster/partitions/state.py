"""State of topics and partitions in the metadata image: replicas, ISR, ELR, leader and epochs. No rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from ottla.cluster.internal_topics import INTERNAL_TOPICS
from ottla.protocol.record_schemas.metadata import PartitionChangeRecord, PartitionRecord
from ottla.protocol.schema import ZERO_UUID, Uuid

NO_LEADER: Final = -1
NO_LEADER_CHANGE: Final = -2
RECOVERED: Final = 0
RECOVERING: Final = 1
NO_RECOVERY_STATE_CHANGE: Final = -1

MIGRATING_DIRECTORY: Final = ZERO_UUID
UNASSIGNED_DIRECTORY: Final = Uuid((1).to_bytes(16, "big"))
LOST_DIRECTORY: Final = Uuid((2).to_bytes(16, "big"))


@dataclass(frozen=True, slots=True)
class Partition:
    """Replicas, ISR, leader and epochs of a partition (Kafka's PartitionRegistration)."""

    replicas: tuple[int, ...]
    directories: tuple[Uuid, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    leader_recovery_state: int = RECOVERED
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    @classmethod
    def from_record(cls, record: PartitionRecord) -> Partition:
        """Create the state from a PartitionRecord."""
        return cls(
            tuple(record.replicas),
            _directories(record.directories, len(record.replicas)),
            tuple(record.isr),
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            record.leader_recovery_state,
            tuple(record.removing_replicas),
            tuple(record.adding_replicas),
            tuple(record.eligible_leader_replicas or ()),
            tuple(record.last_known_elr or ()),
        )

    def merge(self, change: PartitionChangeRecord) -> Partition:
        """Return the partition after a change: bump the partition epoch, and the leader epoch if a leader is named.

        Naming the present leader bumps the leader epoch, too.
        """
        replicas = self.replicas if change.replicas is None else tuple(change.replicas)
        directories = self.directories if change.directories is None else tuple(change.directories)
        new_leader = change.leader != NO_LEADER_CHANGE
        state = change.leader_recovery_state
        return Partition(
            replicas,
            _directories(directories, len(replicas)),
            self.isr if change.isr is None else tuple(change.isr),
            change.leader if new_leader else self.leader,
            self.leader_epoch + 1 if new_leader else self.leader_epoch,
            self.partition_epoch + 1,
            self.leader_recovery_state if state == NO_RECOVERY_STATE_CHANGE else state,
            self.removing_replicas if change.removing_replicas is None else tuple(change.removing_replicas),
            self.adding_replicas if change.adding_replicas is None else tuple(change.adding_replicas),
            self.elr if change.eligible_leader_replicas is None else tuple(change.eligible_leader_replicas),
            self.last_known_elr if change.last_known_elr is None else tuple(change.last_known_elr),
        )

    def to_record(self, topic_id: Uuid, index: int, *, directories: bool, elr: bool) -> PartitionRecord:
        """Return the record for creation and snapshots; older metadata.versions have neither directories nor ELR."""
        return PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=list(self.replicas),
            isr=list(self.isr),
            removing_replicas=list(self.removing_replicas),
            adding_replicas=list(self.adding_replicas),
            leader=self.leader,
            leader_recovery_state=self.leader_recovery_state,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            directories=list(self.directories) if directories else [],
            eligible_leader_replicas=list(self.elr) if elr and self.elr else None,
            last_known_elr=list(self.last_known_elr) if elr and self.last_known_elr else None,
        )

    def without_elr(self) -> Partition:
        """Return the partition without ELR and last known ELR."""
        return replace(self, elr=(), last_known_elr=(), partition_epoch=self.partition_epoch + 1)

    @property
    def reassigning(self) -> bool:
        """Whether a reassignment is in progress."""
        return bool(self.adding_replicas or self.removing_replicas)


def _directories(written: tuple[Uuid, ...] | list[Uuid], count: int) -> tuple[Uuid, ...]:
    return tuple(written) if written else (MIGRATING_DIRECTORY,) * count


@dataclass(slots=True)
class Topic:
    """A topic and its partitions by number (Kafka's TopicImage)."""

    name: str
    id: Uuid
    partitions: dict[int, Partition] = field(default_factory=dict)

    @property
    def internal(self) -> bool:
        """Whether the topic is an internal topic."""
        return self.name in INTERNAL_TOPICS
