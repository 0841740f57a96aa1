"""`ottla group` with a share group: members, start offsets, lag."""

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


def begins(where: str, group: str) -> list[int]:
    """Return the start offsets of a share group by partition."""
    return [row["offset"] for row in run(where, "group", "describe", group, "--json").rows[0]["partitions"]]


def test_share_group_offsets_are_reset_and_deleted(cluster: Cluster) -> None:
    where = cluster.bootstrap
    fill(cluster, "chores")
    reset = ("group", "reset-offsets", "helpers", "--share", "-t", "chores")
    # A group that does not exist is created, but only with --execute.
    shown = run(where, *reset, "--to-latest", "--json")
    assert [(row["old"], row["new"], row["done"]) for row in shown.rows] == [(None, 10, False)] * 2
    assert "nothing was changed" in shown.err
    assert run(where, "group", "describe", "helpers").code == 4
    assert run(where, *reset, "--to-latest", "--execute").code == 0
    assert begins(where, "helpers") == [10, 10]
    # The type of an existing group is detected.
    again = ("group", "reset-offsets", "helpers")
    rows = run(where, *again, "--all-topics", "--to-earliest", "--execute", "--json").rows
    assert [(row["old"], row["new"]) for row in rows] == [(10, 0), (10, 0)]
    assert run(where, *again, "-t", "chores:1", "--to-time", "1971-01-01", "--execute").code == 0
    assert begins(where, "helpers") == [0, 0]
    assert run(where, *again, "-t", "chores:1", "--to-offset", 7, "--execute").code == 0
    assert run(where, *again, "-t", "chores:1", "--shift-by", -2, "--execute").code == 0
    assert begins(where, "helpers") == [0, 5]
    # A group with members is refused.
    client = Client(where)
    node = client.coordinator("helpers")
    member = ShareGroupHeartbeatRequest(group_id="helpers", member_id="m", subscribed_topic_names=["chores"])
    assert client.to_node(node, member, ShareGroupHeartbeatResponse).error_code == 0
    refused = run(where, *again, "--all-topics", "--to-latest", "--execute")
    assert (refused.code, "with 1 member" in refused.err) == (1, True)
    assert run(where, "group", "delete", "helpers", "--offsets-of", "chores").code == 1
    member.member_epoch = -1
    assert client.to_node(node, member, ShareGroupHeartbeatResponse).error_code == 0
    client.close()
    assert begins(where, "helpers") == [0, 5]
    assert run(where, "group", "delete", "helpers", "--offsets-of", "chores:1").code == 2
    deleted = run(where, "group", "delete", "helpers", "--offsets-of", "chores", "--json").rows
    assert deleted == [{"group": "helpers", "deleted_offsets": [["chores", 0], ["chores", 1]]}]
    assert begins(where, "helpers") == []
    assert run(where, "group", "delete", "nobody", "--offsets-of", "chores").code == 4
    # A group of another type is refused.
    assert run(where, "group", "reset-offsets", "plain", "-t", "chores", "--to-earliest", "--execute").code == 0
    assert run(where, "group", "reset-offsets", "plain", "--share", "-t", "chores", "--to-latest").code == 1


def test_share_group_is_listed_described_and_deleted(cluster: Cluster) -> None:
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
