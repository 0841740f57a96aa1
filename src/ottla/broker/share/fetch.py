"""A ShareFetch: reads the partitions, acquires records, and waits if there are too few (Kafka's DelayedShareFetch).

With share.isolation.level=read_committed only records below the last stable offset are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k78_share_fetch import AcquiredRecords, PartitionData
from ottla.shares.acquire import LogBatch, acquire
from ottla.shares.environment import SharePartitionKey
from ottla.shares.partition import SharePartitionState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.broker.partition import Partition
    from ottla.broker.share.partitions import SharePartitions
    from ottla.records.batch import BatchHeader
    from ottla.shares.partition import SharePartition
    from ottla.shares.sessions import SessionKey, TopicIdPartition
    from ottla.storage.log.slices import FileSlice, LogRead
    from ottla.world.clock import Clock, Timer


class ShareFetchLimits(NamedTuple):
    """The limits of a ShareFetch request."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    mode: int


class _PartitionRead(NamedTuple):
    """The result of reading one partition; `read` is None if its offset is out of range."""

    topic_partition: TopicIdPartition
    shared: SharePartition
    partition: Partition
    offset: int
    read: LogRead | None


ShareFetchData = dict["TopicIdPartition", PartitionData]


class ShareFetch:
    """The fetch of one member (Kafka's DelayedShareFetch); `start` runs it."""

    def __init__(
        self, shares: SharePartitions, session_key: SessionKey, limits: ShareFetchLimits, clock: Clock
    ) -> None:
        self._shares = shares
        self._session_key = session_key
        self._limits = limits
        self._clock = clock
        self._read_committed = shares.settings(session_key.group_id).read_committed
        self._topic_partitions: Sequence[TopicIdPartition] = ()
        self._shared: dict[TopicIdPartition, SharePartition] = {}
        self._errors: dict[TopicIdPartition, KafkaError] = {}
        self._unreadable = False
        self._watched: list[Partition] = []
        self._timer: Timer | None = None
        self._response: Pending[ShareFetchData] = Pending(self._stop_waiting)

    def start(self, topic_partitions: Sequence[TopicIdPartition]) -> Pending[ShareFetchData]:
        """Fetch from partitions; complete with the data of those that have records or an error."""
        limits = self._limits
        if not topic_partitions or limits.max_records == 0 or limits.max_bytes == 0:
            self._response.complete({})
            return self._response
        self._topic_partitions = topic_partitions
        for topic_partition in topic_partitions:
            try:
                self._shared[topic_partition] = self._shares.obtain(self._session_key.group_id, topic_partition)
            except KafkaError as error:
                self._errors[topic_partition] = error
        data_by_partition = self._attempt(timed_out=limits.max_wait_ms <= 0)
        if data_by_partition is not None:
            self._response.complete(data_by_partition)
        else:
            self._wait()
        return self._response

    # Waiting

    def _wait(self) -> None:
        self._timer = self._clock.call_later(self._limits.max_wait_ms / 1000, self.force_complete)
        for topic_partition in self._shared:
            self._shares.waiting_fetches.setdefault(
                SharePartitionKey(self._session_key.group_id, *topic_partition), {}
            )[self._retry] = None
            try:
                partition = self._shares.leader_partition(topic_partition)
            except KafkaError:
                continue
            partition.delayed[self] = None
            self._watched.append(partition)

    def try_complete(self, _: Partition) -> None:
        """Retry because a partition's log changed."""
        self._retry()

    def _retry(self) -> None:
        if self._timer is not None:
            data_by_partition = self._attempt(timed_out=False)
            if data_by_partition is not None:
                self._stop_waiting()
                self._response.complete(data_by_partition)

    def force_complete(self) -> None:
        """Complete with what can be acquired now."""
        if self._timer is not None:
            self._stop_waiting()
            data_by_partition = self._attempt(timed_out=True)
            self._response.complete(data_by_partition if data_by_partition is not None else {})

    def _stop_waiting(self) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        for partition in self._watched:
            partition.delayed.pop(self, None)
        for topic_partition in self._shared:
            key = SharePartitionKey(self._session_key.group_id, *topic_partition)
            callbacks = self._shares.waiting_fetches.get(key)
            if callbacks is not None:
                callbacks.pop(self._retry, None)
                if not callbacks:
                    del self._shares.waiting_fetches[key]

    # Reading and acquiring

    def _attempt(self, *, timed_out: bool) -> ShareFetchData | None:
        """Acquire records; return None if there is less than min_bytes and time to wait."""
        ready = self._ready()
        if not ready:
            return self._with_errors({}) if timed_out or len(self._errors) == len(self._topic_partitions) else None
        reads = self._read(ready)
        if not timed_out and not self._enough(reads):
            for partition_read in reads:
                _release_read(partition_read.read)
            return None
        data_by_partition: ShareFetchData = {}
        max_records_left = self._limits.max_records
        for partition_read in reads:
            data, acquired = self._acquire(partition_read, max_records_left)
            data_by_partition[partition_read.topic_partition] = data
            max_records_left -= acquired
        return self._with_errors(data_by_partition)

    def _ready(self) -> list[tuple[TopicIdPartition, SharePartition, Partition]]:
        """Return the partitions with acquirable records; note the errors of failed ones."""
        ready = []
        for topic_partition, shared in self._shared.items():
            if topic_partition in self._errors:
                continue
            try:
                if shared.partition_state is SharePartitionState.FAILED:
                    assert shared.failure is not None
                    raise shared.failure
                if shared.can_acquire:
                    ready.append((topic_partition, shared, self._shares.leader_partition(topic_partition)))
            except KafkaError as error:
                self._errors[topic_partition] = error
                if self._shares.get(self._session_key.group_id, topic_partition) is shared:
                    self._shares.drop([shared.key])
        return ready

    def _read(self, ready: Sequence[tuple[TopicIdPartition, SharePartition, Partition]]) -> list[_PartitionRead]:
        max_bytes = self._limits.max_bytes // len(ready)
        reads: list[_PartitionRead] = []
        total = 0
        for topic_partition, shared, partition in ready:
            offset = shared.next_fetch_offset
            read: LogRead | None = None
            try:
                read = partition.log.read(
                    offset,
                    max_bytes,
                    partition.readable_end(self._read_committed),
                    min_one_batch=total == 0,
                    aborted=self._read_committed,
                )
                total += len(read)
            except KafkaError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._errors[topic_partition] = error
                    self._unreadable = True
                    continue
            reads.append(_PartitionRead(topic_partition, shared, partition, offset, read))
        return reads

    def _enough(self, reads: Sequence[_PartitionRead]) -> bool:
        """Return whether to respond now: min_bytes were read, or there is an error or the end of a segment."""
        if self._unreadable or any(partition_read.read is None for partition_read in reads):
            return True
        total = 0
        for partition_read in reads:
            assert partition_read.read is not None
            if (
                len(partition_read.read)
                and partition_read.read.segment_base_offset != partition_read.partition.log.segments[-1].base_offset
            ):
                return True
            total += len(partition_read.read)
        return total >= self._limits.min_bytes

    def _acquire(self, partition_read: _PartitionRead, max_records: int) -> tuple[PartitionData, int]:
        """Acquire records of one partition; return its response data and the number of records."""
        data = PartitionData(partition_index=partition_read.topic_partition.partition, records=b"")
        read, shared = partition_read.read, partition_read.shared
        if read is None:
            # The log start offset moved, and so does the start offset; Kafka responds with this error message.
            shared.log_start_offset_changed(partition_read.partition.log.log_start_offset)
            data.error_message = "NONE"
            return data, 0
        if read.records is None or max_records <= 0:
            _release_read(read)
            return data, 0
        headers = _headers(read.records, max(shared.end_offset, partition_read.offset) + max_records)
        acquired = acquire(
            shared,
            self._session_key.member_id,
            [
                LogBatch(
                    header.base_offset,
                    header.last_offset,
                    header.producer_id,
                    header.is_transactional,
                    header.is_control,
                )
                for header in headers
            ],
            fetch_offset=partition_read.offset,
            max_records=max_records,
            batch_size=self._limits.batch_size,
            mode=self._limits.mode,
            aborted=read.aborted or (),
        )
        if not acquired:
            _release_read(read)
            return data, 0
        _narrow(read.records, headers, acquired[0].first, acquired[-1].last)
        data.records = read.records
        data.acquired_records = [
            AcquiredRecords(first_offset=run.first, last_offset=run.last, delivery_count=run.delivery_count)
            for run in acquired
        ]
        return data, sum(run.last - run.first + 1 for run in acquired)

    def _with_errors(self, data_by_partition: ShareFetchData) -> ShareFetchData:
        for topic_partition, error in self._errors.items():
            data_by_partition[topic_partition] = error_data(topic_partition, error)
        return data_by_partition


