"""Transactions: open ones with what they hold back, hanging ones, aborting one, and the states of the past."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.client.client import LATEST
from ottla.client.producer import Producer
from ottla.client.reading import RecordReader, bounds
from ottla.client.transactions import (
    abort_on_partition,
    describe_producers,
    describe_transaction,
    list_transactions,
)
from ottla.cluster.internal_topics import TRANSACTION_STATE_TOPIC
from ottla.console.data.offsets import list_offsets
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.internal_records import TRANSACTION_STATES
from ottla.protocol.record_schemas.transaction import TransactionLogKey, TransactionLogValue
from ottla.protocol.record_values import decode_transaction_key, decode_transaction_value

if TYPE_CHECKING:
    from ottla.client.client import Client, TopicPartition

OPEN: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
DESCRIBED: Final = 200
"""Open transactions that are described with their partitions."""
RECORDS_READ: Final = 20_000
HANGING_AFTER_MS: Final = 15 * 60_000
"""transaction.max.timeout.ms by default: no coordinator keeps a transaction open for longer."""
PARTITIONS_SEARCHED: Final = 20_000


@dataclass(slots=True)
class Transaction:
    """A transactional id and its current transaction."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int
    producer_epoch: int | None = None
    started: int | None = None
    """ms; None if no transaction is open."""
    timeout_ms: int | None = None
    partitions: list[TopicPartition] = field(default_factory=list)
    held_back: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """The last stable offset and the log end of each partition whose LSO is behind."""

    @property
    def age_ms(self) -> int | None:
        """How long the transaction is open."""
        return None if self.started is None else max(0, int(time.time() * 1000) - self.started)

    @property
    def is_open(self) -> bool:
        """Whether a transaction is in progress."""
        return self.state in OPEN

    @property
    def held_records(self) -> int:
        """The offsets that read_committed consumers cannot read yet."""
        return sum(end - stable for stable, end in self.held_back.values())


def all_transactions(client: Client) -> list[Transaction]:
    """Return all transactional ids; the open ones, oldest first, with partitions and what they hold back."""
    transactions = [
        Transaction(entry.transactional_id, entry.transaction_state, entry.producer_id, node)
        for node, entry in list_transactions(client)
    ]
    for transaction in [entry for entry in transactions if entry.is_open][:DESCRIBED]:
        _describe(client, transaction)
    _add_held_back(client, [entry for entry in transactions if entry.is_open])
    return sorted(transactions, key=lambda entry: (not entry.is_open, entry.started or 0, entry.transactional_id))


def one_transaction(client: Client, name: str) -> Transaction:
    """Return one transactional id with its transaction."""
    node, state = describe_transaction(client, name)
    transaction = Transaction(name, state.transaction_state, state.producer_id, node)
    _describe(client, transaction)
    _add_held_back(client, [transaction])
    return transaction


def _describe(client: Client, transaction: Transaction) -> None:
    try:
        _, state = describe_transaction(client, transaction.transactional_id)
    except KafkaError as error:
        if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return  # it expired meanwhile
        raise
    transaction.state = state.transaction_state
    transaction.producer_epoch = state.producer_epoch
    transaction.timeout_ms = state.transaction_timeout_ms
    transaction.started = state.transaction_start_time_ms if state.transaction_start_time_ms > 0 else None
    transaction.partitions = sorted((topic.topic, index) for topic in state.topics for index in topic.partitions)


def _add_held_back(client: Client, transactions: list[Transaction]) -> None:
    names = {topic for transaction in transactions for topic, _ in transaction.partitions}
    infos = [topic for topic in client.topics() if topic.name in names] if names else []
    ends, stable = list_offsets(client, infos, LATEST), list_offsets(client, infos, LATEST, read_committed=True)
    for transaction in transactions:
        transaction.held_back = {
            key: (stable[key], ends[key])
            for key in transaction.partitions
            if key in ends and key in stable and stable[key] < ends[key]
        }


