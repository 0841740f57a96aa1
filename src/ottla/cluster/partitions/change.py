"""One change of one partition as one record: leader, ISR and ELR after it (Kafka's PartitionChangeBuilder).

Includes the rules of KIP-966 (eligible leader replicas).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.configs.effective import topic_value
from ottla.cluster.features import DIRECTORIES_FROM, epoch_bump_on_isr_shrink
from ottla.cluster.partitions.placement import default_directory
from ottla.cluster.partitions.state import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    NO_LEADER,
    NO_LEADER_CHANGE,
    RECOVERING,
    UNASSIGNED_DIRECTORY,
)
from ottla.protocol.record_schemas.metadata import PartitionChangeRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.cluster.configs.effective import BrokerLayers
    from ottla.cluster.image import ClusterImage
    from ottla.cluster.partitions.state import Partition, Topic
    from ottla.protocol.schema import Uuid


class Election(Enum):
    """Kind of leader election."""

    PREFERRED = "preferred"
    """Preferred leader election: the first replica if it can lead."""
    ONLINE = "online"
    """Only when the present leader cannot continue."""
    UNCLEAN = "unclean"
    """Like ONLINE, and as a last resort a replica that is not in sync."""


def min_isr(image: ClusterImage, topic: Topic, layers: BrokerLayers) -> int:
    """Return a topic's min.insync.replicas, at most its replication factor."""
    value = topic_value(image.config(ConfigResourceType.TOPIC, topic.name), layers, "min.insync.replicas")
    assert isinstance(value, int)
    return min(value, len(topic.partitions[0].replicas)) if 0 in topic.partitions else value


def unclean_election_enabled(image: ClusterImage, topic: Topic, layers: BrokerLayers) -> bool:
    """Return a topic's unclean.leader.election.enable."""
    name = "unclean.leader.election.enable"
    return bool(topic_value(image.config(ConfigResourceType.TOPIC, topic.name), layers, name))


def has_online_directory(image: ClusterImage, broker_id: int, directory: Uuid) -> bool:
    """Return whether the directory of a replica is online; an unassigned one counts as online."""
    broker = image.brokers.get(broker_id)
    if broker is None or directory == LOST_DIRECTORY:
        return False
    if directory in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY) or not broker.directories:
        return True
    return directory in broker.directories


