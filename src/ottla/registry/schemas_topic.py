"""The topic `_schemas`: creates it, follows it on a thread, and appends to it with a fencing producer.

Every append is a transaction under one transactional id, so that two registries on one topic never both write on the
same state: taking the id fences the other one, whose next write takes it back and reads to the end first.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.client.client import LATEST, Client
from ottla.client.connection import ConnectionFailedError
from ottla.client.producer import Producer
from ottla.client.reading import RecordReader, bounds
from ottla.client.topics import create_topic
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.registry.records import SCHEMAS_TOPIC, noop_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.client.producer import Delivered
    from ottla.client.reading import Read

log = logging.getLogger(__name__)

TRANSACTIONAL_ID: Final = "ottla-schema-registry"
REPLICATION_FACTOR: Final = 3
FOLLOW_WAIT_MS: Final = 500
FENCED: Final = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE,
     ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.CONCURRENT_TRANSACTIONS}
)  # fmt: skip


class TopicRecord(NamedTuple):
    """A record of the topic."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class FencedError(Exception):
    """Another registry has written since this one took the transactional id."""


class SchemasTopic:
    """Access to the topic of one Kafka cluster. `end` and `append` block; call them from one thread at a time."""

    def __init__(self, connect: Callable[[], Client], topic: str = SCHEMAS_TOPIC) -> None:
        self.name = topic
        self._connect = connect
        self._client = connect()
        self._producer: Producer | None = None
        self._appended_end: int | None = None
        self._stopping = threading.Event()
        self._follower: threading.Thread | None = None

    @property
    def cluster_id(self) -> str:
        """Return the id of the Kafka cluster."""
        return self._client.cluster_id or "unknown"

    def create(self) -> None:
        """Create the topic if it does not exist: one partition, compacted."""
        try:
            create_topic(
                self._client,
                self.name,
                partitions=1,
                replication_factor=min(REPLICATION_FACTOR, len(self._client.brokers)),
                configs={"cleanup.policy": "compact"},
            )
        except KafkaError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            count = len(self._client.topic(self.name).partitions)
            if count != 1:
                raise ValueError(f"topic {self.name} has {count} partitions; a registry's topic has one") from None

    def end(self) -> int:
        """Return the offset after the last committed record."""
        return self._client.list_offsets(self.name, [0], LATEST, read_committed=True)[0][0]

    def take_over(self) -> None:
        """Fence other registries, if this one is not the last that wrote; their open transaction is aborted."""
        if self._producer is None:
            producer = Producer(self._client, transactional_id=TRANSACTIONAL_ID, delivered=self._appended)
            producer.initialize()
            self._producer = producer

    def append(self, records: Sequence[tuple[bytes, bytes | None]]) -> int:
        """Append records in one transaction and return the offset after the last; FencedError if another wrote."""
        assert self._producer is not None, "take_over comes first"
        self._appended_end = None
        try:
            for key, value in records:
                self._producer.send(self.name, key, value, partition=0)
            self._producer.commit()
        except KafkaError as error:
            self._producer = None
            if error.code in FENCED:
                raise FencedError from error
            raise
        except ConnectionFailedError:
            self._producer = None
            raise
        # A retry that the broker answers as a duplicate may have no offset: all that is committed includes it.
        return self.end() if self._appended_end is None else self._appended_end

    def append_noop(self) -> None:
        """Append a NOOP record outside of transactions.

        Karapace waits until it has read the last offset of the topic, which it never does if that is the marker of a
        transaction.
        """
        producer = Producer(self._client, idempotent=False)
        producer.send(self.name, noop_key(), None, partition=0)
        producer.flush()

    def _appended(self, delivered: Delivered) -> None:
        known = delivered.base_offset >= 0
        self._appended_end = delivered.base_offset + delivered.records if known else None

    def read_all(self) -> tuple[list[TopicRecord], int]:
        """Return all committed records, and the offset that following starts from."""
        limits = bounds(self._client, self.name, [0], read_committed=True)[0]
        reader = RecordReader(self._client, self.name, {0: limits.start}, until={0: limits.end})
        records = [_record(read) for read in reader]
        return records, limits.end

    def follow(self, start: int, deliver: Callable[[list[TopicRecord], int], None]) -> None:
        """Start a thread that delivers new records with the offset reached, until `close`."""
        self._follower = threading.Thread(
            target=self._follow, args=(start, deliver), name="ottla-registry", daemon=True
        )
        self._follower.start()

    def _follow(self, start: int, deliver: Callable[[list[TopicRecord], int], None]) -> None:
        position = start
        while not self._stopping.is_set():
            try:
                with self._connect() as client:
                    position = self._follow_with(client, position, deliver)
            except (KafkaError, ConnectionFailedError, OSError) as error:
                if not self._stopping.is_set():
                    log.warning("cannot follow %s, trying again: %s", self.name, error)
                    self._stopping.wait(1.0)

    def _follow_with(self, client: Client, start: int, deliver: Callable[[list[TopicRecord], int], None]) -> int:
        batch: list[TopicRecord] = []
        reader: RecordReader

        def flush() -> None:
            if self._stopping.is_set():
                raise _StopFollowing
            position = reader.positions[0]
            if batch or position > reached[0]:
                deliver(list(batch), position)
                batch.clear()
                reached[0] = position

        def take(read: Read) -> None:
            batch.append(_record(read))

        reached = [start]
        reader = RecordReader(client, self.name, {0: start}, max_wait_ms=FOLLOW_WAIT_MS, before_fetch=flush)
        with contextlib.suppress(_StopFollowing):
            for read in reader:
                take(read)
        return reached[0]

    def close(self) -> None:
        """Stop following and disconnect."""
        self._stopping.set()
        if self._follower is not None:
            self._follower.join()
        self._client.close()


class _StopFollowing(Exception):  # noqa: N818 - ends the follower's loop, is no error
    pass


def _record(read: Read) -> TopicRecord:
    record = read.record
    return TopicRecord(record.offset, record.timestamp, record.key, record.value)
