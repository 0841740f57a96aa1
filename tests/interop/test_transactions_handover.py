"""A directory with a transaction in each of the six states is completed by the other broker.

The two states that pass by are what a crash leaves between the decision and its markers: the record of the decision,
built after one that the same broker wrote for a transaction of the same kind, is put behind the log of a killed broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ottla.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.records.batch import iter_batches
from ottla.records.builder import BatchBuilder
from ottla.records.iterate import iter_records
from ottla.transactions.records import decode_record, encode_key, encode_value
from ottla.transactions.states import TransactionState, TransactionVersion
from tests.conversations.side_by_side import Talk
from tests.conversations.transactions.talk import Producer, TransactionTalk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ottla.transactions.metadata import TransactionRecord
    from tests.ottla_node import OttlaNode

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop

SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "log.retention.ms": "-1",  # the records carry a time of long ago, and half a minute after a start Kafka looks at it
}
KINDS = {"old": (11, 4), "new": (12, 5)}  # versions of Produce and EndTxn: before KIP-890, and with it
STATES = ("Empty", "Ongoing", "Forgotten", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
PLACES = {f"{state}-{kind}": index for index, (state, kind) in enumerate((s, k) for s in STATES for k in KINDS)}


def begin(talk: TransactionTalk, producer: Producer, topic_partition: tuple[str, int], kind: str) -> None:
    """Write a record in a transaction, as clients do: what fails for a moment is tried again."""
    pending: list[Any] = [producer]

    def produced() -> bool:
        if kind == "old":
            talk.add(producer, topic_partition)
        pending.append(talk.produce(producer, topic_partition, 0, version=KINDS[kind][0]))
        return pending[-1] == 0

    talk.talk.wait_until(produced, f"{producer.transactional_id} cannot produce:", lambda: pending[-5:])


def write(talk: TransactionTalk) -> dict[str, Producer]:
    """Bring a transactional id into each state, as far as requests can."""
    producers = {}
    for name, index in PLACES.items():
        state, kind = name.split("-")
        _, end = KINDS[kind]
        producer = talk.init(name)
        if state != "Empty":
            begin(talk, producer, ("places", index), kind)
        if state.startswith("Complete"):
            producer = talk.end(producer, state == "CompleteCommit", version=end)
        producers[name] = producer
    return producers


def records(directory: Path) -> Iterator[tuple[Path, int, int, str, TransactionRecord]]:
    """Every record of `__transaction_state`: its file, the offset after it, the leader epoch, the id, what it says."""
    for path in sorted(directory.glob("__transaction_state-*/*.log")):
        data = path.read_bytes()
        for header in iter_batches(data):
            for record in iter_records(data, header):
                decoded = decode_record(record.key, record.value)
                if decoded is not None and decoded[1] is not None:
                    yield path, record.offset + 1, header.partition_leader_epoch, decoded[0], decoded[1]


def decide(directory: Path) -> None:
    """Put the decision to commit or abort behind the log, for those whose markers are never to be written."""
    written = list(records(directory))
    for name in PLACES:
        state, kind = name.split("-")
        if not state.startswith("Prepare"):
            continue
        expected = TransactionState.PREPARE_COMMIT if state == "PrepareCommit" else TransactionState.PREPARE_ABORT
        sibling = f"Complete{state.removeprefix('Prepare')}-{kind}"
        example = next(record for _, _, _, other, record in written if other == sibling and record.state is expected)
        path, _, _, _, ongoing = next(entry for entry in reversed(written) if entry[3] == name)
        assert ongoing.state is TransactionState.ONGOING
        decision = ongoing._replace(
            state=expected,
            producer_epoch=example.producer_epoch,  # each has had one transaction, so their epochs agree
            client_transaction_version=example.client_transaction_version,
            last_update_timestamp=ongoing.last_update_timestamp + 1,
        )
        offset, epoch = max(
            (end, leader) for file, end, leader, _, _ in records(directory) if file.parent == path.parent
        )
        batch = BatchBuilder(offset, partition_leader_epoch=epoch)
        value = encode_value(decision, TransactionVersion.TV_2)
        batch.append(encode_key(name), value, (), decision.last_update_timestamp)
        with path.open("ab") as file:
            file.write(batch.build())


def committed(talk: TransactionTalk, name: str) -> list[bytes | None]:
    """What a reader of committed records sees of an id's partition."""
    values: list[bytes | None] = []
    position = 0
    while True:
        expected = FetchPartition(partition=PLACES[name], fetch_offset=position, partition_max_bytes=1 << 20)
        topic = FetchTopic(topic="places", partitions=[expected])
        request = FetchRequest(max_wait_ms=0, max_bytes=1 << 20, isolation_level=1, topics=[topic])
        partition = talk.talk.quietly(request, FetchResponse, version=11).responses[0].partitions[0]
        assert partition.error_code == 0, partition
        aborted = {
            aborted_transaction.producer_id: aborted_transaction.first_offset
            for aborted_transaction in partition.aborted_transactions or ()
        }
        data = bytes(partition.records or b"")
        for header in iter_batches(data):  # a segment at a time
            position = header.last_offset + 1
            if header.is_control:
                aborted.pop(header.producer_id, None)
            elif header.base_offset < aborted.get(header.producer_id, position):
                values += [record.value for record in iter_records(data, header)]
        if not data or position >= partition.last_stable_offset:
            return values


