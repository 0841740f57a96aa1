"""Members of a share group in virtual time, with lost clients and broker restarts.

The same must hold as for a share partition alone: no record in two hands, nothing accepted twice, nothing aborted seen.
"""

from __future__ import annotations

import random

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.shares.partition import ACCEPT, REJECT, RELEASE
from ottla.shares.sessions import TopicIdPartition
from tests.shares.share_broker import ShareBroker, acquired

SEEDS = 8
STEPS = 150
LOCK_SECONDS = 30.0
MEMBERS = ("ann", "bob", "eve")


class Play:
    """A random run and what its members acknowledged."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.talk = ShareBroker()
        self.talk.configure(share_isolation_level="read_committed", share_delivery_count_limit="3")
        self.epochs = dict.fromkeys(MEMBERS, 0)
        self.held: dict[int, tuple[str, float]] = {}
        self.over: set[int] = set()
        self.aborted: set[int] = set()
        self.producers = 0

    @property
    def now(self) -> float:
        return self.talk.world.clock.monotonic()

    @property
    def end(self) -> int:
        return self.talk.runtime.partitions["t", 0].log.log_end_offset

    def produce(self) -> None:
        begin, size = self.end, self.random.choice((1, 3, 10))
        if self.random.random() < 0.7:
            self.talk.write(*[b"x"] * size)
            return
        commit = self.random.random() < 0.5
        self.producers += 1
        self.talk.write(*[b"x"] * size, producer=self.producers, sequence=0)
        self.talk.end(self.producers, commit=commit)
        if not commit:
            self.aborted.update(range(begin, begin + size))

    def fetch(self) -> None:
        member = self.random.choice(MEMBERS)
        epoch = self.epochs[member]
        self.talk.connect_as(MEMBERS.index(member))
        response = self.talk.fetch(
            member,
            epoch,
            (0,) if epoch == 0 else (),
            max_records=self.random.choice((1, 7, 100)),
            mode=self.random.choice((0, 1)),
        )
        assert response.error_code == 0
        self.epochs[member] = epoch + 1
        for first, last, count in acquired(response).get(0, []):
            assert 1 <= count <= 3
            for offset in range(first, last + 1):
                assert offset not in self.over
                assert offset not in self.aborted
                assert self.held.get(offset, ("", 0.0))[1] <= self.now, f"{offset} is {self.held[offset]}'s"
                self.held[offset] = (member, self.now + LOCK_SECONDS)

    def acknowledge(self) -> None:
        member = self.random.choice(MEMBERS)
        mine = sorted(name for name, (who, until) in self.held.items() if who == member and until > self.now)
        if not mine:
            return
        first = last = self.random.choice(mine)
        while last + 1 in mine and self.random.random() < 0.7:
            last += 1
        kinds = [self.random.choice((ACCEPT, REJECT, RELEASE)) for _ in range(first, last + 1)]
        self.talk.connect_as(MEMBERS.index(member))
        assert self.talk.acknowledge(member, self.epochs[member], {0: [(first, last, kinds)]}) == [ErrorCode.NONE]
        self.epochs[member] += 1
        for offset, kind in enumerate(kinds, first):
            del self.held[offset]
            if kind != RELEASE:
                self.over.add(offset)

    def vanish(self) -> None:
        """Close a client's connection without a final request."""
        member = self.random.choice(MEMBERS)
        self.talk.node.share_partitions.disconnected(MEMBERS.index(member))
        self.epochs[member] = 0
        self.held = {name: holder for name, holder in self.held.items() if holder[0] != member}

    def restart(self) -> None:
        self.talk.restart()
        self.epochs = dict.fromkeys(MEMBERS, 0)
        self.held.clear()

    def wait(self) -> None:
        self.talk.world.clock.advance(self.random.choice((1.0, 10.0, 31.0)))

    def finish(self) -> None:
        """End all faults and consume everything."""
        self.talk.world.clock.advance(LOCK_SECONDS + 1)
        self.talk.connect_as(9)
        empty, epoch = 0, 0
        while empty < 3:
            result = acquired(self.talk.fetch("last", epoch, (0,) if epoch == 0 else (), wait_ms=10)).get(0, [])
            epoch += 1
            empty = 0 if result else empty + 1
            for first, last, _ in result:
                assert not (self.over | self.aborted) & set(range(first, last + 1))
                assert self.talk.acknowledge("last", epoch, {0: [(first, last, [ACCEPT])]}) == [ErrorCode.NONE]
                epoch += 1
                self.over.update(range(first, last + 1))
        shared = self.talk.node.share_partitions.get("g", TopicIdPartition(self.talk.topic_id, 0))
        assert shared is not None
        assert shared.start_offset == self.end


@pytest.mark.parametrize("seed", range(SEEDS))
def test_simulated_members_lose_and_duplicate_nothing(seed: int) -> None:
    play = Play(seed)
    for _ in range(3):
        play.produce()
    steps = [play.fetch] * 8 + [play.acknowledge] * 10 + [play.produce] * 3 + [play.vanish, play.wait]
    for _ in range(STEPS):
        (play.restart if play.random.random() < 0.02 else play.random.choice(steps))()
    play.finish()
    play.talk.close()
