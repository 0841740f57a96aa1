"""`ottla group` with a streams group: tasks, assigned partitions, lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.client.client import Client
from ottla.protocol.messages.k88_streams_group_heartbeat import StreamsGroupHeartbeatResponse
from tests.groups.streams.members import joining, topology

from .live import run
from .test_group_txn import fill

if TYPE_CHECKING:
    from ottla.testing import Cluster


def test_streams_group_is_listed_described_and_deleted(cluster: Cluster) -> None:
    where = cluster.bootstrap
    fill(cluster, "orders")
    client = Client(where)
    node = client.coordinator("counting")
    joined = joining(group="counting", topology=topology("orders"))
    assert client.to_node(node, joined, StreamsGroupHeartbeatResponse).error_code == 0
    listed = {row["group"]: row for row in run(where, "group", "list", "--type", "streams", "--json").rows}
    assert (listed["counting"]["type"], listed["counting"]["state"]) == ("streams", "Stable")
    described = run(where, "group", "describe", "counting", "--json").rows[0]
    assert (described["type"], described["state"], described["epoch"]) == ("streams", "Stable", 2)
    (member,) = described["members"]
    assert member["assigned"] == [["orders", 0], ["orders", 1]]
    assert (member["tasks"], member["subscribed"]) == (
        {"active": ["0_0", "0_1"], "standby": [], "warmup": []},
        ["orders"],
    )
    shown = run(where, "group", "describe", "counting").out
    assert "has active tasks 0_0, 0_1" in shown
    assert run(where, "group", "list", "--state", "NotReady", "--json").rows == []
    assert run(where, "group", "delete", "counting").code == 1
    joined.member_epoch, joined.topology = -1, None
    assert client.to_node(node, joined, StreamsGroupHeartbeatResponse).error_code == 0
    assert run(where, "group", "delete", "counting", "--json").rows == [{"group": "counting", "deleted": True}]
    client.close()
