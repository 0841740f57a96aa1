"""Share groups: records fetched and acknowledged per second, next to kfake and Apache Kafka.

    python bench/shares.py [--fetches N]

One member, one partition, one connection, made of single requests that are the same for all: each share fetch
acknowledges what the one before it was given.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.interop.conversation import NOT_READY, Conversation, codes
from tests.interop.side_by_side import Talk

from bench.peers import Peer, available
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages import k00_produce as k00
from ottla.protocol.messages import k44_incremental_alter_configs as k44
from ottla.protocol.messages import k76_share_group_heartbeat as k76
from ottla.protocol.messages import k78_share_fetch as k78
from ottla.records.builder import BatchBuilder

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.protocol.messages.k78_share_fetch import AcquiredRecords
    from ottla.protocol.schema import Uuid

TOPIC = "shared"
BATCH = 100
MEMBER = "M" * 22
ACCEPT = 1
RECORD_LIMIT = 1  # never more than asked for, even if that divides a batch
SIZES = (500, 100, 10)


def fill(talk: Talk, records: int) -> None:
    """Batches of a hundred records of a hundred bytes."""
    builder = BatchBuilder()
    for _ in range(BATCH):
        builder.append(None, b"x" * 100, (), 1_700_000_000_000)
    data = k00.PartitionProduceData(index=0, records=bytes(builder.build()))
    topic = k00.TopicProduceData(name=TOPIC, partition_data=[data])
    request = k00.ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[topic])
    for _ in range(records // BATCH):
        answer = talk.quietly(request, k00.ProduceResponse, version=9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE, answer


def join(talk: Talk, group: str) -> None:
    """Begin at the first record, and wait until the group has its partition."""
    change = k44.AlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")
    resource = k44.AlterConfigsResource(resource_type=32, resource_name=group, configs=[change])
    changed = talk.quietly(
        k44.IncrementalAlterConfigsRequest(resources=[resource]), k44.IncrementalAlterConfigsResponse, version=1
    )
    assert changed.responses[0].error_code == ErrorCode.NONE, changed
    epoch = 0
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        request = k76.ShareGroupHeartbeatRequest(group_id=group, member_id=MEMBER, member_epoch=epoch)
        request.subscribed_topic_names = [TOPIC] if epoch == 0 else None
        answer = talk.quietly(request, k76.ShareGroupHeartbeatResponse, version=1)
        if not NOT_READY.intersection(codes(answer)):
            assert answer.error_code == ErrorCode.NONE, answer
            epoch = answer.member_epoch
            if answer.assignment is not None and answer.assignment.topic_partitions:
                return
        time.sleep(0.05)
    raise AssertionError(f"{group} got no partition")


def consume(talk: Talk, group: str, topic_id: Uuid, records: int, most: int) -> None:
    """Fetch and acknowledge until all records are done with."""
    done = epoch = 0
    given: list[AcquiredRecords] = []
    deadline = time.monotonic() + 120
    while done < records:
        assert time.monotonic() < deadline, f"{done} of {records} records"
        partition = k78.FetchPartition(partition_index=0)
        partition.acknowledgement_batches = [
            k78.AcknowledgementBatch(
                first_offset=each.first_offset, last_offset=each.last_offset, acknowledge_types=[ACCEPT]
            )
            for each in given
        ]
        request = k78.ShareFetchRequest(
            group_id=group,
            member_id=MEMBER,
            share_session_epoch=epoch,
            max_wait_ms=500 if done + most < records else 1,
            min_bytes=1,
            max_bytes=50 << 20,
            max_records=most,
            batch_size=most,
            share_acquire_mode=RECORD_LIMIT,
            topics=[k78.FetchTopic(topic_id=topic_id, partitions=[partition])] if epoch == 0 or given else [],
        )
        try:
            answer = talk.quietly(request, k78.ShareFetchResponse, version=2)
        except ProtocolError:
            answer = k78.ShareFetchResponse()  # where there are none, kfake's records are null, which they may not be
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        epoch += 1
        done += sum(each.last_offset - each.first_offset + 1 for each in given)
        given = []
        for topic in answer.responses:
            for each in topic.partitions:
                assert each.acknowledge_error_code == ErrorCode.NONE, each.acknowledge_error_message
                if each.error_code == ErrorCode.NONE:
                    given += each.acquired_records


def rates(start: Callable[[Path], Peer], fetches: int) -> tuple[str, dict[int, tuple[float, float]]]:
    """Records per second and the broker's processor time for one in microseconds, by records per fetch."""
    figures = {}
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        peer = start(Path(folder))
        try:
            talk = Talk(peer.bootstrap, folder)
            topic_id = talk.create(TOPIC, 1)
            Conversation(talk).find_coordinators()
            fill(talk, fetches * max(SIZES))
            for most in SIZES:
                for group, wanted in ((f"warm-{most}", fetches * most // 5), (f"measured-{most}", fetches * most)):
                    talk.connect_as("bench")
                    join(talk, group)
                    cpu, began = peer.cpu_seconds(), time.perf_counter()
                    consume(talk, group, topic_id, wanted, most)
                    took = time.perf_counter() - began
                figures[most] = (wanted / took, (peer.cpu_seconds() - cpu) * 1e6 / wanted)
            talk.close()
        finally:
            peer.stop()
    return peer.name, figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fetches", type=int, default=1000, help="share fetches of each size (1000)")
    options = parser.parse_args()
    results = dict(rates(start, options.fetches) for start in available())
    for what, at, form in (
        ("Records fetched and acknowledged per second", 0, "{:,.0f}"),
        ("Processor time of the broker for one record, µs", 1, "{:.1f}"),
    ):
        print(f"{what}, one member on one partition (batches of {BATCH} records of 100 bytes):\n")
        print("| at most this many a fetch | " + " | ".join(results) + " |")
        print("|---|" + "---:|" * len(results))
        for most in SIZES:
            print(f"| {most} | " + " | ".join(form.format(each[most][at]) for each in results.values()) + " |")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
