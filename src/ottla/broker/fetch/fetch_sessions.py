"""Fetch sessions (KIP-227): the partitions that a client fetches, cached, so that requests and responses carry changes.

One bounded cache per node, Kafka's FetchSessionCache. Reading the logs is the handler's part.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from ottla.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
    from ottla.protocol.schema import Uuid
    from ottla.world.clock import Clock
    from ottla.world.random import Random

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
LARGEST_EPOCH = 2**31 - 1
LARGEST_ID = 2**31 - 1

READ_TOGETHER = 100
"""Partitions of a large request between two steps, of about a microsecond each."""

PartitionKey = tuple["Uuid | str", int]


@dataclass(slots=True)
class FetchedPartition:
    """One partition of a session, and the offsets that the last response had for it."""

    topic: str
    topic_id: Uuid
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int
    sent_high_watermark: int = -1
    sent_log_start_offset: int = -1


@dataclass(slots=True)
class FetchSession:
    """The cached partitions of one client, in the order in which they are served next."""

    id: int
    by_id: bool
    epoch: int
    created: float
    last_used: float
    partitions: OrderedDict[PartitionKey, FetchedPartition] = field(default_factory=OrderedDict)


class FetchContext:
    """One fetch request with all partitions of its session, and the rules for its response; Kafka's FetchContext."""

    __slots__ = ("_incremental", "partitions", "session")

    def __init__(self, partitions: list[FetchedPartition], session: FetchSession | None, incremental: bool) -> None:
        self.partitions = partitions
        self.session = session
        self._incremental = incremental

    @property
    def session_id(self) -> int:
        """Return the session id for the response."""
        return self.session.id if self.session is not None else NO_SESSION

    def included(
        self, response: Iterable[tuple[FetchedPartition, PartitionData]]
    ) -> Iterator[tuple[FetchedPartition, PartitionData]]:
        """Yield the partitions that the response has: all of them, or in an incremental fetch those that changed.

        A partition with records moves to the end of the session, so that every partition gets its turn.
        """
        session = self.session
        if session is None:
            yield from response
            return
        for partition, data in response:
            news = (
                bool(data.records)
                or data.error_code != 0
                or data.high_watermark != partition.sent_high_watermark
                or data.log_start_offset != partition.sent_log_start_offset
                or data.preferred_read_replica != -1
                or data.diverging_epoch.end_offset >= 0
            )
            if news:
                partition.sent_high_watermark = data.high_watermark
                partition.sent_log_start_offset = data.log_start_offset
                if data.error_code != 0:
                    partition.sent_high_watermark = -1
            if self._incremental and data.records:
                key = _key(session.by_id, partition)
                if key in session.partitions:
                    session.partitions.move_to_end(key)
            if news or not self._incremental:
                yield partition, data


class FetchSessions:
    """The fetch sessions of one node."""

    def __init__(self, clock: Clock, random: Random, slots: int = 1000, eviction_seconds: float = 120.0) -> None:
        self._clock = clock
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self.slots = slots
        self.eviction_seconds = eviction_seconds
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FetchSession]:
        return iter(list(self._sessions.values()))

    def partitions_of(self, session_id: int) -> list[FetchedPartition]:
        """Return the partitions of a session; none if the session does not exist."""
        session = self._sessions.get(session_id)
        return [] if session is None else list(session.partitions.values())

    def context(self, request: FetchRequest, version: int) -> FetchContext:
        """Return the context of a request by the four rows of KIP-227's table; raise the session's errors."""
        by_id = version >= 13
        requested: OrderedDict[PartitionKey, FetchedPartition] = OrderedDict()
        for topic in request.topics:
            _add_requested(requested, topic, topic.partitions, by_id)
        return self._context(request, by_id, requested)

    def context_in_pieces(self, request: FetchRequest, version: int) -> Generator[int, None, FetchContext]:
        """Return the context of a request as `context` does; yield the units of work done."""
        by_id = version >= 13
        requested: OrderedDict[PartitionKey, FetchedPartition] = OrderedDict()
        for topic in request.topics:
            for start in range(0, len(topic.partitions), READ_TOGETHER):
                _add_requested(requested, topic, topic.partitions[start : start + READ_TOGETHER], by_id)
                yield READ_TOGETHER
        return self._context(request, by_id, requested)

    def _context(
        self, request: FetchRequest, by_id: bool, requested: OrderedDict[PartitionKey, FetchedPartition]
    ) -> FetchContext:
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                self._sessions.pop(request.session_id, None)
            session = None
            if epoch == INITIAL_EPOCH:
                session = self._create(by_id, requested)
            return FetchContext(list(requested.values()), session, incremental=False)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        self._update(session, request, requested)
        if not session.partitions:
            del self._sessions[session.id]
            return FetchContext([], None, incremental=True)
        session.epoch = _next_epoch(epoch)
        session.last_used = self._clock.monotonic()
        self._sessions.move_to_end(session.id)
        return FetchContext(list(session.partitions.values()), session, incremental=True)

    def _create(self, by_id: bool, requested: OrderedDict[PartitionKey, FetchedPartition]) -> FetchSession | None:
        """Cache a new session, if there is space or an old one can be evicted."""
        now = self._clock.monotonic()
        if len(self._sessions) >= self.slots and not self._evict(len(requested), now):
            return None
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = 1 + self._random.below(LARGEST_ID)
        session = FetchSession(session_id, by_id, _next_epoch(INITIAL_EPOCH), now, now, OrderedDict(requested))
        self._sessions[session_id] = session
        return session

    def _evict(self, size: int, now: float) -> bool:
        """Evict a session: the least recently used if it is stale, else a smaller one that is old enough."""
        if self.slots <= 0:
            return False
        oldest = next(iter(self._sessions.values()))
        if now - oldest.last_used > self.eviction_seconds:
            victim = oldest
        else:
            settled = [s for s in self._sessions.values() if now - s.created > self.eviction_seconds]
            victim = min(settled, key=lambda s: (len(s.partitions), s.created), default=oldest)
            if not settled or len(victim.partitions) >= size:
                return False
        del self._sessions[victim.id]
        self.evictions += 1
        return True

    @staticmethod
    def _update(
        session: FetchSession, request: FetchRequest, requested: OrderedDict[PartitionKey, FetchedPartition]
    ) -> None:
        for key, requested_partition in requested.items():
            cached = session.partitions.get(key)
            if cached is None:
                session.partitions[key] = requested_partition
            else:
                cached.fetch_offset = requested_partition.fetch_offset
                cached.max_bytes = requested_partition.max_bytes
                cached.current_leader_epoch = requested_partition.current_leader_epoch
                cached.last_fetched_epoch = requested_partition.last_fetched_epoch
                cached.log_start_offset = requested_partition.log_start_offset
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                session.partitions.pop((topic.topic_id if session.by_id else topic.topic, partition), None)


def _add_requested(
    requested: OrderedDict[PartitionKey, FetchedPartition],
    topic: FetchTopic,
    partitions: Sequence[FetchPartition],
    by_id: bool,
) -> None:
    for p in partitions:
        partition = FetchedPartition(
            topic.topic,
            topic.topic_id,
            p.partition,
            p.fetch_offset,
            p.partition_max_bytes,
            p.current_leader_epoch,
            p.last_fetched_epoch,
            p.log_start_offset,
        )
        requested[_key(by_id, partition)] = partition


def _key(by_id: bool, partition: FetchedPartition) -> PartitionKey:
    return (partition.topic_id if by_id else partition.topic, partition.partition)


def _next_epoch(epoch: int) -> int:
    return 1 if epoch == LARGEST_EPOCH else epoch + 1
