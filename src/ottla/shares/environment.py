"""Where the state of a share partition is kept: read when its leader begins, written before an acknowledgement counts.

Declarations only. The share coordinator implements them over `__share_group_state`, tests over a dictionary.
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
"""The start offset of a partition that was initialized but never read: the group's `share.auto.offset.reset` says."""


class SharePartitionKey(NamedTuple):
    """A partition as one group shares it."""

    group_id: str
    topic_id: Uuid
    partition: int


class StateBatch(NamedTuple):
    """Records in one state; the numbers are those of Kafka (0 available, 2 acknowledged, 4 archived)."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class ShareState(NamedTuple):
    """What is kept of a share partition."""

    error: ErrorCode
    state_epoch: int = 0
    leader_epoch: int = -1
    start_offset: int = NO_START_OFFSET
    delivery_complete_count: int = -1
    batches: Sequence[StateBatch] = ()


@dataclass(slots=True)
class ShareCounts:
    """What has become of shared records on one node since it started."""

    acknowledged: Counter[int] = field(default_factory=Counter)
    """Records by what their members said of them, as the protocol numbers it."""
    locks_expired: int = 0
    """Records that were held for too long."""


class ShareStateStore(Protocol):
    """The way to the share coordinator of a partition, wherever it is."""

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Pending[ErrorCode]:
        """Begin to keep a partition's state, or begin anew with a later epoch."""
        ...

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Pending[ShareState]:
        """The state, for the leader in that epoch; earlier leaders are fenced from then on."""
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
        """Change the state; the answer comes when that is durable. FENCED_STATE_EPOCH, FENCED_LEADER_EPOCH."""
        ...

    def summary(self, key: SharePartitionKey) -> Pending[ShareState]:
        """The state without its batches, for whoever describes offsets."""
        ...

    def delete(self, key: SharePartitionKey) -> Pending[ErrorCode]:
        """Keep no state of a partition any more."""
        ...