def error_data(topic_partition: TopicIdPartition, error: KafkaError) -> PartitionData:
    """Return the response data of a partition that could not be fetched."""
    return PartitionData(
        partition_index=topic_partition.partition, error_code=error.code, error_message=error.message, records=b""
    )


def rotated(topic_partitions: Sequence[TopicIdPartition], epoch: int) -> Sequence[TopicIdPartition]:
    """Rotate the partitions of a session by its epoch, so that each is fetched first in turn."""
    if epoch < 1 or len(topic_partitions) < 2:
        return topic_partitions
    begin = epoch % len(topic_partitions)
    return [*topic_partitions[begin:], *topic_partitions[:begin]]


def _headers(records: FileSlice, until: int) -> list[BatchHeader]:
    """Return the headers of the batches in a slice up to the one that holds an offset."""
    headers = []
    for header in records.batches():
        headers.append(header)
        if header.last_offset >= until:
            break
    return headers


def _narrow(records: FileSlice, headers: Sequence[BatchHeader], first: int, last: int) -> None:
    """Narrow a slice to the batches from the first to the last acquired offset."""
    begin = next((header for header in reversed(headers) if header.base_offset <= first), headers[0])
    end = next(header for header in reversed(headers) if header.base_offset <= last or header is begin)
    records.narrow(begin.position - records.position, end.end - begin.position)


def _release_read(read: LogRead | None) -> None:
    if read is not None and read.records is not None:
        read.records.release()


def release(data_by_partition: Mapping[TopicIdPartition, PartitionData]) -> None:
    """Release the file slices of a response that is not sent."""
    for data in data_by_partition.values():
        if data.records:
            data.records.release()
