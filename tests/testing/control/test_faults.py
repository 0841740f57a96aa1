"""Node and disk faults, and changes of leaders, coordinators, sessions and logs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.testing import Cluster, VirtualClock
from tests.testing.clients import Delivery, completed, consumer, eventually, producer, read, send, values

if TYPE_CHECKING:
    from collections.abc import Iterator

THREE = {"t": {"partitions": 3, "replication_factor": 3}, "single": {"partitions": 3}}


@pytest.fixture
def three() -> Iterator[Cluster]:
    with Cluster(brokers=3, topics=THREE) as running:
        yield running


def brokers(cluster: Cluster) -> set[int]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    return set(admin.list_topics(timeout=60).brokers)


# Nodes


def test_stopped_nodes_partitions_fail_over(three: Cluster) -> None:
    client = producer(three)
    send(client, "t", "a", 0)
    dead = three.partition("t", 0).leader
    three.stop_node(dead)
    assert three.partition("t", 0).leader not in (dead, -1)
    assert dead not in three.partition("t", 0).in_sync
    assert send(client, "t", "b", 0).error is None
    assert brokers(three) == {1, 2, 3} - {dead}
    three.start_node(dead)
    assert dead in three.partition("t", 0).in_sync
    assert brokers(three) == {1, 2, 3}
    assert values(three, "t", 0) == ["a", "b"]


def test_unreplicated_partition_waits_for_its_node(three: Cluster) -> None:
    client = producer(three)
    node = three.partition("single", 0).leader
    three.stop_node(node)
    assert three.partition("single", 0).leader == -1
    delivery = Delivery(client, "single", "a", 0)
    delivery.poll()
    assert not delivery.done
    three.restart_node(node)
    assert delivery.wait().error is None


def test_group_survives_coordinator_stop(three: Cluster) -> None:
    client = producer(three)
    send(client, "t", "a", 0)
    reader = consumer(three, "t")
    assert read(reader, 1) == ["a"]
    reader.commit(asynchronous=False)
    before = three.coordinator("g")
    three.stop_node(before)
    assert three.coordinator("g") not in (before, -1)
    send(client, "t", "b", 0)
    assert read(reader, 1) == ["b"]
    eventually(lambda: _commits(reader, 2), "a commit to the new coordinator")
    assert three.group("g").offsets["t", 0] == 2
    reader.close()


def _commits(reader: Consumer, offset: int) -> bool:
    """Return whether a commit succeeds; `poll` lets a member rejoin."""
    reader.poll(0.05)
    try:
        reader.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    except KafkaException:
        return False
    return True


def test_paused_node_answers_after_resume(three: Cluster) -> None:
    node = three.partition("single", 0).leader
    three.pause_node(node)
    delivery = Delivery(producer(three, bootstrap_servers=three.nodes()[node % 3 + 1]), "single", "a", 0)
    eventually(lambda: any(connection.node == node for connection in three.connections()))
    assert (delivery.done, values(three, "single")) == (False, [])
    assert not three.requests(node=node), "it reads nothing"
    three.resume_node(node)
    assert delivery.wait().error is None


def test_added_node_can_lead(three: Cluster) -> None:
    node = three.add_node()
    assert node == 4
    three.move_leader("t", 0, node)
    assert three.partition("t", 0).leader == 4
    assert send(producer(three), "t", "a", 0).error is None
    assert brokers(three) == {1, 2, 3, 4}
    assert {seen.node for seen in three.requests("Produce") if seen.request.topic_data} >= {4}


def test_removed_node_is_gone(three: Cluster) -> None:
    client = producer(three)
    send(client, "single", "a", 0)
    node = three.partition("single", 0).leader
    three.remove_node(node)
    assert three.partition("single", 0).leader not in (node, -1)
    assert brokers(three) == {1, 2, 3} - {node}
    assert send(client, "single", "b", 0).error is None
    assert values(three, "single") == ["a", "b"]


def test_last_node_cannot_be_removed() -> None:
    with Cluster() as cluster, pytest.raises(ValueError, match="last node"):
        cluster.remove_node(1)


def test_unknown_node_raises() -> None:
    with Cluster() as cluster, pytest.raises(ValueError, match="no node 7"):
        cluster.stop_node(7)


def test_partitioned_client_reconnects(three: Cluster) -> None:
    node = three.partition("single", 0).leader
    cut = three.partition_client("me", node)
    mine = Delivery(producer(three, client_id="me"), "single", "mine", 0)
    cut.wait()
    assert send(producer(three, client_id="you"), "single", "yours", 0).error is None
    assert not mine.done
    cut.remove()
    assert mine.wait().error is None
    assert values(three, "single") == ["yours", "mine"]


# Disks


def test_slow_disk_delays_synced_produce() -> None:
    with Cluster(topics=["t"], sync=True, clock=VirtualClock()) as cluster:
        client = producer(cluster)
        send(client, "t", "warm")
        cluster.slow_disk(2.0)
        delivery = Delivery(client, "t", "a")
        eventually(lambda: values(cluster, "t") == ["warm", "a"])
        delivery.poll()
        assert not delivery.done
        cluster.advance(2.0)
        assert delivery.wait().error is None
        cluster.slow_disk(0)
        assert send(client, "t", "b").error is None


def test_slow_disk_without_sync_delays_responses() -> None:
    with Cluster(topics=["t"], clock=VirtualClock()) as cluster:
        cluster.slow_disk(2.0, node=1)
        delivery = Delivery(producer(cluster), "t", "a")
        eventually(lambda: values(cluster, "t") == ["a"])
        delivery.poll()
        assert not delivery.done
        cluster.advance(2.0)
        assert delivery.wait().error is None
        cluster.slow_disk(0)
        assert send(producer(cluster), "t", "b").error is None


def test_full_disk_fails_produce() -> None:
    with Cluster(topics=["t"]) as cluster:
        client = producer(cluster, retries=0)
        send(client, "t", "a")
        cluster.full_disk()
        assert send(client, "t", "b").error_name == "KAFKA_STORAGE_ERROR"


# Leaders and coordinators


def test_clients_follow_moved_leader(three: Cluster) -> None:
    client = producer(three)
    reader = consumer(three, "t")
    for node in (1, 2, 3):
        three.move_leader("t", 0, node)
        assert send(client, "t", str(node), 0).error is None
        assert read(reader, 1) == [str(node)]
    moved = [event["leader"] for event in three.events("leader.changed", topic="t", partition=0)]
    assert [leader for leader in moved if leader in (1, 2, 3)][-2:] == [2, 3]
    reader.close()


def test_shuffle_leaders_moves_every_leader(three: Cluster) -> None:
    before = [partition.leader for partition in three.partitions("t")]
    three.shuffle_leaders("t")
    after = [partition.leader for partition in three.partitions("t")]
    assert all(old != new for old, new in zip(before, after, strict=True))
    client = producer(three)
    assert all(send(client, "t", "a", index).error is None for index in range(3))


def test_set_followers(three: Cluster) -> None:
    leader = three.partition("single", 0).leader
    other = leader % 3 + 1
    three.set_followers("single", 0, [other])
    assert three.partition("single", 0).replicas == (leader, other)
    three.stop_node(leader)
    assert three.partition("single", 0).leader == other


def test_group_survives_coordinator_move(three: Cluster) -> None:
    client = producer(three)
    send(client, "t", "a", 0)
    reader = consumer(three, "t")
    read(reader, 1)
    for node in (1, 2, 3):
        three.move_coordinator("g", node)
        assert three.coordinator("g") == node
        eventually(partial(_commits, reader, node), "a commit to the new coordinator")
        assert three.group("g").offsets["t", 0] == node
    assert three.group("g").coordinator == 3
    reader.close()


def test_transaction_survives_coordinator_move(three: Cluster) -> None:
    client = producer(three, transactional_id="x")
    client.init_transactions(60)
    client.begin_transaction()
    client.produce("t", "a", partition=0)
    client.flush(60)
    three.rehash_coordinators()
    assert three.transaction("x").state == "Ongoing"
    client.commit_transaction(60)
    eventually(lambda: three.transaction("x").state == "CompleteCommit")
    assert three.partition("t", 0).last_stable_offset == 2


# Timeouts


def test_expire_transaction_aborts_it(three: Cluster) -> None:
    client = producer(three, transactional_id="x")
    client.init_transactions(60)
    client.begin_transaction()
    client.produce("t", "a", partition=0)
    client.flush(60)
    three.expire_transaction("x")
    with pytest.raises(KafkaException):
        client.commit_transaction(60)
    completed(three, "x")
    assert three.transaction("x").state == "CompleteAbort"
    with pytest.raises(KeyError, match="no open transaction"):
        three.expire_transaction("x")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_expire_member_evicts_it_and_it_rejoins(protocol: str) -> None:
    with Cluster(topics=["t"]) as cluster:
        client = producer(cluster)
        send(client, "t", "a")
        reader = consumer(cluster, "t", group_protocol=protocol)
        read(reader, 1)
        cluster.expire_member("g")
        assert cluster.events("member.left", group="g", reason="session timeout")
        send(client, "t", "b")

        def came_back() -> bool:
            reader.poll(0.05)
            return len(cluster.events("member.joined", group="g")) >= 2

        eventually(came_back)
        reader.close()
        with pytest.raises(KeyError, match="no member"):
            cluster.expire_member("absent")


# Logs


def test_compact_runs_at_once() -> None:
    with Cluster(topics={"t": {"configs": {"cleanup.policy": "compact"}}}) as cluster:
        client = producer(cluster)
        for number in range(10):
            client.produce("t", str(number), key=str(number % 2))
        client.flush(60)
        cluster.compact("t")
        assert values(cluster, "t") == ["8", "9"]


def test_apply_retention_runs_at_once() -> None:
    configs = {"retention.ms": "3600000", "file.delete.delay.ms": "0"}
    with Cluster(topics={"t": {"configs": configs}}) as cluster:
        client = producer(cluster)
        client.produce("t", "old", timestamp=1)
        client.flush(60)
        cluster.roll_segments("t")
        send(client, "t", "new")
        assert cluster.apply_retention("t") == 1
        assert values(cluster, "t") == ["new"]
        assert cluster.partition("t").log_start_offset == 1


# Reset


def test_reset_restores_initial_state(three: Cluster) -> None:
    client = producer(three, transactional_id="x")
    client.init_transactions(60)
    client.begin_transaction()
    client.produce("t", "a", partition=0)
    client.commit_transaction(60)
    reader = consumer(three, "t")
    read(reader, 1)
    reader.commit(asynchronous=False)
    reader.close()  # a remaining member would create the group again
    three.create_topic("more")
    three.on("Produce", times=None).error("INVALID_RECORD")
    three.stop_node(2)
    three.reset()
    assert three.topics() == ["t", "single"]
    assert (values(three, "t"), three.groups(), three.transactions(), sorted(three.nodes())) == ([], [], [], [1, 2, 3])
    assert not three.rules.active
    assert send(producer(three), "t", "b", 0).error is None
