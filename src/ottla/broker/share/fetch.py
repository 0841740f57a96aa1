"""One share fetch: reads what its partitions have, acquires records for the member, and waits if there are too few.

Only bytes that the group may see count: for read_committed those below the last stable offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k78_share_fetch import AcquiredRecords, PartitionData
from ottla.shares.acquire import LogBatch, acquire
from ottla.shares.environment import SharePartitionKey
from ottla.shares.partition import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.broker.partition import Partition
    from ottla.broker.share.partitions import SharePartitions
    from ottla.records.batch import BatchHeader
    from ottla.shares.partition import SharePartition
    from ottla.shares.sessions import Place, SessionKey
    from ottla.storage.log.slices import FileSlice, LogRead
    from ottla.world.clock import Clock, Timer


class ShareFetchLimits(NamedTuple):
    """How much a member wants, and how long it waits for it."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    mode: int


class _Reading(NamedTuple):
    """What one partition has to offer."""

    place: Place
    shared: SharePartition
    partition: Partition
    offset: int
    found: LogRead | None


Answers = dict["Place", PartitionData]


class ShareFetch:
    """A fetch for one member; `start` begins it."""

    def __init__(self, shares: SharePartitions, who: SessionKey, limits: ShareFetchLimits, clock: Clock) -> None:
        self._shares = shares
        self._who = who
        self._limits = limits
        self._clock = clock
        self._read_committed = shares.settings(who.group_id).read_committed
        self._places: Sequence[Place] = ()
        self._shared: dict[Place, SharePartition] = {}
        self._errors: dict[Place, KafkaError] = {}
        self._unreadable = False
        self._watched: list[Partition] = []
        self._timer: Timer | None = None
        self._answer: Pending[Answers] = Pending(self._stop_waiting)

    def start(self, places: Sequence[Place]) -> Pending[Answers]:
        """Fetch from these partitions; the answer says nothing of those that have nothing to say."""
        limits = self._limits
        if not places or limits.max_records == 0 or limits.max_bytes == 0:
            self._answer.complete({})
            return self._answer
        self._places = places
        for place in places:
            try:
                self._shared[place] = self._shares.obtain(self._who.group_id, place)
            except KafkaError as error:
                self._errors[place] = error
        answers = self._attempt(at_last=limits.max_wait_ms <= 0)
        if answers is not None:
            self._answer.complete(answers)
        else:
            self._wait()
        return self._answer

    # Waiting.

    def _wait(self) -> None:
        self._timer = self._clock.call_later(self._limits.max_wait_ms / 1000, self.force_complete)
        for place in self._shared:
            self._shares.waits.setdefault(SharePartitionKey(self._who.group_id, *place), {})[self._look_again] = None
            try:
                partition = self._shares.led(place)
            except KafkaError:
                continue
            partition.delayed[self] = None
            self._watched.append(partition)

    def try_complete(self, _: Partition) -> None:
        """A partition has more, or lost some."""
        self._look_again()

    def _look_again(self) -> None:
        if self._timer is not None:
            answers = self._attempt(at_last=False)
            if answers is not None:
                self._stop_waiting()
                self._answer.complete(answers)

    def force_complete(self) -> None:
        """Answer now with whatever there is."""
        if self._timer is not None:
            self._stop_waiting()
            answers = self._attempt(at_last=True)
            self._answer.complete(answers if answers is not None else {})

    def _stop_waiting(self) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        for partition in self._watched:
            partition.delayed.pop(self, None)
        for place in self._shared:
            key = SharePartitionKey(self._who.group_id, *place)
            waits = self._shares.waits.get(key)
            if waits is not None:
                waits.pop(self._look_again, None)
                if not waits:
                    del self._shares.waits[key]

    # Trying.

    def _attempt(self, *, at_last: bool) -> Answers | None:
        """Acquire what is worth an answer; None if that is too little and there is time to wait."""
        ready = self._ready()
        if not ready:
            return self._with_errors({}) if at_last or len(self._errors) == len(self._places) else None
        readings = self._read(ready)
        if not at_last and not self._enough(readings):
            for reading in readings:
                _let_go(reading.found)
            return None
        answers: Answers = {}
        left = self._limits.max_records
        for reading in readings:
            data, acquired = self._acquire(reading, left)
            answers[reading.place] = data
            left -= acquired
        return self._with_errors(answers)

    def _ready(self) -> list[tuple[Place, SharePartition, Partition]]:
        """The partitions from which something could be acquired."""
        ready = []
        for place, shared in self._shared.items():
            if place in self._errors:
                continue
            try:
                if shared.phase is Phase.FAILED:
                    assert shared.failure is not None
                    raise shared.failure
                if shared.can_acquire:
                    ready.append((place, shared, self._shares.led(place)))
            except KafkaError as error:
                self._errors[place] = error
                if self._shares.get(self._who.group_id, place) is shared:
                    self._shares.drop([shared.key])
        return ready

    def _read(self, ready: Sequence[tuple[Place, SharePartition, Partition]]) -> list[_Reading]:
        most = self._limits.max_bytes // len(ready)
        readings: list[_Reading] = []
        total = 0
        for place, shared, partition in ready:
            offset = shared.next_fetch_offset
            found: LogRead | None = None
            try:
                found = partition.log.read(
                    offset,
                    most,
                    partition.readable_end(self._read_committed),
                    min_one_batch=total == 0,
                    aborted=self._read_committed,
                )
                total += len(found)
            except KafkaError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._errors[place] = error
                    self._unreadable = True
                    continue
            readings.append(_Reading(place, shared, partition, offset, found))
        return readings

    def _enough(self, readings: Sequence[_Reading]) -> bool:
        """Whether what was read is worth an answer: an error is, and so is the end of a segment."""
        if self._unreadable or any(reading.found is None for reading in readings):
            return True
        total = 0
        for reading in readings:
            assert reading.found is not None
            if (
                len(reading.found)
                and reading.found.segment_base_offset != reading.partition.log.segments[-1].base_offset
            ):
                return True
            total += len(reading.found)
        return total >= self._limits.min_bytes

    def _acquire(self, reading: _Reading, most: int) -> tuple[PartitionData, int]:
        """Acquire records of one partition: its part of the answer, and how many records they are."""
        data = PartitionData(partition_index=reading.place.partition, records=b"")
        found, shared = reading.found, reading.shared
        if found is None:
            # The log begins later by now, so the next fetch will, too; Kafka answers with just these words.
            shared.log_start_moved(reading.partition.log.log_start_offset)
            data.error_message = "NONE"
            return data, 0
        if found.records is None or most <= 0:
            _let_go(found)
            return data, 0
        headers = _headers(found.records, max(shared.end_offset, reading.offset) + most)
        acquired = acquire(
            shared,
            self._who.member_id,
            [
                LogBatch(each.base_offset, each.last_offset, each.producer_id, each.is_transactional, each.is_control)
                for each in headers
            ],
            fetch_offset=reading.offset,
            max_records=most,
            batch_size=self._limits.batch_size,
            mode=self._limits.mode,
            aborted=found.aborted or (),
        )
        if not acquired:
            _let_go(found)
            return data, 0
        _cut(found.records, headers, acquired[0].first, acquired[-1].last)
        data.records = found.records
        data.acquired_records = [
            AcquiredRecords(first_offset=each.first, last_offset=each.last, delivery_count=each.delivery_count)
            for each in acquired
        ]
        return data, sum(each.last - each.first + 1 for each in acquired)

    def _with_errors(self, answers: Answers) -> Answers:
        for place, error in self._errors.items():
            answers[place] = error_data(place, error)
        return answers


