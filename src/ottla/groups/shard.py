"""One partition of `__consumer_offsets`: its groups and offsets, their timers, and how operations become records.

Kafka's GroupCoordinatorShard in its CoordinatorRuntime. Requests are decoded and routed by the coordinator.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

from ottla.groups import replay
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.group_events import NO_GROUP_EVENTS
from ottla.groups.offsets.store import Offsets
from ottla.groups.outcome import Outcome, client_error
from ottla.groups.share.group import ShareGroup
from ottla.groups.streams.group import StreamsGroup
from ottla.groups.timers import Timers
from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode, KafkaError
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


class Shard:
    """The groups and offsets of one partition, while this node leads it (Kafka's GroupCoordinatorShard)."""

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
        events: GroupEvents = NO_GROUP_EVENTS,
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
        """Return a group; raise GROUP_ID_NOT_FOUND if it does not exist."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def classic_group(self, group_id: str) -> ClassicGroup:
        """Return a classic group; raise GROUP_ID_NOT_FOUND if it does not exist or is of another type."""
        group = self.group(group_id)
        if isinstance(group, ClassicGroup):
            return group
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """Return a consumer group; raise GROUP_ID_NOT_FOUND if it does not exist or is of another type."""
        group = self.group(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")

    def share_group(self, group_id: str) -> ShareGroup:
        """Return a share group; raise GROUP_ID_NOT_FOUND if it does not exist or is of another type."""
        group = self.group(group_id)
        if isinstance(group, ShareGroup):
            return group
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")

    def streams_group(self, group_id: str) -> StreamsGroup:
        """Return a streams group; raise GROUP_ID_NOT_FOUND if it does not exist or is of another type."""
        group = self.group(group_id)
        if isinstance(group, StreamsGroup):
            return group
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")

    def empty_classic_group(self, group_id: str) -> ClassicGroup | None:
        """Return the classic group without members that a group of another type may replace; None if there is none."""
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) and group.is_empty else None

    def may_create_group(self, group_id: str) -> bool:
        """Return whether a replayed record may create a group: none exists, or a simple one that only has offsets.

        In a compacted log the offsets of a group may precede the records of the group itself.
        """
        group = self.groups.get(group_id)
        return group is None or (isinstance(group, ClassicGroup) and group.is_simple)

    def new_classic_group(self, group_id: str) -> ClassicGroup:
        """Create an empty classic group: soft state until a record names it."""
        group = ClassicGroup(group_id, self.clock.now_ms())
        self.groups[group_id] = group
        return group

    def index_topics(self, group_id: str, before: Iterable[str], after: Iterable[str]) -> None:
        """Update the index of the groups that subscribe to a topic."""
        for topic in before:
            subscribers = self.groups_by_topic.get(topic, {})
            subscribers.pop(group_id, None)
            if not subscribers:
                self.groups_by_topic.pop(topic, None)
        for topic in after:
            self.groups_by_topic.setdefault(topic, {})[group_id] = None

    # Operations

    def run(
        self,
        operation: Callable[[], Outcome[R]],
        on_error: Callable[[ErrorCode, str | None], R],
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
    ) -> R | Pending[R]:
        """Run an operation, append its records, and return its response once all appended records are durable."""
        try:
            outcome = operation()
        except KafkaError as error:
            return self.respond(on_error(*client_error(error)), on_error)
        if outcome.on_error is not None:
            on_error = outcome.on_error
        try:
            self._write(outcome, producer_id, producer_epoch)
        except KafkaError as error:
            return self.respond(on_error(*client_error(error)), on_error)
        response = outcome.response
        if isinstance(response, Pending):
            return self._respond_later(response, on_error)
        return self.respond(response, on_error)

    def respond(self, response: R, on_error: Callable[[ErrorCode, str | None], R]) -> R | Pending[R]:
        """Return a response once all records appended so far are durable; an error response if they cannot be."""
        if self._durable == self._appended:
            if self._failure is not ErrorCode.NONE:
                return on_error(*client_error(KafkaError(self._failure)))
            return response
        pending: Pending[R] = Pending(effect_applied=True)

        def release(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                pending.complete(response)
            else:
                pending.complete(on_error(*client_error(KafkaError(code))))

        self._waiting.append((self._appended, release))
        return pending

    def _respond_later(self, promised: Pending[R], on_error: Callable[[ErrorCode, str | None], R]) -> R | Pending[R]:
        """Return a promised response when it is known and all records appended until then are durable.

        If the records of the operation itself cannot become durable, the response is an error at that moment.
        """
        held: Pending[R] = Pending(promised.cancel, effect_applied=promised.effect_applied)

        def fail(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE and not held.settled:
                held.complete(on_error(*client_error(KafkaError(code))))

        def promise_kept(response: R) -> None:
            def release(code: ErrorCode) -> None:
                if code is ErrorCode.NONE and not held.settled:
                    held.complete(response)
                else:
                    fail(code)

            self._when_durable(release)

        promised.on_complete(promise_kept)
        if not held.done:
            self._when_durable(fail)
        return held.response if held.done else held

    def execute(self, name: Hashable, operation: Callable[[], Outcome[None]]) -> bool:
        """Run an operation that no client waits for; log a warning and return False if it failed."""
        try:
            self._write(operation(), NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        except KafkaError as error:
            log.warning("partition %d: %r failed: %s", self.partition, name, error)
            return False
        return True

    def after(
        self, name: Hashable, delay_ms: int, operation: Callable[[], Outcome[None]], *, retry: bool = False
    ) -> None:
        """Schedule an operation under a name, replacing the timer of that name."""
        self.timers.schedule(name, delay_ms, lambda: self._run_timer(name, operation, retry=retry))

    def after_if_absent(
        self, name: Hashable, delay_ms: int, operation: Callable[[], Outcome[None]], *, retry: bool = False
    ) -> None:
        """Schedule an operation unless a timer of that name is set."""
        self.timers.schedule_if_absent(name, delay_ms, lambda: self._run_timer(name, operation, retry=retry))

    def soon(self, name: Hashable, operation: Callable[[], Outcome[None]]) -> None:
        """Schedule an operation for the next turn of the event loop."""
        self.after(name, 0, operation)

    def _run_timer(self, name: Hashable, operation: Callable[[], Outcome[None]], *, retry: bool) -> None:
        if not self.loaded:
            self.after(name, RETRY_MS, operation, retry=retry)  # loading takes long: nothing may be written before
        elif not self.execute(name, operation) and retry:
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
            self._when_durable(outcome.on_durable)

    def _when_durable(self, callback: Callable[[ErrorCode], None]) -> None:
        """Call back when all records appended so far are durable, with NONE or the error that prevented it."""
        if self._durable == self._appended:
            callback(self._failure)
        else:
            self._waiting.append((self._appended, callback))

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
            touched = self.events.writing(self.groups, records, producer_id, producer_epoch)
            before = self.events.states(touched)
            for position, record in enumerate(records):
                replay.replay(self, record, base_offset + position, producer_id)
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

    def unload(self) -> None:
        """Cancel all timers and fail every waiting request with NOT_COORDINATOR: another node leads the partition."""
        self.closed = True
        self.timers.cancel_all()
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                group.unload(self.clock.now_ms())
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
