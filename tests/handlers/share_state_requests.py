"""Requests for the state of the share partition of group `group` and partition 0 of `news`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.messages import k83_initialize_share_group_state as k83
from ottla.protocol.messages import k84_read_share_group_state as k84
from ottla.protocol.messages import k85_write_share_group_state as k85
from ottla.protocol.messages import k86_delete_share_group_state as k86
from ottla.protocol.messages import k87_read_share_group_state_summary as k87

if TYPE_CHECKING:
    from ottla.protocol.uuids import Uuid

    from .transactional_broker import TransactionalBroker

GROUP = "group"
ACKNOWLEDGED = 2


class ShareStateRequests:
    """Sends the share state APIs to a broker; `topic_id` and `partition` may name another partition."""

    def __init__(self, broker: TransactionalBroker) -> None:
        self.broker = broker
        self.topic_id: Uuid = broker.topic_id
        self.partition = 0

    def initialize(self, state_epoch: int = 1, start_offset: int = 5) -> k83.PartitionResult:
        data = k83.PartitionData(partition=self.partition, state_epoch=state_epoch, start_offset=start_offset)
        topics = [k83.InitializeStateData(topic_id=self.topic_id, partitions=[data])]
        request = k83.InitializeShareGroupStateRequest(group_id=GROUP, topics=topics)
        return self.broker.quietly(request, k83.InitializeShareGroupStateResponse).results[0].partitions[0]

    def read(self, leader_epoch: int = 0) -> k84.PartitionResult:
        data = k84.PartitionData(partition=self.partition, leader_epoch=leader_epoch)
        topics = [k84.ReadStateData(topic_id=self.topic_id, partitions=[data])]
        request = k84.ReadShareGroupStateRequest(group_id=GROUP, topics=topics)
        return self.broker.quietly(request, k84.ReadShareGroupStateResponse).results[0].partitions[0]

    def write(
        self,
        first: int,
        last: int,
        *,
        state_epoch: int = 1,
        leader_epoch: int = 0,
        start_offset: int = -1,
        complete: int = 0,
        version: int = 1,
    ) -> k85.PartitionResult:
        batch = k85.StateBatch(first_offset=first, last_offset=last, delivery_state=ACKNOWLEDGED, delivery_count=1)
        data = k85.PartitionData(
            partition=self.partition,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=complete,
            state_batches=[batch],
        )
        topics = [k85.WriteStateData(topic_id=self.topic_id, partitions=[data])]
        request = k85.WriteShareGroupStateRequest(group_id=GROUP, topics=topics)
        response = self.broker.quietly(request, k85.WriteShareGroupStateResponse, version=version)
        return response.results[0].partitions[0]

    def delete(self) -> k86.PartitionResult:
        data = k86.PartitionData(partition=self.partition)
        topics = [k86.DeleteStateData(topic_id=self.topic_id, partitions=[data])]
        request = k86.DeleteShareGroupStateRequest(group_id=GROUP, topics=topics)
        return self.broker.quietly(request, k86.DeleteShareGroupStateResponse).results[0].partitions[0]

    def summary(self, version: int = 1) -> k87.PartitionResult:
        data = k87.PartitionData(partition=self.partition, leader_epoch=0)
        topics = [k87.ReadStateSummaryData(topic_id=self.topic_id, partitions=[data])]
        request = k87.ReadShareGroupStateSummaryRequest(group_id=GROUP, topics=topics)
        response = self.broker.quietly(request, k87.ReadShareGroupStateSummaryResponse, version=version)
        return response.results[0].partitions[0]
