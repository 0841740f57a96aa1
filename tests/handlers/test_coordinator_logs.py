"""Compaction and compression of the internal topics keep the coordinators' state."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k08_offset_commit as k08
from ottla.protocol.messages import k09_offset_fetch as k09
from ottla.protocol.messages import k20_delete_topics as k20
from ottla.protocol.messages import k65_describe_transactions as k65
from ottla.protocol.messages import k90_describe_share_group_offsets as k90
from ottla.protocol.messages import k91_alter_share_group_offsets as k91
from ottla.records.batch import iter_batches
from ottla.records.compression import CompressionType
from tests.conversations.local_talk import LocalTalk
from tests.conversations.transactions.talk import TransactionTalk

SMALL = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": "1048576",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.segment.bytes": "1048576",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
}

BUSY = "busy" * 500  # a long id, so that few records fill a segment


@pytest.fixture
def talk() -> TransactionTalk:
    local = LocalTalk(SMALL)
    local.create("news", 200)
    talk = TransactionTalk(local, local.pause)
    talk.find_coordinators()
    return talk


def segments(talk: TransactionTalk, folder: str) -> list[int]:
    """Return the sizes of a log's segments."""
    disk = talk.talk.world.disk
    return [
        disk.size(f"/data/{folder}/{name}") for name in sorted(disk.list(f"/data/{folder}")) if name.endswith(".log")
    ]


def compacted(talk: TransactionTalk, folder: str) -> bool:
    return segments(talk, folder)[0] < 200_000


def commit(talk: TransactionTalk, group: str, offset: int) -> None:
    partitions = [
        k08.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset) for index in range(200)
    ]
    topic = k08.OffsetCommitRequestTopic(name="news", partitions=partitions)
    request = k08.OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[topic])
    talk.talk.quietly(request, k08.OffsetCommitResponse, version=9)


def offsets(talk: TransactionTalk, group: str) -> set[int]:
    expected = k09.OffsetFetchRequestGroup(group_id=group, topics=None)
    response = talk.talk.quietly(k09.OffsetFetchRequest(groups=[expected]), k09.OffsetFetchResponse, version=9)
    return {partition.committed_offset for topic in response.groups[0].topics for partition in topic.partitions}


def test_committed_offsets_survive_compaction(talk: TransactionTalk) -> None:
    commit(talk, "idle", 7)
    for offset in range(120):
        commit(talk, "busy", offset)
    talk.talk.wait_until(lambda: compacted(talk, "__consumer_offsets-0"), "the offsets are not compacted")
    assert (offsets(talk, "idle"), offsets(talk, "busy")) == ({7}, {119})
    talk.talk.restart()
    talk.find_coordinators()
    assert (offsets(talk, "idle"), offsets(talk, "busy")) == ({7}, {119})
    talk.talk.close()


def test_transactions_survive_compaction(talk: TransactionTalk) -> None:
    idle = talk.init("idle")
    talk.add(idle, ("news", 3))
    while len(segments(talk, "__transaction_state-0")) == 1:
        for _ in range(20):
            talk.init(BUSY, wait=False)
    talk.talk.wait_until(lambda: compacted(talk, "__transaction_state-0"), "the transactions are not compacted")
    before = states(talk)
    assert [entry.transaction_state for entry in before] == ["Ongoing", "Empty"]
    talk.talk.restart()
    talk.find_coordinators()
    assert states(talk) == before
    talk.talk.close()


def states(talk: TransactionTalk) -> list[k65.TransactionState]:
    request = k65.DescribeTransactionsRequest(transactional_ids=["idle", BUSY])
    return talk.patiently(lambda: talk.talk.quietly(request, k65.DescribeTransactionsResponse)).transaction_states


@pytest.mark.parametrize("committed", [True, False])
def test_topic_recreated_during_transaction_leaves_nothing_hanging(talk: TransactionTalk, committed: bool) -> None:
    local = talk.talk
    producer = talk.init("app")
    assert [talk.produce(producer, ("news", index), 0) for index in (0, 1)] == [ErrorCode.NONE] * 2
    talk.commit_offset(producer, "readers", ("news", 0), 7)
    request = k20.DeleteTopicsRequest(topics=[k20.DeleteTopicState(name="news")], timeout_ms=1_000)
    assert local.quietly(request, k20.DeleteTopicsResponse).responses[0].error_code == ErrorCode.NONE
    local.create("news", 1)
    assert talk.produce(producer, ("news", 0), 0) == ErrorCode.NONE
    talk.end(producer, committed)
    assert talk.state("app") == ("CompleteCommit" if committed else "CompleteAbort")
    log = local.runtime.partitions["news", 0].log
    assert (log.log_end_offset, log.last_stable_offset) == (2, 2)
    # The offset belonged to the deleted topic.
    assert offsets(talk, "readers") == set()
    local.close()


@pytest.mark.parametrize("codec", CompressionType)
def test_coordinators_compress_records_with_configured_codec(codec: CompressionType) -> None:
    local = LocalTalk(
        {
            "offsets.topic.num.partitions": "1",
            "offsets.topic.compression.codec": str(codec.value),
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.state.topic.compression.codec": str(codec.value),
        }
    )
    local.create("news", 200)
    talk = TransactionTalk(local, local.pause)
    talk.find_coordinators()
    commit(talk, "readers", 7)
    begin = k91.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=5)
    topic = k91.AlterShareGroupOffsetsRequestTopic(topic_name="news", partitions=[begin])
    request = k91.AlterShareGroupOffsetsRequest(group_id="sharers", topics=[topic])
    reply = talk.patiently(lambda: local.quietly(request, k91.AlterShareGroupOffsetsResponse))
    assert reply.responses[0].partitions[0].error_code == ErrorCode.NONE
    for log in ("__consumer_offsets-0", "__share_group_state-0"):
        data = local.world.disk.read(f"/data/{log}/{0:020}.log")
        assert {header.compression for header in iter_batches(data)} == {codec}
    # The compressed records are loaded.
    local.restart()
    assert offsets(talk, "readers") == {7}
    expected = k90.DescribeShareGroupOffsetsRequestGroup(group_id="sharers", topics=None)
    response = talk.patiently(
        lambda: local.quietly(
            k90.DescribeShareGroupOffsetsRequest(groups=[expected]), k90.DescribeShareGroupOffsetsResponse
        )
    )
    assert response.groups[0].topics[0].partitions[0].start_offset == 5
    local.close()
