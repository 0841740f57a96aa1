"""Virtual time: timers fire in order and exactly when due."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from ottla.testing import Cluster, VirtualClock
from tests.testing.clients import assigned, consumer, eventually, producer, read, send, values

CONFIGS = {"group.consumer.session.timeout.ms": "45000"}


def test_session_expires_exactly_at_timeout() -> None:
    with Cluster(topics=["t"], clock=VirtualClock()) as cluster:
        reader = consumer(cluster, "t", session_timeout_ms=300_000, heartbeat_interval_ms=200_000)
        assigned(cluster, reader)
        cluster.advance(600)
        timeout = cluster.events("timeout", what="session", group="g")[0]
        heard = [
            event["time"]
            for event in cluster.events("request")
            if event["api"] in ("Heartbeat", "SyncGroup") and event["seq"] < timeout["seq"]
        ]
        assert timeout["time"] == heard[-1] + 300_000
        reader.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_polling_between_small_steps_stay(protocol: str) -> None:
    with Cluster(topics=["t"], clock=VirtualClock(), configs=CONFIGS) as cluster:
        own = {"heartbeat_interval_ms": 50, "session_timeout_ms": 45_000} if protocol == "classic" else {}
        reader = consumer(cluster, "t", group_protocol=protocol, **own)
        assigned(cluster, reader)
        api = "Heartbeat" if protocol == "classic" else "ConsumerGroupHeartbeat"
        for _ in range(6):
            cluster.advance(30)
            heard = len(cluster.requests(api))
            eventually(lambda: reader.poll(0.02) or len(cluster.requests(api)) > heard, "a heartbeat")  # noqa: B023
        assert not cluster.events("timeout")
        assert cluster.group("g").state == "Stable"
        reader.close()


def test_due_timers_fire_in_order() -> None:
    """One advance expires a transaction, a member's session and old offsets, each at its time."""
    configs = {"offsets.retention.minutes": "2", "offsets.retention.check.interval.ms": "1000"}
    with Cluster(topics=["t"], clock=VirtualClock(), configs=configs) as cluster:
        client = producer(cluster, transactional_id="x", transaction_timeout_ms=120_000)
        client.init_transactions(60)
        client.begin_transaction()
        client.produce("t", "a")
        client.flush(60)
        reader = consumer(cluster, "t", session_timeout_ms=300_000, heartbeat_interval_ms=200_000)
        assigned(cluster, reader)
        cluster.advance(600)
        events = cluster.events("timeout", "member.left", "group.state", "transaction.state")
        assert [event["time"] for event in events] == sorted(event["time"] for event in events)
        order = [event["what"] for event in events if event["kind"] == "timeout"]
        assert order[:2] == ["transaction", "session"]
        assert cluster.transaction("x").state == "CompleteAbort"
        reader.close()


def test_fetch_waits_by_virtual_time() -> None:
    with Cluster(topics=["t"], clock=VirtualClock()) as cluster:
        reader = consumer(cluster, fetch_wait_max_ms=20_000, socket_timeout_ms=60_000)
        reader.assign([TopicPartition("t", 0, 0)])
        eventually(lambda: reader.poll(0.02) or cluster.requests("Fetch"), "a fetch")
        assert not cluster.events("response", api="Fetch")
        cluster.advance(19.9)
        assert not cluster.events("response", api="Fetch")
        cluster.advance(0.2)
        eventually(lambda: cluster.events("response", api="Fetch"))
        send(producer(cluster), "t", "a")
        assert read(reader, 1) == ["a"]
        reader.close()


def test_retention_follows_virtual_time() -> None:
    configs = {"retention.ms": "60000", "segment.ms": "10000", "file.delete.delay.ms": "0"}
    with Cluster(topics={"t": {"configs": configs}}, clock=VirtualClock()) as cluster:
        client = producer(cluster)
        now = cluster.call(lambda broker: broker.world.clock.now_ms())
        client.produce("t", "old", timestamp=now)
        client.flush(60)
        cluster.roll_segments("t")
        cluster.advance(30)
        assert values(cluster, "t") == ["old"]
        cluster.advance(600)
        assert values(cluster, "t") == []


def test_time_cannot_be_moved_backwards_or_without_clock() -> None:
    with Cluster(clock=VirtualClock()) as cluster, pytest.raises(ValueError, match="backwards"):
        cluster.advance(-1)
    with Cluster() as cluster, pytest.raises(RuntimeError, match="runs in real time"):
        cluster.advance(1)
