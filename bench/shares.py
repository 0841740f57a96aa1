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

from tests.conversations.conversation import NOT_READY, Conversation, codes
from tests.conversations.side_by_side import Talk

from bench.peers import Peer, available
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages import k00_produce as k00
from ottla.protocol.messages import k76_share_group_heartbeat as k76
from ottla.protocol.messages import k78_share_fetch as k78
from ottla.protocol.messages import k91_alter_share_group_offsets as k91
from ottla.records.builder import BatchBuilder

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.protocol.messages.k78_share_fetch import AcquiredRecords
    from ottla.protocol.schema import Uuid

LARGEST_BATCH = 100
MEMBER = "M" * 22
ACCEPT = 1
SIZES = (500, 100, 10)


def fill(talk: Talk, topic: str, records: int, batch: int) -> None:
    """Records of a hundred bytes, so many to a batch."""
    builder = BatchBuilder()
    for _ in range(batch):
        builder.append(None, b"x" * 100, (), 1_700_000_000_000)
    data = k00.PartitionProduceData(index=0, records=bytes(builder.build()))
    topic_data = k00.TopicProduceData(name=topic, partition_data=[data])
    request = k00.ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[topic_data])
    for _ in range(records // batch):
        response = talk.quietly(request, k00.ProduceResponse, version=9)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE, response


def join(talk: Talk, group: str, topic: str) -> None:
    """Begin at the first record, and wait until the group has its partition."""
    first = k91.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    alter = k91.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[first])
    request = k91.AlterShareGroupOffsetsRequest(group_id=group, topics=[alter])
    begun = Conversation(talk).patiently(lambda: talk.quietly(request, k91.AlterShareGroupOffsetsResponse, version=0))
    assert not any(codes(begun)), begun
    epoch = 0
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        beat = k76.ShareGroupHeartbeatRequest(group_id=group, member_id=MEMBER, member_epoch=epoch)
        beat.subscribed_topic_names = [topic] if epoch == 0 else None
        response = talk.quietly(beat, k76.ShareGroupHeartbeatResponse, version=1)
        if not NOT_READY.intersection(codes(response)):
            assert response.error_code == ErrorCode.NONE, response
            epoch = response.member_epoch
            if response.assignment is not None and response.assignment.topic_partitions:
                return
        time.sleep(0.05)
    raise AssertionError(f"{group} got no partition")


def consume(talk: Talk, group: str, topic_id: Uuid, records: int, most: int) -> None:
    """Fetch and acknowledge until all records are done with."""
    done = epoch = 0
    acquired: list[AcquiredRecords] = []
    deadline = time.monotonic() + 60
    while done < records:
        assert time.monotonic() < deadline, f"{group}: {done} of {records} records"
        partition = k78.FetchPartition(partition_index=0)
        partition.acknowledgement_batches = [
            k78.AcknowledgementBatch(
                first_offset=batch.first_offset, last_offset=batch.last_offset, acknowledge_types=[ACCEPT]
            )
            for batch in acquired
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
            topics=[k78.FetchTopic(topic_id=topic_id, partitions=[partition])] if epoch == 0 or acquired else [],
        )
        try:
            response = talk.quietly(request, k78.ShareFetchResponse, version=2)
        except ProtocolError:
            response = k78.ShareFetchResponse()  # where there are none, kfake's records are null, which they may not be
        assert response.error_code == ErrorCode.NONE, response.error_message
        epoch += 1
        done += sum(batch.last_offset - batch.first_offset + 1 for batch in acquired)
        acquired = []
        for topic in response.responses:
            for acknowledged in topic.partitions:
                assert acknowledged.acknowledge_error_code == ErrorCode.NONE, acknowledged.acknowledge_error_message
                if acknowledged.error_code == ErrorCode.NONE:
                    acquired += acknowledged.acquired_records


def rates(start: Callable[[Path], Peer], fetches: int) -> tuple[str, dict[int, tuple[float, float]]]:
    """Records per second and the broker's processor time for one in microseconds, by records per fetch."""
    figures = {}
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        peer = start(Path(folder))
        try:
            talk = Talk(peer.bootstrap, folder)
            Conversation(talk).find_coordinators()
            for most in SIZES:
                topic = f"shared-{most}"
                topic_id = talk.create(topic, 1)
                fill(talk, topic, fetches * most, min(most, LARGEST_BATCH))
                for group, count in ((f"warm-{most}", fetches * most // 5), (f"measured-{most}", fetches * most)):
                    talk.connect_as("bench")
                    join(talk, group, topic)
                    cpu, began = peer.cpu_seconds(), time.perf_counter()
                    consume(talk, group, topic_id, count, most)
                    took = time.perf_counter() - began
                figures[most] = (count / took, (peer.cpu_seconds() - cpu) * 1e6 / count)
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
        print(f"{what}, one member on one partition, records of 100 bytes in batches of at most {LARGEST_BATCH}:\n")
        print("| at most this many a fetch | " + " | ".join(results) + " |")
        print("|---|" + "---:|" * len(results))
        for most in SIZES:
            print(f"| {most} | " + " | ".join(form.format(result[most][at]) for result in results.values()) + " |")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
