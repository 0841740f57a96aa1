"""The groups of one partition of `__consumer_offsets`: their state, their timers, and how a change becomes records.

An operation decides and returns an `Outcome`; here its records are appended and only then replayed, and its answer is
held back until everything written before it is durable. A shard does not know what a request is.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from ottla.cluster.coordinator_errors import LOG_TROUBLE
from ottla.groups import replay
from ottla.groups.classic.group import ClassicGroup, ClassicState
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.offsets.store import Offsets
from ottla.groups.share.group import ShareGroup
from ottla.groups.streams.group import StreamsGroup
from ottla.groups.timers import Timers
from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k11_join_group import JoinGroupResponse
from ottla.protocol.messages.k14_sync_group import SyncGroupResponse
from ottla.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from ottla.records.builder import BatchBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from ottla.groups.environment import GroupLog, Settings, Topics
    from ottla.groups.group_events import GroupEvents
    from ottla.groups.records import GroupRecord
    from ottla.groups.subscriptions import TopicHashes
    from ottla.shares.environment import ShareStateStore
    from ottla.world.clock import Clock
    from ottla.world.random import Random

log = logging.getLogger(__name__)

R = TypeVar("R")
Group = ClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup

LARGEST_BATCH: Final = 1_000_000
RETRY_MS: Final = 500


@dataclass(slots=True)
class Outcome(Generic[R]):
    """What an operation wants: an answer, and records that make it true.

    `replay` is False where the state was changed already, which is so for the soft state of classic groups. A change
    that is not `atomic` may be written in several batches. `on_appended` is called when the records are in the log,
    `on_durable` when they are safe there, with NONE, or with the error that kept them out.
    """

    response: R
    records: Sequence[GroupRecord] = ()
    replay: bool = True
    atomic: bool = True
    on_appended: Callable[[], None] | None = None
    on_durable: Callable[[ErrorCode], None] | None = None


def nothing() -> Outcome[None]:
    """No answer and no records."""
    return Outcome(None)


class Shard:
    """The groups and offsets of one partition, while this node leads it."""

    def __init__(
        self,
        partition: int,
        *,
        clock: Clock,
        random: Random,
        log: GroupLog,
        topics: Topics,
        settings: Settings,
        topic_hashes: TopicHashes,
        share_states: ShareStateStore,
        events: GroupEvents | None = None,
    ) -> None:
        self.partition = partition
        self.events = events
        self.clock = clock
        self.random = random
        self.topics = topics
        self.settings = settings
        self.topic_hashes = topic_hashes
        self.share_states = share_states
        self.timers = Timers(clock)
        self.groups: dict[str, Group] = {}
        self.groups_by_topic: dict[str, dict[str, None]] = {}
        self.offsets = Offsets()
        self.newest_topic_version = topics.version
        self.loaded = False
        self.closed = False
        self._log = log
        self._appended = 0
        self._durable = 0
        self._failure = ErrorCode.NONE
        self._waiting: deque[tuple[int, Callable[[ErrorCode], None]]] = deque()

    # Groups

    def group(self, group_id: str) -> Group:
        """The group of that name; GROUP_ID_NOT_FOUND if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def classic_group(self, group_id: str) -> ClassicGroup:
        """The classic group of that name; GROUP_ID_NOT_FOUND if there is none or it is of another kind."""
        group = self.group(group_id)
        if isinstance(group, ClassicGroup):
            return group
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """The consumer group of that name; GROUP_ID_NOT_FOUND if there is none or it is of another kind."""
        group = self.group(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")

    def share_group(self, group_id: str) -> ShareGroup:
        """The share group of that name; GROUP_ID_NOT_FOUND if there is none or it is of another kind."""
        group = self.group(group_id)
        if isinstance(group, ShareGroup):
            return group
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")

    def streams_group(self, group_id: str) -> StreamsGroup:
        """The streams group of that name; GROUP_ID_NOT_FOUND if there is none or it is of another kind."""
        group = self.group(group_id)
        if isinstance(group, StreamsGroup):
            return group
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")

    def index_topics(self, group_id: str, before: Iterable[str], after: Iterable[str]) -> None:
        """Keep the index of who reads which topic."""
        for topic in before:
            readers = self.groups_by_topic.get(topic, {})
            readers.pop(group_id, None)
            if not readers:
                self.groups_by_topic.pop(topic, None)
        for topic in after:
            self.groups_by_topic.setdefault(topic, {})[group_id] = None

    def new_classic_group(self, group_id: str) -> ClassicGroup:
        """Make an empty classic group; it is soft until a record names it."""
        group = ClassicGroup(group_id, self.clock.now_ms())
        self.groups[group_id] = group
        return group

    # Operations

    def run(
        self,
        operation: Callable[[], Outcome[R]],
        on_error: Callable[[ErrorCode, str | None], R],
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
    ) -> R | Pending[R]:
        """Do an operation and answer it, once all that was written so far is durable."""
        try:
            outcome = operation()
            self._write(outcome, producer_id, producer_epoch)
        except KafkaError as error:
            return self.answer(on_error(*answered_error(error)), on_error)
        return self.answer(outcome.response, on_error)

    def answer(self, response: R, on_error: Callable[[ErrorCode, str | None], R]) -> R | Pending[R]:
        """An answer that must not be seen before what was written so far is durable."""
        if self._durable == self._appended:
            if self._failure is not ErrorCode.NONE:
                return on_error(*answered_error(KafkaError(self._failure)))
            return response
        pending: Pending[R] = Pending(effect_applied=True)

        def release(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                pending.complete(response)
            else:
                pending.complete(on_error(*answered_error(KafkaError(code))))

        self._waiting.append((self._appended, release))
        return pending

    def after(
        self, name: Hashable, delay_ms: int, operation: Callable[[], Outcome[None]], *, retry: bool = False
    ) -> None:
        """Do an operation later, in place of what that name was set to."""
        self.timers.schedule(name, delay_ms, lambda: self._run_timer(name, operation, retry=retry))

    def after_if_absent(
        self, name: Hashable, delay_ms: int, operation: Callable[[], Outcome[None]], *, retry: bool = False
    ) -> None:
        """Do an operation later unless that name is set already."""
        self.timers.schedule_if_absent(name, delay_ms, lambda: self._run_timer(name, operation, retry=retry))

    def soon(self, name: Hashable, operation: Callable[[], Outcome[None]]) -> None:
        """Do an operation on the next turn."""
        self.after(name, 0, operation)

    def _run_timer(self, name: Hashable, operation: Callable[[], Outcome[None]], *, retry: bool) -> None:
        try:
            self._write(operation(), NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        except KafkaError as error:
            log.warning("partition %d: %r failed: %s", self.partition, name, error)
            if retry:
                self.after(name, RETRY_MS, operation, retry=True)

    # Writing

    def _write(self, outcome: Outcome[R], producer_id: int, producer_epoch: int) -> None:
        try:
            for records in _batches(outcome):
                self._append(records, producer_id, producer_epoch, replayed=outcome.replay)
        except KafkaError as error:
            if outcome.on_durable is not None:
                outcome.on_durable(error.code)
            raise
        if outcome.on_appended is not None:
            outcome.on_appended()
        if outcome.on_durable is not None:
            if self._durable == self._appended:
                outcome.on_durable(self._failure)
            else:
                self._waiting.append((self._appended, outcome.on_durable))

    def _append(self, records: Sequence[GroupRecord], producer_id: int, producer_epoch: int, *, replayed: bool) -> None:
        builder = BatchBuilder(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=producer_id != NO_PRODUCER_ID,
            compression=self.settings.coordinator().offsets_topic_compression,
        )
        now = self.clock.now_ms()
        for record in records:
            key, value = record.encode()
            builder.append(key, value, timestamp=now)
        base_offset, durable = self._log.append(self.partition, builder.build())
        if replayed:
            before = None
            if self.events is not None:
                touched = self.events.writing(self.groups, records, producer_id, producer_epoch)
                before = self.events.states(touched)
            for position, record in enumerate(records):
                replay.replay(self, record, base_offset + position, producer_id)
            if self.events is not None and before is not None:
                self.events.written(self.groups, records, before)
        self._appended += 1
        if durable is None:
            self._settle(self._appended, ErrorCode.NONE)
        else:
            sequence = self._appended
            durable.on_complete(lambda code: self._settle(sequence, code))

    def _settle(self, sequence: int, code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            self._failure = code
        self._durable = max(self._durable, sequence)
        while self._waiting and self._waiting[0][0] <= self._durable:
            self._waiting.popleft()[1](self._failure)

    # The beginning and the end

    def unload(self) -> None:
        """Another node leads now: whoever waits here has to ask there."""
        self.closed = True
        self.timers.cancel_all()
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                _abandon(group, self.clock.now_ms())
                if self.events is not None:
                    self.events.moved(group)
        self._failure = ErrorCode.NOT_COORDINATOR
        self._durable = self._appended
        while self._waiting:
            self._waiting.popleft()[1](ErrorCode.NOT_COORDINATOR)


def _batches(outcome: Outcome[R]) -> list[Sequence[GroupRecord]]:
    if not outcome.records:
        return []
    if outcome.atomic:
        return [outcome.records]
    batches: list[Sequence[GroupRecord]] = []
    batch: list[GroupRecord] = []
    size = 0
    for record in outcome.records:
        key, value = record.encode()
        size += len(key) + len(value or b"") + 32
        if batch and size > LARGEST_BATCH:
            batches.append(batch)
            batch, size = [], 0
        batch.append(record)
    batches.append(batch)
    return batches


def _abandon(group: ClassicGroup, now_ms: int) -> None:
    group.transition_to(ClassicState.DEAD, now_ms)
    for member in list(group.members.values()):
        if group.previous_state is ClassicState.PREPARING_REBALANCE:
            group.complete_join(
                member, JoinGroupResponse(member_id=member.member_id, error_code=ErrorCode.NOT_COORDINATOR)
            )
        else:
            group.complete_sync(member, SyncGroupResponse(error_code=ErrorCode.NOT_COORDINATOR))


_ANSWERED: Final = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    **LOG_TROUBLE,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def answered_error(error: KafkaError) -> tuple[ErrorCode, str | None]:
    """The error that a client is told: troubles of the log are, to a client, troubles of the coordinator."""
    code = _ANSWERED.get(error.code)
    return (error.code, error.message) if code is None else (code, None)


def stored_error(code: ErrorCode) -> ErrorCode:
    """The same for an error that comes as a code."""
    return _ANSWERED.get(code, code)
