"""A share partition without a broker: a store in a dictionary, a log as a list of batches, virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ottla.pending import Pending, completed_with
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Uuid
from ottla.shares.acquire import BATCH_OPTIMIZED, Acquired, LogBatch, acquire
from ottla.shares.environment import SharePartitionKey, ShareState, StateBatch
from ottla.shares.partition import SharePartition
from ottla.shares.settings import ShareSettings
from ottla.world.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

KEY = SharePartitionKey("group", Uuid(b"\1" * 16), 0)


@dataclass
class StoredState:
    """The stored state of one share partition."""

    state_epoch: int = 0
    leader_epoch: int = -1
    start_offset: int = -1
    delivery_complete_count: int = -1
    records: dict[int, tuple[int, int]] = field(default_factory=dict)


class DictionaryStore:
    """Stores share state in memory; writes can be held back and refused."""

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, StoredState] = {}
        self.writes: list[tuple[int, int, list[StateBatch]]] = []
        self.holding = False
        self.refusal = ErrorCode.NONE
        self._held: list[Callable[[], None]] = []

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Pending[ErrorCode]:
        self.states[key] = StoredState(state_epoch, -1, start_offset)
        return completed_with(ErrorCode.NONE)

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Pending[ShareState]:
        acquired = self.states.get(key)
        if acquired is None:
            return completed_with(ShareState(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        if leader_epoch < acquired.leader_epoch:
            return completed_with(ShareState(ErrorCode.FENCED_LEADER_EPOCH))
        acquired.leader_epoch = leader_epoch
        batches: list[StateBatch] = []
        for offset, (state, count) in sorted(acquired.records.items()):
            last = batches[-1] if batches else None
            if last is not None and last[1:] == (offset - 1, state, count):
                batches[-1] = last._replace(last_offset=offset)
            else:
                batches.append(StateBatch(offset, offset, state, count))
        return completed_with(
            ShareState(
                ErrorCode.NONE,
                acquired.state_epoch,
                acquired.leader_epoch,
                acquired.start_offset,
                acquired.delivery_complete_count,
                batches,
            )
        )

    def write(
        self,
        key: SharePartitionKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Pending[ErrorCode]:
        pending: Pending[ErrorCode] = Pending()
        batches = list(batches)

        def do() -> None:
            pending.complete(
                self._write(key, state_epoch, leader_epoch, start_offset, delivery_complete_count, batches)
            )

        if self.holding:
            self._held.append(do)
        else:
            do()
        return pending

    def _write(
        self,
        key: SharePartitionKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: list[StateBatch],
    ) -> ErrorCode:
        acquired = self.states.get(key)
        if acquired is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if state_epoch != acquired.state_epoch:
            return ErrorCode.FENCED_STATE_EPOCH
        if leader_epoch < acquired.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if self.refusal is not ErrorCode.NONE:
            return self.refusal
        self.writes.append((start_offset, delivery_complete_count, batches))
        acquired.start_offset = max(start_offset, acquired.start_offset)
        acquired.delivery_complete_count = delivery_complete_count
        for batch in batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                acquired.records[offset] = (batch.delivery_state, batch.delivery_count)
        acquired.records = {
            offset: record for offset, record in acquired.records.items() if offset >= acquired.start_offset
        }
        return ErrorCode.NONE

    def let_go(self) -> None:
        """Run the held writes."""
        held, self._held = self._held, []
        for entry in held:
            entry()

    def summary(self, key: SharePartitionKey) -> Pending[ShareState]:
        return self.read(key, 2**31 - 1)

    def delete(self, key: SharePartitionKey) -> Pending[ErrorCode]:
        self.states.pop(key, None)
        return completed_with(ErrorCode.NONE)


class AbortedTransaction(NamedTuple):
    """An aborted transaction of the log."""

    producer_id: int
    first_offset: int
    last_offset: int


class Sharing:
    """A share partition with its log, store and clock."""

    def __init__(self, batches: Sequence[LogBatch] = (), *, start: int = 0, **settings: object) -> None:
        self.clock = VirtualClock()
        self.store = DictionaryStore()
        self.store.initialize(KEY, 0, start)
        self.batches = list(batches)
        self.settings = ShareSettings(**settings)  # type: ignore[arg-type]
        self.reset = 0
        self.leader_epoch = -1
        self.wakes = 0
        self.aborted: list[AbortedTransaction] = []
        self.lead()

    def lead(self) -> SharePartition:
        """Replace the share partition by that of the next leader epoch."""
        self.leader_epoch += 1
        self.partition = SharePartition(
            KEY,
            self.leader_epoch,
            clock=self.clock,
            store=self.store,
            settings=lambda: self.settings,
            reset_offset=lambda: self.reset,
            on_change=self._woken,
        )
        self.partition.initialize()
        return self.partition

    def _woken(self, _: SharePartition) -> None:
        self.wakes += 1

    def fetch(
        self, member: str, max_records: int = 500, *, batch_size: int = 500, mode: int = BATCH_OPTIMIZED
    ) -> list[Acquired]:
        """Acquire records for a member from the whole log."""
        partition = self.partition
        if not partition.can_acquire:
            return []
        offset = partition.next_fetch_offset
        if self.batches and offset < self.batches[0].base_offset:
            partition.log_start_offset_changed(self.batches[0].base_offset)
            offset = partition.next_fetch_offset
        acquired = [batch for batch in self.batches if batch.last_offset >= offset]
        return acquire(
            partition,
            member,
            acquired,
            fetch_offset=offset,
            max_records=max_records,
            batch_size=batch_size,
            mode=mode,
            aborted=self.aborted if self.settings.read_committed else (),
        )


def log_of(*sizes: int, start: int = 0) -> list[LogBatch]:
    """Return consecutive batches of the given sizes."""
    batches = []
    for size in sizes:
        batches.append(LogBatch(start, start + size - 1))
        start += size
    return batches