def error_data(place: Place, error: KafkaError) -> PartitionData:
    """What an answer says of a partition that could not be fetched."""
    return PartitionData(
        partition_index=place.partition, error_code=error.code, error_message=error.message, records=b""
    )


def rotated(places: Sequence[Place], epoch: int) -> Sequence[Place]:
    """The partitions of a session, beginning with another one each time, so that all get their turn."""
    if epoch < 1 or len(places) < 2:
        return places
    begin = epoch % len(places)
    return [*places[begin:], *places[:begin]]


def _headers(records: FileSlice, until: int) -> list[BatchHeader]:
    """The headers of the batches in a slice, as far as one that reaches an offset: nobody acquires more than that."""
    headers = []
    for header in records.batches():
        headers.append(header)
        if header.last_offset >= until:
            break
    return headers


def _cut(records: FileSlice, headers: Sequence[BatchHeader], first: int, last: int) -> None:
    """Let a slice hold only the batches that have an acquired offset at one of its ends or between."""
    begin = next((each for each in reversed(headers) if each.base_offset <= first), headers[0])
    end = next(each for each in reversed(headers) if each.base_offset <= last or each is begin)
    records.narrow(begin.position - records.position, end.end - begin.position)


def _let_go(found: LogRead | None) -> None:
    if found is not None and found.records is not None:
        found.records.release()


def let_go(answers: Mapping[Place, PartitionData]) -> None:
    """Nobody takes an answer: let go of what it holds."""
    for data in answers.values():
        if data.records:
            data.records.release()
