"""`ottla group` with a share group: members, where it begins, how far it is behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.client.client import Client
from ottla.protocol.messages.k76_share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from ottla.protocol.messages.k91_alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
)

from .live import run
from .test_group_txn import fill

if TYPE_CHECKING:
    from ottla.testing import Cluster


def test_a_share_group_is_listed_described_and_deleted(cluster: Cluster) -> None:
    where = cluster.bootstrap
    fill(cluster, "tasks")
    client = Client(where)
    node = client.coordinator("workers")
    begin = [AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=4) for index in range(2)]
    client.to_node(
        node,
        AlterShareGroupOffsetsRequest(
            group_id="workers", topics=[AlterShareGroupOffsetsRequestTopic(topic_name="tasks", partitions=begin)]
        ),
        AlterShareGroupOffsetsResponse,
    )
    joined = ShareGroupHeartbeatRequest(group_id="workers", member_id="m", subscribed_topic_names=["tasks"])
    assert client.to_node(node, joined, ShareGroupHeartbeatResponse).error_code == 0
    listed = {row["group"]: row for row in run(where, "group", "list", "--type", "share", "--json").rows}
    assert (listed["workers"]["type"], listed["workers"]["state"]) == ("share", "Stable")
    described = run(where, "group", "describe", "workers", "--json").rows[0]
    assert (described["type"], described["assignor"], described["lag"]) == ("share", "simple", 12)
    assert described["members"][0]["assigned"] == [["tasks", 0], ["tasks", 1]]
    assert [(row["offset"], row["end"], row["lag"]) for row in described["partitions"]] == [(4, 10, 6), (4, 10, 6)]
    assert run(where, "group", "delete", "workers").code == 1
    joined.member_epoch = -1
    assert client.to_node(node, joined, ShareGroupHeartbeatResponse).error_code == 0
    assert run(where, "group", "delete", "workers", "--json").rows == [{"group": "workers", "deleted": True}]
    client.close()