@dataclass(slots=True)
class PartitionChange:
    """A requested change of a partition; fields that are None do not change. `build` returns the record."""

    image: ClusterImage
    topic: Topic
    index: int
    layers: BrokerLayers
    may_lead: Callable[[int], bool]
    election: Election = Election.ONLINE
    isr: list[int] | None = None
    replicas: list[int] | None = None
    removing: list[int] | None = None
    adding: list[int] | None = None
    recovery_state: int | None = None
    unclean_shutdown: tuple[int, ...] = ()
    """Brokers that came back without a clean stop: their logs may have lost their ends."""
    directories: dict[int, Uuid] = field(default_factory=dict)
    min_isr: int | None = None
    """The result of `min_isr()`, if the caller has computed it."""
    _elr: list[int] = field(default_factory=list)

    def build(self) -> PartitionChangeRecord | None:
        """Return the record, or None if nothing changes."""
        before = self.topic.partitions[self.index]
        record = PartitionChangeRecord(partition_id=self.index, topic_id=self.topic.id)
        isr = list(before.isr) if self.isr is None else self.isr
        replicas = list(before.replicas) if self.replicas is None else self.replicas
        removing = list(before.removing_replicas) if self.removing is None else self.removing
        adding = list(before.adding_replicas) if self.adding is None else self.adding
        completed = completed_reassignment(replicas, removing, adding, isr)
        if completed is not None:
            replicas, isr = completed
            removing, adding = [], []
        elr_enabled = self.image.elr_enabled
        self._elr = self._target_elr(before, isr) if elr_enabled else list(before.elr)
        leader, unclean = self._elect(before, replicas, isr)
        if leader != before.leader:
            isr = self._take_lead(record, before, leader, isr, unclean=unclean)
        if record.leader == NO_LEADER_CHANGE and not set(replicas) >= set(before.replicas):
            record.leader = before.leader
        if record.isr is not None or not elr_enabled:
            self._elr = []
        if self._elr != list(before.elr):
            record.eligible_leader_replicas = self._elr
        if record.isr is None and (isr or elr_enabled) and isr != list(before.isr):
            record.isr = isr
        self._bump_epoch_on_shrink(record, before)
        self._remember_last_leader(record, before)
        self._assignment(record, before, replicas, removing, adding)
        if self.recovery_state is not None and self.recovery_state != before.leader_recovery_state:
            record.leader_recovery_state = self.recovery_state
        nothing = PartitionChangeRecord(partition_id=self.index, topic_id=self.topic.id)
        return None if record == nothing else record

    def _target_elr(self, before: Partition, isr: list[int]) -> list[int]:
        """Return the ELR: below min.insync.replicas, replicas that leave the ISR miss no committed record."""
        required = min_isr(self.image, self.topic, self.layers) if self.min_isr is None else self.min_isr
        if len(isr) >= required:
            return []
        candidates = sorted({*before.elr, *before.isr})
        return [replica for replica in candidates if replica not in isr and replica not in self.unclean_shutdown]

    def _elect(self, before: Partition, replicas: list[int], isr: list[int]) -> tuple[int, bool]:
        """Return the leader and whether the election is unclean.

        A preferred leader election tries the first replica first, others the present leader; both need a replica in
        the ISR (or, if that is empty, in the ELR). Without one, the last known leader may lead, then, in an unclean
        election, any online replica.
        """

        def valid(replica: int) -> bool:
            return (replica in isr or (not isr and replica in self._elr)) and self._acceptable(before, replica)

        order = [before.leader, *replicas]
        if self.election is Election.PREFERRED:
            order = [replicas[0], before.leader, *replicas[1:]]
        for replica in order:
            if valid(replica):
                return replica, False
        if (
            self.image.elr_enabled
            and not isr
            and not self._elr
            and len(before.last_known_elr) == 1
            and self._acceptable(before, before.last_known_elr[0])
        ):
            return before.last_known_elr[0], True
        if self.election is Election.UNCLEAN:
            for replica in replicas:
                if self._acceptable(before, replica):
                    return replica, True
        return NO_LEADER, False

    def _acceptable(self, before: Partition, replica: int) -> bool:
        if replica not in before.replicas or not self.may_lead(replica):
            return False
        directory = before.directories[before.replicas.index(replica)]
        return has_online_directory(self.image, replica, directory)

    def _take_lead(
        self, record: PartitionChangeRecord, before: Partition, leader: int, isr: list[int], *, unclean: bool
    ) -> list[int]:
        if leader in self._elr:
            isr = [leader]
            self._elr = [replica for replica in self._elr if replica != leader]
        record.leader = leader
        if unclean:
            record.isr = [leader]
            if before.leader_recovery_state != RECOVERING:
                record.leader_recovery_state = RECOVERING
        return isr

    def _bump_epoch_on_shrink(self, record: PartitionChangeRecord, before: Partition) -> None:
        if (
            epoch_bump_on_isr_shrink(self.image.metadata_version)
            and record.leader == NO_LEADER_CHANGE
            and record.isr is not None
            and not set(record.isr) >= set(before.isr)
        ):
            record.leader = before.leader

    def _remember_last_leader(self, record: PartitionChangeRecord, before: Partition) -> None:
        if not self.image.elr_enabled:
            return
        if record.leader == NO_LEADER and not before.last_known_elr:
            record.last_known_elr = [before.leader]
        elif record.leader >= 0 and before.last_known_elr:
            record.last_known_elr = []

    def _assignment(
        self,
        record: PartitionChangeRecord,
        before: Partition,
        replicas: list[int],
        removing: list[int],
        adding: list[int],
    ) -> None:
        if self.image.metadata_version >= DIRECTORIES_FROM:
            known = {**dict(zip(before.replicas, before.directories, strict=True)), **self.directories}
            directories = [
                known[replica] if replica in known else default_directory(self.image, replica) for replica in replicas
            ]
            if directories != list(before.directories):
                record.directories = directories
        if replicas != list(before.replicas):
            record.replicas = replicas
        if removing != list(before.removing_replicas):
            record.removing_replicas = removing
        if adding != list(before.adding_replicas):
            record.adding_replicas = adding


def completed_reassignment(
    replicas: list[int], removing: list[int], adding: list[int], isr: list[int]
) -> tuple[list[int], list[int]] | None:
    """Return replicas and ISR after completing a reassignment; None if there is none or it cannot complete."""
    if not removing and not adding:
        return None
    remaining_isr = [replica for replica in isr if replica not in removing]
    remaining = [replica for replica in replicas if replica not in removing]
    if removing and (not remaining_isr or not remaining):
        return None
    if not set(adding) <= set(remaining_isr):
        return None
    # With fewer replicas than before, all remaining ones must be in the ISR before the others are removed.
    if len(adding) < len(removing) and not set(remaining) <= set(remaining_isr):
        return None
    return remaining, remaining_isr
