"""Invariants of a share partition under random fetches, acknowledgements, lock expiry, failed writes and new leaders.

No record is in two members' hands at once, nothing accepted is delivered again, no record is delivered more often than
the limit says, and in the end every record of the log is done with.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.shares.acquire import BATCH_OPTIMIZED, RECORD_LIMIT, LogBatch
from ottla.shares.in_flight import RecordState
from ottla.shares.partition import ACCEPT, REJECT, RELEASE, RENEW, Acknowledgement
from tests.shares.sharing import AbortedTransaction, Sharing

if TYPE_CHECKING:
    from ottla.pending import Pending
    from ottla.protocol.errors import KafkaError

MEMBERS = ("ann", "bob", "eve")
LOCK_SECONDS = 30.0
SEEDS = 40
STEPS = 250


class Play:
    """A random run and the expected state of its records."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.limit = self.random.choice((2, 3, 5))
        self.sharing = Sharing(
            delivery_count_limit=self.limit,
            max_record_locks=self.random.choice((40, 200)),
            record_lock_duration_ms=int(LOCK_SECONDS * 1000),
            read_committed=self.random.random() < 0.5,
        )
        self.end = 0
        self.log_start = 0
        self.held: dict[int, tuple[str, float]] = {}
        self.accepted: set[int] = set()
        self.deliveries: dict[int, int] = {}
        for _ in range(5):
            self.produce()

    def produce(self) -> None:
        """Append a batch; some belong to aborted transactions, some leave a gap as compaction does."""
        size = self.random.choice((1, 2, 7, 20))
        producer = 100 + self.end if self.random.random() < 0.2 else -1
        self.sharing.batches.append(LogBatch(self.end, self.end + size - 1, producer, is_transactional=producer >= 0))
        if producer >= 0:
            marker = self.end + size
            self.sharing.aborted.append(AbortedTransaction(producer, self.end, marker))
            self.sharing.batches.append(LogBatch(marker, marker, producer, is_transactional=True, is_control=True))
            size += 1
        self.end += size + (self.random.choice((0, 0, 0, 3)))

    def fetch(self) -> None:
        member = self.random.choice(MEMBERS)
        now = self.sharing.clock.monotonic()
        acquired = self.sharing.fetch(
            member,
            self.random.choice((1, 5, 50)),
            batch_size=self.random.choice((1, 10, 500)),
            mode=self.random.choice((BATCH_OPTIMIZED, RECORD_LIMIT)),
        )
        previous = -1
        for record in acquired:
            assert previous < record.first <= record.last
            previous = record.last
            assert 1 <= record.delivery_count <= self.limit
            for offset in range(record.first, record.last + 1):
                assert offset not in self.accepted, f"{offset} was accepted"
                holder = self.held.get(offset)
                assert holder is None or holder[1] <= now, f"{offset} is in the hands of {holder}"
                assert not self.is_aborted(offset), f"{offset} was aborted"
                self.held[offset] = (member, now + LOCK_SECONDS)

    def is_aborted(self, offset: int) -> bool:
        """Return whether an offset must never be delivered."""
        if not self.sharing.settings.read_committed:
            return False
        return any(batch.first_offset <= offset < batch.last_offset for batch in self.sharing.aborted)

    def acknowledge(self) -> None:
        now = self.sharing.clock.monotonic()
        member = self.random.choice(MEMBERS)
        mine = sorted(offset for offset, (who, until) in self.held.items() if who == member and until > now)
        if not mine:
            return
        first = self.random.choice(mine)
        last = first
        while last + 1 in mine and self.random.random() < 0.8:
            last += 1
        kinds = [self.random.choice((ACCEPT, ACCEPT, RELEASE, REJECT, RENEW))]
        if self.random.random() < 0.4:
            kinds = [self.random.choice((ACCEPT, RELEASE, REJECT)) for _ in range(first, last + 1)]
        response = self.sharing.partition.acknowledge(member, [Acknowledgement(first, last, kinds)])
        self.when_answered(response, member, first, last, kinds)

    def when_answered(
        self, response: Pending[KafkaError | None], member: str, first: int, last: int, kinds: list[int]
    ) -> None:
        """Track an acknowledgement; its records cannot be acquired until it completes."""
        partition, now = self.sharing.partition, self.sharing.clock.monotonic()

        def answered(error: KafkaError | None) -> None:
            if error is not None or partition is not self.sharing.partition:
                return
            for offset in range(first, last + 1):
                kind = kinds[offset - first] if len(kinds) > 1 else kinds[0]
                if kind == RENEW:
                    self.held[offset] = (member, now + LOCK_SECONDS)
                    continue
                self.held.pop(offset, None)
                if kind == ACCEPT and offset >= self.log_start:
                    self.accepted.add(offset)

        response.on_complete(answered)

    def leave(self) -> None:
        member = self.random.choice(MEMBERS)
        partition = self.sharing.partition
        response = partition.release(member)
        mine = [offset for offset, (who, _) in self.held.items() if who == member]

        def answered(error: KafkaError | None) -> None:
            if error is None and partition is self.sharing.partition:
                for offset in mine:
                    if offset in self.held and self.held[offset][0] == member:
                        del self.held[offset]

        response.on_complete(answered)

    def slow_store(self) -> None:
        store = self.sharing.store
        if store.holding:
            store.refusal = self.random.choice((ErrorCode.NONE, ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR))
            store.let_go()
            store.holding, store.refusal = False, ErrorCode.NONE
        else:
            store.holding = True

    def restart(self) -> None:
        """Change the leader; state that was not persisted is lost."""
        self.sharing.partition.fence()
        self.sharing.store.let_go()
        self.sharing.store.holding = False
        self.held.clear()
        self.sharing.lead()

    def trim(self) -> None:
        """Delete the first batch of the log."""
        if len(self.sharing.batches) > 3:
            del self.sharing.batches[0]
            self.log_start = self.sharing.batches[0].base_offset

    def check(self) -> None:
        partition = self.sharing.partition
        previous = -1
        for batch in partition.in_flight:
            assert previous < batch.first
            assert batch.runs[0].first == batch.first
            assert batch.runs[-1].last == batch.last
            for earlier, later in zip(batch.runs, batch.runs[1:], strict=False):
                assert earlier.last + 1 == later.first
            for run in batch.runs:
                assert (run.state is RecordState.ACQUIRED) == bool(run.member)
                assert run.lock is not None or run.state is not RecordState.ACQUIRED
            previous = batch.last

    def drain(self) -> None:
        """End all faults and consume everything."""
        sharing = self.sharing
        sharing.store.let_go()
        sharing.store.holding = False
        sharing.clock.advance(LOCK_SECONDS + 1)
        self.held.clear()
        for _ in range(2_000):
            if sharing.partition.next_fetch_offset > sharing.batches[-1].last_offset:
                break
            for name in sharing.fetch("ann"):
                assert not self.accepted & set(range(name.first, name.last + 1))
                response = sharing.partition.acknowledge("ann", [Acknowledgement(name.first, name.last, [ACCEPT])])
                assert response.response is None
                self.accepted.update(range(name.first, name.last + 1))
            self.check()
        sharing.clock.advance(LOCK_SECONDS + 1)
        assert sharing.fetch("ann") == []
        assert all(run.state.is_terminal for batch in sharing.partition.in_flight for run in batch.runs)
        assert sharing.partition.next_fetch_offset >= sharing.batches[-1].last_offset + 1


@pytest.mark.parametrize("seed", range(SEEDS))
def test_records_have_one_owner_and_end_in_terminal_state(seed: int) -> None:
    play = Play(seed)
    steps = (
        [play.fetch] * 6 + [play.acknowledge] * 8 + [play.produce] * 2 + [play.leave, play.slow_store, play.slow_store]
    )
    for _ in range(STEPS):
        step = play.random.random()
        if step < 0.01:
            play.restart()
        elif step < 0.02:
            play.trim()
        elif step < 0.1:
            play.sharing.clock.advance(play.random.choice((1.0, 10.0, 31.0)))
        else:
            play.random.choice(steps)()
        play.check()
    play.drain()
