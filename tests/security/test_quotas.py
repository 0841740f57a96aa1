"""Quotas: which limit applies, throttle times, and muted connections."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla.client import Client
from ottla.client.access import alter_quotas, list_quotas
from ottla.protocol.messages.k00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from ottla.security.quotas import FETCH, PRODUCE, REQUEST, Quotas, Rate
from ottla.testing import Cluster, VirtualClock
from tests.security.clusters import USERS, client, secured
from tests.testing.clients import eventually


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def entity(**parts: str | None) -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted((key.replace("_", "-"), value) for key, value in parts.items()))


def quotas(limits: dict[Any, float], clock: Time, key: str = PRODUCE) -> Quotas:
    return Quotas(lambda: {who: {key: limit} for who, limit in limits.items()}, clock)


# Rates


def test_first_burst_is_averaged_over_the_window() -> None:
    rate = Rate(11, 1.0)
    rate.record(1000, 100.0)
    assert rate.measure(100.0) == 100.0, "ten seconds, of which none has passed"
    assert rate.measure(105.0) == pytest.approx(100.0)
    assert rate.measure(111.1) == 0.0, "forgotten"


def test_throttle_time_brings_rate_back_to_limit() -> None:
    clock = Time()
    limited = quotas({entity(user="alice"): 100.0}, clock)
    assert limited.wait(PRODUCE, "alice", "", 1000) == 0.0
    wait = limited.wait(PRODUCE, "alice", "", 500)
    assert wait == pytest.approx(5.0), "1500 bytes at 100 a second are 15 seconds, ten of which are the window"


def test_throttle_time_can_be_bounded() -> None:
    clock = Time()
    limited = quotas({entity(user="alice"): 1.0}, clock, REQUEST)
    assert limited.wait(REQUEST, "alice", "", 10_000, most=1.0) == 1.0


def test_unsent_bytes_are_not_counted() -> None:
    clock = Time()
    limited = quotas({entity(user="alice"): 100.0}, clock, FETCH)
    assert limited.wait(FETCH, "alice", "", 2000) > 0
    limited.take_back(FETCH, "alice", "", 2000)
    assert limited.wait(FETCH, "alice", "", 900) == 0.0


# Which limit applies


@pytest.mark.parametrize(
    "stronger",
    range(8),
    ids=["user+client", "user+any client", "user", "any user+client", "any+any", "any user", "client", "any client"],
)
def test_most_specific_quota_applies(stronger: int) -> None:
    order = [
        entity(user="alice", client_id="app"),
        entity(user="alice", client_id=None),
        entity(user="alice"),
        entity(user=None, client_id="app"),
        entity(user=None, client_id=None),
        entity(user=None),
        entity(client_id="app"),
        entity(client_id=None),
    ]
    limits = {who: 100.0 * (number + 1) for number, who in enumerate(order) if number >= stronger}
    limited = quotas(limits, Time())
    assert limited.most_in_window(PRODUCE, "alice", "app") == 1000.0 * (stronger + 1)


def test_quota_is_shared_by_its_entity() -> None:
    clock = Time()
    by_user = quotas({entity(user="alice"): 100.0}, clock)
    assert by_user.wait(PRODUCE, "alice", "one", 1000) == 0
    assert by_user.wait(PRODUCE, "alice", "two", 100) > 0, "alice's, whatever the client"
    by_both = quotas({entity(user="alice", client_id=None): 100.0}, clock)
    assert by_both.wait(PRODUCE, "alice", "one", 1000) == 0
    assert by_both.wait(PRODUCE, "alice", "two", 1000) == 0, "each client's own"
    assert by_both.wait(PRODUCE, "bob", "one", 10_000) == 0, "bob has no limit"


def test_limits_follow_changed_quotas() -> None:
    limits: dict[Any, dict[str, float]] = {}
    limited = Quotas(lambda: limits, Time())
    assert not limited.active
    assert limited.wait(PRODUCE, "alice", "", 10_000) == 0
    limits[entity(user="alice")] = {PRODUCE: 1.0}
    limited.quotas_changed()
    assert limited.active
    assert limited.wait(PRODUCE, "alice", "", 10_000) > 0


def test_connection_rate_is_limited_per_address() -> None:
    clock = Time()
    limited = Quotas(
        lambda: {
            entity(ip="10.0.0.1"): {"connection_creation_rate": 1.0},
            entity(ip=None): {"connection_creation_rate": 100.0},
        },
        clock,
    )
    assert [limited.connection_wait("10.0.0.1") > 0 for _ in range(12)] == [False] * 10 + [True] * 2
    assert limited.connection_wait("10.0.0.2") == 0


# Over the wire


def produce(connection: Any, size: int) -> ProduceResponse:
    batch = bytes(build_batch([Record(0, int(time.time() * 1000), None, bytes(size), ())]))
    request = ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        topic_data=[TopicProduceData(name="orders", partition_data=[PartitionProduceData(index=0, records=batch)])],
    )
    return connection.send(request, ProduceResponse, version=9)


def fetch(connection: Any) -> FetchResponse:
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=50_000_000,
        session_epoch=-1,
        topics=[
            FetchTopic(
                topic="orders",
                partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50_000_000)],
            )
        ],
    )
    return connection.send(request, FetchResponse, version=11)


def test_producer_over_quota_is_throttled_and_muted() -> None:
    clock = VirtualClock()
    with secured(clock=clock) as cluster, client(cluster, "admin") as admin:
        alter_quotas(admin, {"user": "admin"}, {"producer_byte_rate": 1000.0})
        connection = admin.node(1)
        assert produce(connection, 9000).throttle_time_ms == 0
        throttle_time_ms = produce(connection, 9000).throttle_time_ms
        assert 7_000 < throttle_time_ms < 10_000
        connection._timeout = 0.5
        with pytest.raises(Exception, match="answer"):
            produce(connection, 10)  # the broker does not read it
        cluster.advance(throttle_time_ms / 1000 + 12)
        connection._timeout = 60
        assert produce(connection, 10).throttle_time_ms == 0


def test_consumer_over_quota_gets_empty_response() -> None:
    with secured(clock=VirtualClock()) as cluster, client(cluster, "admin") as admin:
        connection = admin.node(1)
        for _ in range(3):
            produce(connection, 50_000)
        assert fetch(connection).throttle_time_ms == 0
        alter_quotas(admin, {"user": "admin"}, {"consumer_byte_rate": 6000.0})
        sizes, waits = [], []
        for _ in range(3):
            with Client(cluster.bootstrap, timeout=60, security=admin._security) as fresh:  # not the muted one
                response = fetch(fresh.node(1))
            waits.append(response.throttle_time_ms)
            sizes.append(sum(len(p.records or b"") for t in response.responses for p in t.partitions))
        assert sizes[0] > 0
        assert waits[0] == 0
        assert (sizes[1], waits[1] > 0) == (0, True)


def test_connection_over_rate_is_held_and_closed() -> None:
    clock = VirtualClock()
    with Cluster(clock=clock) as cluster, Client(cluster.bootstrap, timeout=60) as admin:
        alter_quotas(admin, {"ip": "127.0.0.1"}, {"connection_creation_rate": 1.0})
        host, _, port = cluster.bootstrap.rpartition(":")
        made = [socket.create_connection((host, int(port)), timeout=60) for _ in range(12)]
        try:
            eventually(lambda: len(cluster.connections()) == 13, "all of them, and the admin's")
            late = made[-1]
            late.settimeout(1)
            late.sendall(bytes.fromhex("0000001000120000000000010006") + b"nobody")
            with pytest.raises(TimeoutError):
                late.recv(1)
            for _ in range(30):
                cluster.advance(5)
                try:
                    assert late.recv(1) == b""
                    break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
            else:
                pytest.fail("it was not closed")
        finally:
            for connection in made:
                connection.close()


def test_request_time_quota_throttles_client() -> None:
    with secured() as cluster, client(cluster, "admin") as admin:
        alter_quotas(admin, {"user": "admin"}, {"request_percentage": 0.0001})
        waits = []
        for _ in range(3):
            with client(cluster, "admin") as fresh:
                waits.append(fresh.refresh(None).throttle_time_ms)
        assert any(waits)
        assert max(waits) <= 1000
        assert list_quotas(admin, {"user": "admin"}) == {entity(user="admin"): {"request_percentage": 0.0001}}


def test_confluent_kafka_reports_throttling() -> None:
    with secured() as cluster, client(cluster, "admin") as admin:
        alter_quotas(admin, {"client-id": "slow"}, {"producer_byte_rate": 4_000.0})
        heard: list[float] = []
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "admin",
                "sasl.password": USERS["admin"],
                "client.id": "slow",
                "throttle_cb": lambda event: heard.append(event.throttle_time),
            }
        )
        for _ in range(30):
            producer.produce("orders", bytes(50_000))
            producer.flush(60)
            if heard:
                break
        producer.poll(0.1)
        assert heard
        assert max(heard) > 0
