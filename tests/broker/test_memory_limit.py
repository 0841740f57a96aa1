"""Logs in memory that reach their limit: producers are refused, everything else works."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from ottla.testing import Cluster
from tests.server.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.world.disk_memory import MemoryDisk

MEGABYTE = 1_000_000


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(topics=["t"]) as running:
        yield running


def limit(cluster: Cluster, megabytes: int) -> MemoryDisk:
    assert cluster._running is not None
    disk = cluster._running._world.memory
    assert disk is not None
    disk.limit_bytes = disk.used_bytes + megabytes * MEGABYTE
    return disk


def produce(wire: Wire, topic: str = "t", size: int = MEGABYTE) -> ErrorCode:
    batch = build_batch([Record(0, int(time.time() * 1000), None, bytes(size))])
    data = [PartitionProduceData(index=0, records=batch)]
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=data)])
    return ErrorCode(wire.ask(request, ProduceResponse, 9).responses[0].partition_responses[0].error_code)


def fill(wire: Wire, topic: str = "t") -> int:
    """Produce until the limit is reached; return how many batches were taken."""
    for count in range(1000):
        code = produce(wire, topic)
        if code != ErrorCode.NONE:
            assert code == ErrorCode.KAFKA_STORAGE_ERROR
            return count
    raise AssertionError("the limit was never reached")


def fetched(wire: Wire) -> int:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100 * MEGABYTE)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=100 * MEGABYTE,
        session_epoch=-1,
        topics=[FetchTopic(topic="t", partitions=[partition])],
    )
    response = wire.ask(request, FetchResponse, 11).responses[0].partitions[0]
    assert response.error_code == ErrorCode.NONE
    return len(response.records or b"")


def test_producers_are_refused_at_the_limit_and_reads_work(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    disk = limit(cluster, 10)
    with caplog.at_level(logging.WARNING), Wire(cluster.bootstrap) as wire:
        taken = fill(wire)
        assert 8 <= taken <= 10
        assert produce(wire) == ErrorCode.KAFKA_STORAGE_ERROR
        assert fetched(wire) >= taken * MEGABYTE
        assert disk.limit_bytes is not None
        assert disk.used_bytes <= disk.limit_bytes
    lines = [record.getMessage() for record in caplog.records if "memory limit" in record.getMessage()]
    assert len(lines) == 1
    assert "--memory-limit" in lines[0]
    assert not any("offline" in record.getMessage() for record in caplog.records)


def test_group_offsets_are_committed_when_producers_are_refused(cluster: Cluster) -> None:
    with Wire(cluster.bootstrap) as wire:
        wire.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), FindCoordinatorResponse, 4)
        limit(cluster, 10)
        fill(wire)
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        response = wire.ask(request, OffsetCommitResponse, 8)
        assert response.topics[0].partitions[0].error_code == ErrorCode.NONE


def test_deleted_topic_makes_memory_available_at_once(cluster: Cluster) -> None:
    cluster.create_topic("large")
    limit(cluster, 10)
    with Wire(cluster.bootstrap) as wire:
        fill(wire, "large")
        assert produce(wire) == ErrorCode.KAFKA_STORAGE_ERROR
        wire.ask(DeleteTopicsRequest(topic_names=["large"], timeout_ms=10_000), DeleteTopicsResponse, 5)
        _wait_until_taken(wire)


def test_retention_is_applied_before_producers_are_refused(cluster: Cluster) -> None:
    cluster.create_topic("short", configs={"retention.bytes": str(2 * MEGABYTE), "segment.bytes": "1048576"})
    limit(cluster, 10)
    with Wire(cluster.bootstrap) as wire:
        for _ in range(30):
            _wait_until_taken(wire, "short")


def _wait_until_taken(wire: Wire, topic: str = "t") -> None:
    """Produce again for as long as the limit is reached: retention runs at most once a second."""
    for _ in range(100_000):
        code = produce(wire, topic)
        if code == ErrorCode.NONE:
            return
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
    raise AssertionError("no memory became available")
