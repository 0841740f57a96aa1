"""Apache Kafka and ottla start with records in their internal topics that cannot be loaded, and answer alike.

Any client may write such records with the client id of Kafka's admin tools.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, cast

import pytest

from ottla.cluster.internal_topics import partition_for
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k00_produce as k00
from ottla.protocol.messages import k08_offset_commit as k08
from ottla.protocol.messages import k22_init_producer_id as k22
from ottla.records.builder import BatchBuilder
from tests.conversations.groups.talk import GroupTalk
from tests.conversations.side_by_side import Talk, Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ottla_node import OttlaNode

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop

PARTITIONS = 3
TOPICS = ("__consumer_offsets", "__transaction_state")
SETTINGS = {
    "offsets.topic.num.partitions": str(PARTITIONS),
    "transaction.state.log.num.partitions": str(PARTITIONS),
}
BAD = 1
"""The partition of each internal topic that has an unreadable record."""


def name_in(partition: int) -> str:
    """Return a group or transactional id of a partition."""
    return next(name for name in map("name-{}".format, count()) if partition_for(name, PARTITIONS) == partition)


def commit(talk: GroupTalk, group: str) -> ErrorCode:
    """Commit an offset, until the coordinator is loaded or has failed."""
    offset_commit_request_partition = k08.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topic = k08.OffsetCommitRequestTopic(name="news", partitions=[offset_commit_request_partition])
    request = k08.OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[topic])
    while True:
        response = talk.talk.quietly(request, k08.OffsetCommitResponse, version=9)
        code = ErrorCode(response.topics[0].partitions[0].error_code)
        if code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return code
        talk.pause()


def init_producer(talk: GroupTalk, transactional_id: str) -> ErrorCode:
    """Initialize a producer, until the coordinator is loaded or has failed."""
    request = k22.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    while True:
        code = ErrorCode(talk.talk.quietly(request, k22.InitProducerIdResponse).error_code)
        if code not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS):
            return code
        talk.pause()


def produce_as_admin(bootstrap: str, topic: str, key: bytes, value: bytes | None) -> None:
    batch = BatchBuilder()
    batch.append(key, value, timestamp=1_700_000_000_000)
    partition_produce_data = k00.PartitionProduceData(index=BAD, records=bytes(batch.build()))
    request = k00.ProduceRequest(
        acks=-1,
        timeout_ms=60_000,
        topic_data=[k00.TopicProduceData(name=topic, partition_data=[partition_produce_data])],
    )
    wire = Wire(bootstrap, "__admin_client")
    response = cast("k00.ProduceResponse", wire.ask(request, 9))
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    wire.close()


def connect(node: OttlaNode | ApacheKafka) -> GroupTalk:
    talk = GroupTalk(Talk(node.bootstrap, str(node.log_dir)), lambda: ())
    talk.find_coordinators()
    init_producer(talk, "any")
    return talk


def is_reported(node: OttlaNode | ApacheKafka) -> bool:
    """Return whether the log names both partitions in an error."""
    errors = [line for line in node.log_file.read_text().splitlines() if "ERROR" in line]
    return all(
        any(f"{topic}-{BAD}" in line for line in errors) for topic in ("__consumer_offsets", "__transaction_state")
    )


def answers_after_restart(node: OttlaNode | ApacheKafka, key: bytes, value: bytes | None) -> dict[str, ErrorCode]:
    """Write a record to both topics, restart the node, and return what its coordinators answer."""
    talk = connect(node)
    talk.talk.create("news", 1)
    for partition in range(PARTITIONS):
        commit(talk, name_in(partition))
        init_producer(talk, name_in(partition))
    for topic in TOPICS:
        produce_as_admin(node.bootstrap, topic, key, value)
    talk.talk.close()
    node.restart()
    talk = GroupTalk(Talk(node.bootstrap, str(node.log_dir)), lambda: ())
    # Kafka loads in the background and answers NOT_COORDINATOR until it begins.
    good = [name_in(partition) for partition in range(PARTITIONS) if partition != BAD]
    wait = talk.talk.wait_until
    wait(lambda: all(commit(talk, name) is ErrorCode.NONE for name in good), "groups are not loaded")
    wait(lambda: all(init_producer(talk, name) is ErrorCode.NONE for name in good), "ids are not loaded")
    wait(lambda: is_reported(node), "the record is not reported")
    responses = {"bad group": commit(talk, name_in(BAD)), "bad id": init_producer(talk, name_in(BAD))}
    talk.talk.close()
    return responses


@pytest.mark.parametrize(
    ("key", "value"), [(b"\0", b"\0"), (b"\0\0\0\1t\0\1t\0\0\0\0", b"\0\1?")], ids=["short-key", "cut-value"]
)
def test_unreadable_record_fails_its_partition_in_both_brokers(
    apache_kafka_factory: Callable[..., ApacheKafka],
    ottla_factory: Callable[..., OttlaNode],
    key: bytes,
    value: bytes | None,
) -> None:
    kafka = answers_after_restart(apache_kafka_factory(settings=SETTINGS).start(), key, value)
    ottla = answers_after_restart(ottla_factory(settings=SETTINGS).start(), key, value)
    assert kafka == {
        "bad group": ErrorCode.NOT_COORDINATOR,
        # Kafka's TransactionStateManager serves the state before the record; ottla refuses to.
        "bad id": ErrorCode.NONE,
    }
    assert ottla == kafka | {"bad id": ErrorCode.NOT_COORDINATOR}