@dataclass(slots=True)
class HangingTransaction:
    """An open transaction on a partition that no coordinator will end."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int
    transactional_id: str | None


def find_hanging(client: Client, older_than_ms: int = HANGING_AFTER_MS) -> list[HangingTransaction]:
    """Return transactions that are open on a partition, while their coordinator does not know of it."""
    oldest = int(time.time() * 1000) - older_than_ms
    infos = client.topics()
    if sum(len(info.partitions) for info in infos) > PARTITIONS_SEARCHED:
        # Only partitions whose LSO is behind can have an open transaction.
        ends, stable = list_offsets(client, infos, LATEST), list_offsets(client, infos, LATEST, read_committed=True)
        behind = {topic for (topic, index), end in ends.items() if stable.get((topic, index), end) < end}
        infos = [info for info in infos if info.name in behind]
    suspects = []
    for info in infos:
        led = [partition.index for partition in info.partitions.values() if partition.leader >= 0]
        for index, states in describe_producers(client, info.name, led).items():
            suspects += [
                (info.name, index, state)
                for state in states
                if state.current_txn_start_offset >= 0 and state.last_timestamp <= oldest
            ]
    if not suspects:
        return []
    ids = sorted({state.producer_id for _, _, state in suspects})
    owners = {entry.producer_id: entry.transactional_id for _, entry in list_transactions(client, (), ids)}
    claimed: dict[int, list[TopicPartition]] = {}
    for producer_id, name in owners.items():
        transaction = Transaction(name, "", producer_id, -1)
        _describe(client, transaction)
        claimed[producer_id] = transaction.partitions
    return [
        HangingTransaction(
            topic,
            index,
            state.producer_id,
            state.producer_epoch,
            state.coordinator_epoch,
            state.current_txn_start_offset,
            state.last_timestamp,
            owners.get(state.producer_id),
        )
        for topic, index, state in suspects
        if (topic, index) not in claimed.get(state.producer_id, ())
    ]


def abort_open(client: Client, transactional_id: str) -> None:
    """Abort an open transaction: a new producer with its id fences the old one, as a restart would."""
    Producer(client, transactional_id=transactional_id).initialize()


def abort_hanging(client: Client, topic: str, partition: int, start_offset: int) -> None:
    """Write an abort marker for the hanging transaction that starts at an offset."""
    client.topics([topic])
    states = describe_producers(client, topic, [partition])[partition]
    state = next((entry for entry in states if entry.current_txn_start_offset == start_offset), None)
    if state is None:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE, f"{topic}-{partition} has no open transaction at offset {start_offset}"
        )
    abort_on_partition(
        client,
        topic,
        partition,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        coordinator_epoch=max(state.coordinator_epoch, 0),
    )


@dataclass(slots=True)
class StateSpan:
    """A state of a transactional id: ms, `end` None if it lasts."""

    state: str
    start: int
    end: int | None
    epoch: int
    partitions: int


def read_states(client: Client, only: str | None = None) -> dict[str, list[StateSpan]]:
    """Return the states of transactional ids from the end of `__transaction_state`, by id."""
    info = client.topics([TRANSACTION_STATE_TOPIC])[0]
    limits = bounds(client, TRANSACTION_STATE_TOPIC, info.partitions)
    each = max(200, RECORDS_READ // max(1, len(limits)))
    positions = {index: max(bound.start, bound.end - each) for index, bound in limits.items()}
    reader = RecordReader(
        client,
        TRANSACTION_STATE_TOPIC,
        positions,
        until={index: bound.end for index, bound in limits.items()},
        max_bytes=8 * 1024 * 1024,
    )
    spans: dict[str, list[StateSpan]] = {}
    for read in reader:
        try:
            key = decode_transaction_key(read.record.key or b"")
            value = None if read.record.value is None else decode_transaction_value(read.record.value)
        except ProtocolError:
            continue
        if not isinstance(key, TransactionLogKey) or (only is not None and key.transactional_id != only):
            continue
        states = spans.setdefault(key.transactional_id, [])
        when = read.record.timestamp
        if states and states[-1].end is None:
            states[-1].end = when
        if isinstance(value, TransactionLogValue):
            number = value.transaction_status
            name = TRANSACTION_STATES[number] if 0 <= number < len(TRANSACTION_STATES) else f"state {number}"
            count = sum(len(topic.partition_ids) for topic in value.transaction_partitions or [])
            states.append(StateSpan(name, when, None, value.producer_epoch, count))
    return {name: states for name, states in spans.items() if states}
