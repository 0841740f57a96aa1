"""Members of share groups made of single requests, and what is kept of their partitions, asked for piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.protocol.messages import k76_share_group_heartbeat as k76
from ottla.protocol.messages import k77_share_group_describe as k77
from ottla.protocol.messages import k83_initialize_share_group_state as k83
from ottla.protocol.messages import k84_read_share_group_state as k84
from ottla.protocol.messages import k85_write_share_group_state as k85
from ottla.protocol.messages import k86_delete_share_group_state as k86
from ottla.protocol.messages import k87_read_share_group_state_summary as k87
from ottla.protocol.messages import k90_describe_share_group_offsets as k90
from ottla.protocol.messages import k91_alter_share_group_offsets as k91
from ottla.protocol.messages import k92_delete_share_group_offsets as k92
from ottla.protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.record_schemas.group import ShareGroupMetadataValue
from ottla.records.batch import iter_batches
from ottla.records.iterate import iter_records
from ottla.shares.records import decode_record
from tests.conversations.groups.talk import GroupTalk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

StateBatch = tuple[int, int, int, int]


class ShareGroupTalk(GroupTalk):
    """One broker's half of a conversation about share groups."""

    unordered = GroupTalk.unordered | {
        "initializing_topics",
        "initialized_topics",
        "deleting_topics",
        "responses",
        "partitions",
    }
    times = GroupTalk.times | {"create_timestamp", "write_timestamp"}

    def __init__(self, *parts: Any, share_logs: Callable[[], Iterable[bytes]]) -> None:
        super().__init__(*parts)
        self._share_logs = share_logs
        self.counts_partitions = False

    def begin(self) -> None:
        """Begin a conversation."""
        super().begin()
        self.counts_partitions = False

    def tree(self, value: Any, version: int, name: str = "") -> Any:
        """A message as a tree; how many partitions, where a hash of a topic's id decides which."""
        if self.counts_partitions and name == "partitions" and all(isinstance(element, int) for element in value):
            return len(value)
        return super().tree(value, version, name)

    def find_coordinators(self) -> None:
        """Have the coordinators' topics made, that of share state too."""
        super().find_coordinators()
        request = FindCoordinatorRequest(key_type=2, coordinator_keys=["g:AAAAAAAAAAAAAAAAAAAAAA:0"])
        self.patiently(lambda: self.talk.quietly(request, FindCoordinatorResponse))

    # Members

    def share(
        self,
        group: str,
        member: str,
        by: int = 0,
        *,
        epoch: int | None = None,
        topics: Sequence[str] | None = None,
        rack: str | None = None,
    ) -> k76.ShareGroupHeartbeatResponse:
        """ShareGroupHeartbeat, in the member's epoch (or off by some), or in any other."""
        request = k76.ShareGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=self.epoch(group, member) + by if epoch is None else epoch,
            rack_id=rack,
            subscribed_topic_names=None if topics is None else list(topics),
        )
        response = self.ask(request, k76.ShareGroupHeartbeatResponse)
        if response.error_code == 0 and response.member_epoch > 0:
            self._epochs[group, member] = response.member_epoch
        return response

    def share_join(self, group: str, member: str, *topics: str) -> None:
        """Join, and wait until the state of each partition is initialized."""
        self.share(group, member, epoch=0, topics=topics)
        for topic in topics:
            self.until_initialized(group, topic, 4)

    def until_initialized(self, group: str, topic: str, partitions: int) -> None:
        """Wait until so many partitions of a topic have state."""
        expected = k90.DescribeShareGroupOffsetsRequest(
            groups=[k90.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)]
        )

        def initialized() -> bool:
            response = self.patiently(lambda: self.talk.quietly(expected, k90.DescribeShareGroupOffsetsResponse))
            return any(
                entry.topic_name == topic and len(entry.partitions) == partitions
                for described in response.groups
                for entry in described.topics
            )

        self.talk.wait_until(initialized, f"{group} has no state of {topic}")

    def describe_shares(self, *groups: str) -> None:
        """ShareGroupDescribe."""
        self.ask(k77.ShareGroupDescribeRequest(group_ids=list(groups)), k77.ShareGroupDescribeResponse)

    # Offsets

    def share_offsets(
        self, group: str, topic_partitions: Mapping[str, Sequence[int]] | None, *, version: int = 1
    ) -> None:
        """DescribeShareGroupOffsets, of some places or of all."""
        topics = None
        if topic_partitions is not None:
            topics = [
                k90.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=list(indexes))
                for name, indexes in topic_partitions.items()
            ]
        expected = k90.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=topics)
        self.ask(
            k90.DescribeShareGroupOffsetsRequest(groups=[expected]), k90.DescribeShareGroupOffsetsResponse, version
        )

    def alter_share_offsets(self, group: str, topic_partitions: Mapping[str, Mapping[int, int]]) -> None:
        """AlterShareGroupOffsets."""
        topics = [
            k91.AlterShareGroupOffsetsRequestTopic(
                topic_name=name,
                partitions=[
                    k91.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
                    for index, offset in offsets.items()
                ],
            )
            for name, offsets in topic_partitions.items()
        ]
        request = k91.AlterShareGroupOffsetsRequest(group_id=group, topics=topics)
        self.ask(request, k91.AlterShareGroupOffsetsResponse)

    def delete_share_offsets(self, group: str, *topics: str) -> None:
        """DeleteShareGroupOffsets."""
        request = k92.DeleteShareGroupOffsetsRequest(
            group_id=group, topics=[k92.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
        )
        self.ask(request, k92.DeleteShareGroupOffsetsResponse)

    # What is kept

    def initialize_state(self, group: str, topic: str, partition: int, state_epoch: int, start_offset: int) -> None:
        """InitializeShareGroupState."""
        data = k83.PartitionData(partition=partition, state_epoch=state_epoch, start_offset=start_offset)
        request = k83.InitializeShareGroupStateRequest(
            group_id=group, topics=[k83.InitializeStateData(topic_id=self.topic_id(topic), partitions=[data])]
        )
        self.ask(request, k83.InitializeShareGroupStateResponse)

    def read_state(self, group: str, topic: str, partition: int, leader_epoch: int) -> None:
        """ReadShareGroupState."""
        data = k84.PartitionData(partition=partition, leader_epoch=leader_epoch)
        request = k84.ReadShareGroupStateRequest(
            group_id=group, topics=[k84.ReadStateData(topic_id=self.topic_id(topic), partitions=[data])]
        )
        self.ask(request, k84.ReadShareGroupStateResponse)

    def write_state(
        self,
        group: str,
        topic: str,
        partition: int,
        *batches: StateBatch,
        state_epoch: int = 0,
        leader_epoch: int = 0,
        start_offset: int = 0,
        complete: int = 0,
        version: int = 1,
    ) -> None:
        """WriteShareGroupState."""
        data = k85.PartitionData(
            partition=partition,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=complete if version else -1,
            state_batches=[
                k85.StateBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
                for first, last, state, count in batches
            ],
        )
        request = k85.WriteShareGroupStateRequest(
            group_id=group, topics=[k85.WriteStateData(topic_id=self.topic_id(topic), partitions=[data])]
        )
        self.ask(request, k85.WriteShareGroupStateResponse, version)

    def delete_state(self, group: str, topic: str, *partitions: int) -> None:
        """DeleteShareGroupState."""
        data = [k86.PartitionData(partition=partition) for partition in partitions]
        request = k86.DeleteShareGroupStateRequest(
            group_id=group, topics=[k86.DeleteStateData(topic_id=self.topic_id(topic), partitions=data)]
        )
        self.ask(request, k86.DeleteShareGroupStateResponse)

    def state_summary(self, group: str, topic: str, *partitions: int, version: int = 1) -> None:
        """ReadShareGroupStateSummary."""
        data = [k87.PartitionData(partition=partition, leader_epoch=0) for partition in partitions]
        request = k87.ReadShareGroupStateSummaryRequest(
            group_id=group, topics=[k87.ReadStateSummaryData(topic_id=self.topic_id(topic), partitions=data)]
        )
        self.ask(request, k87.ReadShareGroupStateSummaryResponse, version)

    # What it left behind

    def note_records(self, prefix: str) -> None:
        """Write down what both logs hold of groups whose names begin so."""
        super().note_records(prefix)
        for data in self._share_logs():
            for header in iter_batches(data):
                for record in [] if header.is_control else iter_records(data, header):
                    self._note_state(prefix, record.key, record.value)

    def _note_record(self, prefix: str, key: bytes | None, value: bytes | None) -> None:
        from ottla.groups.records import decode_record as decode_group_record

        decoded = decode_group_record(key, value)
        if decoded is not None and isinstance(decoded.value, ShareGroupMetadataValue) and decoded.value.metadata_hash:
            decoded.value.metadata_hash = 1  # of topic ids, which are made up
            key, value = decoded.encode()
        super()._note_record(prefix, key, value)

    def _note_state(self, prefix: str, key: bytes | None, value: bytes | None) -> None:
        decoded = decode_record(key, value)
        assert decoded is not None
        if not decoded.key.group_id.startswith(prefix):
            return
        topic = self._topics.get(decoded.key.topic_id, "an unknown topic")
        topic_partition = f"state of {decoded.key.group_id} in {topic}-{decoded.key.partition}"
        heartbeat = ["tombstone"]
        if decoded.value is not None:
            heartbeat = [type(decoded.value).__name__, self.tree(decoded.value, 0)]
        self.transcript.setdefault(topic_partition, []).append(heartbeat)