def expect(talk: TransactionTalk, name: str, values: list[bytes]) -> None:
    """Wait until that is what a reader sees; nothing else may come first."""
    if values:
        talk.talk.wait_until(
            lambda: committed(talk, name) == values, f"{name} shows not {values} but", lambda: committed(talk, name)
        )
    assert committed(talk, name) == values, name


def commit_one(talk: TransactionTalk, name: str, kind: str) -> None:
    """One more transaction of an id, as clients make it: a step that fails for a moment is tried again."""
    producer = talk.init(name)
    begin(talk, producer, ("places", PLACES[name]), kind)
    pending: list[Any] = []

    def committed() -> bool:
        talk.end(producer, committed=True, version=KINDS[kind][1])
        pending.append(talk.state(name))
        return pending[-1] == "CompleteCommit"

    talk.talk.wait_until(committed, f"{name} cannot commit:", lambda: pending[-5:])


def states(talk: TransactionTalk) -> dict[str, str]:
    return {name: talk.state(name) for name in PLACES}


def finished(state: str) -> str:
    return {"Forgotten": "Ongoing"}.get(state, state.replace("Prepare", "Complete"))


@pytest.mark.parametrize("kafka_first", [False, True], ids=["ottla first", "kafka first"])
def test_transaction_in_each_state_is_completed_by_other_broker(
    ottla_factory: Callable[..., OttlaNode],
    apache_kafka_factory: Callable[..., ApacheKafka],
    tmp_path: Path,
    kafka_first: bool,
) -> None:
    data = tmp_path / "data"
    ottla, kafka = ottla_factory(data, settings=SETTINGS), apache_kafka_factory(data, settings=SETTINGS)
    one, other = (kafka, ottla) if kafka_first else (ottla, kafka)
    one.start()
    talk = TransactionTalk(Talk(one.bootstrap, str(data)))
    talk.find_coordinators()
    talk.talk.create("places", len(PLACES))
    producers = write(talk)
    expected: dict[str, Any] = {
        name: "Ongoing" if name.split("-")[0] in ("Forgotten", "PrepareCommit", "PrepareAbort") else name.split("-")[0]
        for name in PLACES
    }
    assert states(talk) == expected
    talk.talk.close()
    # Not killed: a Kafka that finds itself leading what it led before a kill is fenced a moment later, takes the
    # partitions that lose their leader for deleted ones, and may complete a transaction without its markers.
    one.stop()
    decide(data)

    other.start()
    talk = TransactionTalk(Talk(other.bootstrap, str(data)))
    talk.find_coordinators()
    talk.talk.wait_for("places", len(PLACES))
    for name in PLACES:
        talk.settle(name)
    assert states(talk) == {name: finished(name.split("-")[0]) for name in PLACES}
    for name in PLACES:
        shown = [b"0"] if name.split("-")[0] in ("PrepareCommit", "CompleteCommit") else []
        expect(talk, name, shown)

    # Whoever left a transaction open commits it here, or loses it by coming back.
    for kind, (_, end) in KINDS.items():
        talk.end(producers[f"Ongoing-{kind}"], committed=True, version=end)
        expect(talk, f"Ongoing-{kind}", [b"0"])
        talk.init(f"Forgotten-{kind}", wait=False)
        talk.settle(f"Forgotten-{kind}")
        expect(talk, f"Forgotten-{kind}", [])
        # Each producer continues with its next transaction.
        for state in ("Empty", "CompleteCommit", "CompleteAbort", "PrepareCommit", "PrepareAbort"):
            name = f"{state}-{kind}"
            commit_one(talk, name, kind)
            before = [b"0"] if state.endswith("Commit") else []
            expect(talk, name, [*before, b"0"])
    assert states(talk) == {
        name: "CompleteAbort" if name.startswith("Forgotten") else "CompleteCommit" for name in PLACES
    }
    talk.talk.close()
    other.stop()
    # Kafka's marker sender calls its own listener before that is open, and tries again.
    assert other.complaints(ignore=["could not be established", "disconnected"]) == []
