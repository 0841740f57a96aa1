"""A disk that fails under a running node: error responses, when the node stops, and a clean stop afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from ottla.storage.names import TopicPartition
from ottla.world.disk_faulty import FaultyDisk
from tests.conversations.local_talk import LocalTalk

if TYPE_CHECKING:
    from ottla.storage.directory import LogDirectory


def write(local: LocalTalk, partition: int, size: int = 10) -> ErrorCode:
    batch = bytes(build_batch([Record(0, local.world.clock.now_ms(), None, bytes(size))]))
    data = [PartitionProduceData(index=partition, records=batch)]
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)])
    response = local.quietly(request, ProduceResponse, version=12)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


def home(local: LocalTalk, partition: int) -> LogDirectory:
    directories = local.runtime.nodes[1].directories
    return next(directory for directory in directories if TopicPartition("t", partition) in directory.logs)


@pytest.mark.parametrize("sync", [False, True])
def test_full_disk_fails_produce_and_stops_node(sync: bool) -> None:
    local = LocalTalk({}, sync=sync)
    local.create("t")
    assert write(local, 0) is ErrorCode.NONE
    disk = local.world.disk
    assert isinstance(disk, FaultyDisk)
    disk.fill_after(100)
    notified: list[bool] = []
    local.runtime.storage_lost.then = lambda: notified.append(True)
    assert write(local, 0, 1000) is ErrorCode.KAFKA_STORAGE_ERROR
    assert write(local, 0) is ErrorCode.KAFKA_STORAGE_ERROR
    assert notified == [True]
    local.close()


def test_failed_directory_leaves_the_other_working() -> None:
    local = LocalTalk({"log.dirs": "/data/one,/data/two"})
    local.create("t", 2)
    lost = next(index for index in (0, 1) if home(local, index).path == "/data/two")
    home(local, lost).env.fail(OSError(5, "Input/output error"))
    assert write(local, lost) is ErrorCode.KAFKA_STORAGE_ERROR
    assert write(local, 1 - lost) is ErrorCode.NONE
    local.create("later", 2)
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)
    assert [response.error_code for response in local.quietly(request, DeleteTopicsResponse).responses] == [
        ErrorCode.NONE
    ]
    local.create("t", 2)
    assert [write(local, index) for index in (0, 1)] == [ErrorCode.NONE] * 2
    assert not local.runtime.storage_lost.is_set
    local.restart()
    strays = [name for directory in local.runtime.nodes[1].directories for name in directory.strays]
    assert [name.partition(".")[0] for name in strays] == [f"t-{lost}"]
    home(local, 0).env.fail(OSError(5, "Input/output error"))
    assert local.runtime.storage_lost.is_set
    local.close()


def test_sync_keeps_topic_and_records_after_power_loss() -> None:
    local = LocalTalk({}, sync=True)
    local.create("t")
    assert write(local, 0) is ErrorCode.NONE
    world = local.world
    world.disk.crash()
    world.clock._timers.clear()
    world.disk = world.disk.reopen()
    local.open()
    assert "t" in local.runtime.image.topic_ids
    assert local.runtime.partitions["t", 0].log.log_end_offset == 1
    local.close()


def test_failed_close_of_a_directory_does_not_affect_others() -> None:
    local = LocalTalk({"log.dirs": "/data/one,/data/two"})
    local.create("t", 2)
    assert [write(local, index) for index in (0, 1)] == [ErrorCode.NONE] * 2
    lost = next(index for index in (0, 1) if home(local, index).path == "/data/two")
    disk = local.world.disk
    disk.fail("sync", f"/data/two/t-{lost}/*")
    local.close()
    marks = [disk.exists(f"/data/{name}/.kafka_cleanshutdown") for name in ("one", "two")]
    assert marks == [True, False]
