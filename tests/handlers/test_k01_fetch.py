"""Fetch (1): delayed fetches, size limits, read_committed, and recorded responses of Apache Kafka 4.3.1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.schema import Uuid
from ottla.records.batch import iter_batches
from ottla.records.builder import build_batch
from ottla.records.control import ControlType
from ottla.records.iterate import Record, iter_all_records
from tests.conversations.broker import assert_as_kafka
from tests.conversations.local_talk import LocalTalk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conversations.side_by_side import Talk

VERSION = 12  # topics by name
BY_ID = 18


@pytest.fixture
def local() -> Iterator[LocalTalk]:
    talk = LocalTalk({"fetch.max.bytes": "100000"})
    talk.create("t", 2)
    yield talk
    talk.close()


def write(local: LocalTalk, value: bytes = b"x", partition: int = 0, *, producer: int = -1, sequence: int = -1) -> int:
    """Append a batch, of a transaction if a producer is named; return its size."""
    batch = build_batch(
        [Record(0, local.world.clock.now_ms(), None, value)],
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=sequence,
        transactional=producer >= 0,
    )
    local.runtime.partitions["t", partition].append(batch)
    return len(batch)


def end(local: LocalTalk, producer: int, *, commit: bool) -> None:
    partition = local.runtime.partitions["t", 0]
    partition.log.append_marker(
        ControlType.COMMIT if commit else ControlType.ABORT,
        partition.state.leader_epoch,
        producer_id=producer,
        producer_epoch=0,
        coordinator_epoch=0,
    )


def request(
    offset: int = 0,
    *,
    wait: int = 0,
    least: int = 1,
    most: int = 1 << 20,
    partition_most: int = 1 << 20,
    committed: bool = False,
    partitions: int = 1,
    epoch: int = -1,
    last_epoch: int = -1,
    topic: str = "t",
    topic_id: Uuid | None = None,
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=wait,
        min_bytes=least,
        max_bytes=most,
        isolation_level=int(committed),
        session_epoch=-1,
        topics=[
            FetchTopic(
                **({"topic": topic} if topic_id is None else {"topic_id": topic_id}),  # type: ignore[arg-type]
                partitions=[
                    FetchPartition(
                        partition=index,
                        fetch_offset=offset,
                        partition_max_bytes=partition_most,
                        current_leader_epoch=epoch,
                        last_fetched_epoch=last_epoch,
                    )
                    for index in range(partitions)
                ],
            )
        ],
    )


def ask(local: LocalTalk, fetch_request: FetchRequest, version: int = VERSION) -> list[PartitionData]:
    return local.quietly(fetch_request, FetchResponse, version=version).responses[0].partitions


def waiting(local: LocalTalk, fetch_request: FetchRequest) -> Callable[[], FetchResponse]:
    """Send a fetch and check that it is delayed."""
    response = local.start(fetch_request, FetchResponse, VERSION)
    assert waits(local) > 0
    return response


def waits(local: LocalTalk) -> int:
    return len(local.runtime.partitions["t", 0].delayed)


def values(data: PartitionData) -> list[bytes | None]:
    """Return the values that a consumer delivers: without control batches and aborted transactions."""
    aborted = {
        (aborted_transaction.producer_id, aborted_transaction.first_offset)
        for aborted_transaction in data.aborted_transactions or ()
    }
    values, skipping = [], set()
    for header, record in iter_all_records(data.records or b"", include_control=True):
        if (header.producer_id, header.base_offset) in aborted:
            skipping.add(header.producer_id)
        if header.is_control:
            skipping.discard(header.producer_id)
        elif header.producer_id not in skipping:
            values.append(record.value)
    return values


# Delayed fetches


def test_readable_records_are_returned_at_once(local: LocalTalk) -> None:
    write(local, b"there")
    assert values(ask(local, request(wait=60_000))[0]) == [b"there"]
    assert waits(local) == 0


def test_empty_response_after_max_wait(local: LocalTalk) -> None:
    response = waiting(local, request(wait=500))
    local.world.clock.advance(0.49)
    assert waits(local) == 1
    local.world.clock.advance(0.02)
    assert waits(local) == 0
    assert values(response().responses[0].partitions[0]) == []


def test_fetch_waits_for_min_bytes(local: LocalTalk) -> None:
    one = write(local, bytes(100))
    response = waiting(local, request(wait=60_000, least=3 * one))
    write(local, bytes(100))
    local.pause()
    assert waits(local) == 1
    write(local, bytes(100))
    local.pause()
    assert waits(local) == 0
    assert len(values(response().responses[0].partitions[0])) == 3


def test_min_bytes_counts_all_partitions(local: LocalTalk) -> None:
    one = write(local, bytes(100))
    response = waiting(local, request(wait=60_000, least=2 * one, partitions=2))
    write(local, bytes(100), partition=1)
    local.pause()
    assert waits(local) == 0
    assert [len(values(partition)) for partition in response().responses[0].partitions] == [1, 1]


def test_partition_error_completes_delayed_fetch(local: LocalTalk) -> None:
    response = ask(local, request(99, wait=60_000))
    assert response[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert waits(local) == 0


def test_read_committed_fetch_waits_for_commit(local: LocalTalk) -> None:
    write(local, b"open", producer=7, sequence=0)
    plain = ask(local, request(wait=60_000))
    assert values(plain[0]) == [b"open"]
    response = waiting(local, request(wait=60_000, committed=True))
    write(local, b"behind it")
    local.pause()
    assert waits(local) == 1, "what is not stable yet must not wake a reader of committed records"
    end(local, 7, commit=True)
    local.pause()
    assert waits(local) == 0
    partition = response().responses[0].partitions[0]
    assert values(partition) == [b"open", b"behind it"]
    assert (partition.last_stable_offset, partition.high_watermark) == (3, 3)


def test_read_committed_counts_bytes_below_last_stable_offset(local: LocalTalk) -> None:
    one = write(local, bytes(100), producer=7, sequence=0)
    waiting(local, request(wait=60_000, least=2 * one, committed=True))
    for sequence in range(1, 5):
        write(local, bytes(100), producer=7, sequence=sequence)
    local.pause()
    assert waits(local) == 1
    end(local, 7, commit=True)
    local.pause()
    assert waits(local) == 0


# read_committed


def test_read_committed_response_has_aborted_transactions(local: LocalTalk) -> None:
    write(local, b"no", producer=7, sequence=0)
    write(local, b"plain")
    write(local, b"yes", producer=8, sequence=0)
    end(local, 7, commit=False)
    end(local, 8, commit=True)
    write(local, b"open", producer=9, sequence=0)
    result = ask(local, request(committed=True))[0]
    assert values(result) == [b"plain", b"yes"]
    assert [
        (aborted_transaction.producer_id, aborted_transaction.first_offset)
        for aborted_transaction in result.aborted_transactions or ()
    ] == [(7, 0)]
    assert (result.last_stable_offset, result.high_watermark) == (5, 6)
    everything = ask(local, request())[0]
    assert everything.aborted_transactions is None
    assert len(list(iter_batches(everything.records))) == 6


# Size limits


def test_first_batch_may_exceed_max_bytes(local: LocalTalk) -> None:
    write(local, bytes(5000))
    write(local, bytes(5000))
    response = ask(local, request(partition_most=10, most=10))
    assert len(values(response[0])) == 1


def test_only_first_partition_may_exceed_max_bytes(local: LocalTalk) -> None:
    for partition in (0, 1):
        write(local, bytes(5000), partition)
    response = ask(local, request(most=100, partitions=2))
    assert [len(values(entry)) for entry in response] == [1, 0]


def test_partition_limit_ends_at_batch_boundary(local: LocalTalk) -> None:
    one = write(local, bytes(1000))
    for _ in range(9):
        write(local, bytes(1000))
    response = ask(local, request(partition_most=3 * one + 10))
    assert len(values(response[0])) == 3


def test_fetch_max_bytes_of_broker_applies(local: LocalTalk) -> None:
    for _ in range(30):
        write(local, bytes(10_000))
    response = ask(local, request(most=1 << 30))
    assert 5 <= len(values(response[0])) <= 10


# Errors


@pytest.mark.parametrize(
    ("fetch_request", "code"),
    [
        (request(5), ErrorCode.OFFSET_OUT_OF_RANGE),
        (request(-3), ErrorCode.OFFSET_OUT_OF_RANGE),
        (request(epoch=99), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (request(topic="missing"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
    ids=["beyond the end", "before the start", "an epoch to come", "an unknown topic"],
)
def test_refusals(local: LocalTalk, fetch_request: FetchRequest, code: ErrorCode) -> None:
    result = ask(local, fetch_request)[0]
    assert result.error_code == code
    assert not result.records


def test_unknown_topic_id_fails_every_partition(local: LocalTalk) -> None:
    response = ask(local, request(partitions=2, topic_id=Uuid(bytes(range(16)))), BY_ID)
    assert [entry.error_code for entry in response] == [ErrorCode.UNKNOWN_TOPIC_ID] * 2


def test_diverging_epoch_is_returned(local: LocalTalk) -> None:
    write(local)
    result = ask(local, request(1, last_epoch=0), VERSION)[0]
    assert result.diverging_epoch.epoch == -1
    ahead = ask(local, request(5, last_epoch=0), VERSION)[0]
    assert (ahead.diverging_epoch.epoch, ahead.diverging_epoch.end_offset) == (0, 1)


@pytest.mark.parametrize("name", ["fetch_sessions", "fetch_versions"])
def test_responses_are_those_of_kafka(name: str, broker_talk: Talk) -> None:
    assert_as_kafka(name, broker_talk)
