"""Where logs begin, end and were: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.messages.k00_produce import ProduceResponse
from ottla.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.k23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.records.malformed import NOW

from . import script
from .produce import batch, produce

if TYPE_CHECKING:
    from tests.conversations.side_by_side import Talk

SPECIAL = (-1, -2, -3, -4, -5, -6, -7, -100)


def offsets(
    *requested: tuple[int, int], name: str = "t", isolation: int = 0, epoch: int = -1, replica: int = -1
) -> ListOffsetsRequest:
    partitions = [
        ListOffsetsPartition(partition_index=index, timestamp=timestamp, current_leader_epoch=epoch)
        for index, timestamp in requested
    ]
    return ListOffsetsRequest(
        replica_id=replica,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=name, partitions=partitions)],
        timeout_ms=20_000,
    )


TRIPS = "Kafka trips over it with UNKNOWN_SERVER_ERROR; here it is INVALID_REQUEST"


@script(differs={"isolation 2": TRIPS, "isolation -1": TRIPS})
def list_offsets(talk: Talk) -> None:
    talk.create("t", 2)

    def everywhere(what: str) -> None:
        for version in talk.versions[2]:
            for timestamp in (*SPECIAL, 0, NOW, NOW + 2, NOW + 100, 2**62):
                request = offsets((0, timestamp))
                talk.ask(f"{what}: {timestamp} v{version}", request, ListOffsetsResponse, version=version)

    everywhere("empty")
    for start in (NOW, NOW + 10, NOW - 1000):
        talk.quietly(produce("t", batch(5, timestamp=start)), ProduceResponse, version=12)
    everywhere("written")
    for timestamp in (
        NOW - 1001,
        NOW - 1000,
        NOW - 998,
        NOW + 3,
        NOW + 4,
        NOW + 5,
        NOW + 10,
        NOW + 13,
        NOW + 14,
        NOW + 15,
    ):
        talk.ask(f"at {timestamp - NOW}", offsets((0, timestamp)), ListOffsetsResponse)
    talk.quietly(produce("t", batch(3, timestamp=-1)), ProduceResponse, version=12)
    for timestamp in (*SPECIAL, 0, NOW + 15):
        talk.ask(f"behind records without time: {timestamp}", offsets((0, timestamp)), ListOffsetsResponse)
    _delete(talk, 7)
    everywhere("trimmed")
    _delete(talk, -1)
    everywhere("all gone")
    for isolation in (1, 2, -1):
        talk.ask(f"isolation {isolation}", offsets((0, -1), isolation=isolation), ListOffsetsResponse)
    for epoch in (0, 1, -2):
        talk.ask(f"epoch {epoch}", offsets((0, -1), epoch=epoch), ListOffsetsResponse)
    for replica in (1, 7, -2, -3):
        talk.ask(f"replica {replica}", offsets((0, -1), replica=replica), ListOffsetsResponse)
    talk.ask("unknown partition", offsets((5, -1)), ListOffsetsResponse)
    talk.ask("unknown topic", offsets((0, -1), name="nowhere"), ListOffsetsResponse)
    talk.ask("one twice", offsets((0, -1), (0, -2), (1, -1)), ListOffsetsResponse, unordered=("partitions",))
    talk.ask("nothing", ListOffsetsRequest(replica_id=-1), ListOffsetsResponse)


def _delete(talk: Talk, offset: int) -> None:
    talk.quietly(delete((0, offset)), DeleteRecordsResponse)


def delete(*requested: tuple[int, int], name: str = "t") -> DeleteRecordsRequest:
    partitions = [DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in requested]
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=partitions)], timeout_ms=20_000)


@script()
def delete_records(talk: Talk) -> None:
    talk.create("t", 2)
    talk.create("compacted", cleanup_policy="compact")
    talk.create("both", cleanup_policy="compact,delete", retention_ms="-1")
    for name in ("t", "compacted", "both"):
        talk.quietly(produce(name, batch(9)), ProduceResponse, version=12)
    for version in talk.versions[21]:
        talk.ask(f"v{version}", delete((0, version + 1)), DeleteRecordsResponse, version=version)
    for offset in (2, 0, 10, 9_999, -2, -5, 5, -1, -1, 9):
        label = f"to {offset}" if f"to {offset}" not in talk.transcript else f"to {offset} again"
        talk.ask(label, delete((0, offset)), DeleteRecordsResponse)
    talk.ask("of an empty log", delete((1, -1)), DeleteRecordsResponse)
    talk.ask("of an empty log to 0", delete((1, 0)), DeleteRecordsResponse)
    talk.ask("of an empty log to 1", delete((1, 1)), DeleteRecordsResponse)
    talk.ask("unknown partition", delete((9, 0)), DeleteRecordsResponse)
    talk.ask("unknown topic", delete((0, 0), name="nowhere"), DeleteRecordsResponse)
    talk.ask("compacted", delete((0, 3), name="compacted"), DeleteRecordsResponse)
    talk.ask("both", delete((0, 3), name="both"), DeleteRecordsResponse)
    talk.ask("two", delete((0, -1), (1, -1)), DeleteRecordsResponse, unordered=("partitions",))
    talk.ask("nothing", DeleteRecordsRequest(timeout_ms=1000), DeleteRecordsResponse)
    talk.ask("the offsets' topic", delete((0, 0), name="__cluster_metadata"), DeleteRecordsResponse)


@script()
def offset_for_leader_epoch(talk: Talk) -> None:
    talk.create("t", 2)
    talk.quietly(produce("t", batch(4)), ProduceResponse, version=12)

    def ask(
        label: str, epoch: int, current: int = -1, *, partition: int = 0, name: str = "t", replica: int = -1
    ) -> None:
        for version in talk.versions[23]:
            requested = OffsetForLeaderPartition(partition=partition, leader_epoch=epoch, current_leader_epoch=current)
            request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=name, partitions=[requested])])
            if version >= 3:
                request.replica_id = replica
            talk.ask(f"{label} v{version}", request, OffsetForLeaderEpochResponse, version=version)

    for epoch in (0, 1, 5, -1, -2):
        ask(f"epoch {epoch}", epoch)
    for current in (0, 1, -2):
        ask(f"current {current}", 0, current)
    ask("empty log", 0, partition=1)
    ask("empty log, later epoch", 3, partition=1)
    ask("unknown partition", 0, partition=7)
    ask("unknown topic", 0, name="nowhere")
    ask("a follower", 0, replica=1)
    ask("debugging", 0, replica=-2)
    talk.ask("nothing", OffsetForLeaderEpochRequest(replica_id=-1), OffsetForLeaderEpochResponse)
