"""Interfaces and values of the persisted state of share partitions (Kafka's Persister).

Declarations only: the share coordinator implements them over `__share_group_state`, tests over a dictionary.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode
    from ottla.protocol.schema import Uuid

NO_START_OFFSET = -1
"""The start offset of a share partition that was never fetched: `share.auto.offset.reset` of the group decides."""


class SharePartitionKey(NamedTuple):
    """A share partition: a group and a partition by topic id (Kafka's SharePartitionKey)."""

    group_id: str
    topic_id: Uuid
    partition: int


class StateBatch(NamedTuple):
    """A range of records in one delivery state: 0 available, 2 acknowledged, 4 archived (PersisterStateBatch)."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class ShareState(NamedTuple):
    """The persisted state of a share partition, or the error of reading it."""

    error: ErrorCode
    state_epoch: int = 0
    leader_epoch: int = -1
    start_offset: int = NO_START_OFFSET
    delivery_complete_count: int = -1
    batches: Sequence[StateBatch] = ()


@dataclass(slots=True)
class ShareCounts:
    """Counters of one node's share partitions since it started."""

    acknowledged: Counter[int] = field(default_factory=Counter)
    """Records by acknowledge type, with the protocol's numbers."""
    locks_expired: int = 0
    """Records whose acquisition lock expired."""


class ShareStateStore(Protocol):
    """Reads and writes the persisted state of share partitions, on whichever node coordinates them."""

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Pending[ErrorCode]:
        """Initialize a partition's state, or reset it with a later state epoch."""
        ...

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Pending[ShareState]:
        """Return the state for a leader epoch, and fence earlier leader epochs."""
        ...

    def write(
        self,
        key: SharePartitionKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Pending[ErrorCode]:
        """Update the state; complete once it is durable, or with FENCED_STATE_EPOCH or FENCED_LEADER_EPOCH."""
        ...

    def summary(self, key: SharePartitionKey) -> Pending[ShareState]:
        """Return the state without its batches."""
        ...

    def delete(self, key: SharePartitionKey) -> Pending[ErrorCode]:
        """Delete a partition's state."""
        ...
