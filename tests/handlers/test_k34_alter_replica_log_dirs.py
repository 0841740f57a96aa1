"""AlterReplicaLogDirs (34): logs move between directories during appends; cordoned directories; errors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.features import CORDONED_LOG_DIRS_FROM, METADATA_VERSION
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k34_alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.k35_describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from ottla.protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.record_schemas.metadata import FeatureLevelRecord
from ottla.records.builder import build_batch
from ottla.records.iterate import Record, iter_all_records
from ottla.storage.names import TopicPartition
from tests.conversations.local_talk import LocalTalk

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE, THERE = "/data/one", "/data/two"


@pytest.fixture(params=[False, True], ids=["", "durable"])
def local(request: pytest.FixtureRequest) -> Iterator[LocalTalk]:
    talk = LocalTalk({"log.dirs": f"{HERE},{THERE}"}, sync=request.param)
    talk.create("moved")
    yield talk
    talk.close()


def ask(local: LocalTalk, path: str, topic: str = "moved", partition: int = 0, version: int | None = None) -> ErrorCode:
    request = AlterReplicaLogDirsRequest(
        dirs=[AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=[partition])])]
    )
    response = local.quietly(request, AlterReplicaLogDirsResponse, version=version)
    assert response.results[0].topic_name == topic
    assert response.results[0].partitions[0].partition_index == partition
    return ErrorCode(response.results[0].partitions[0].error_code)


def write(local: LocalTalk, first: int, count: int, size: int = 100) -> None:
    now = local.world.clock.now_ms()
    for number in range(first, first + count):
        record = Record(0, now, b"%d" % number, bytes(size))
        local.runtime.partitions["moved", 0].append(build_batch([record]))
    local.runtime.partitions["moved", 0].log.flush()
    local.pause()


def keys(local: LocalTalk) -> list[int]:
    log = local.runtime.partitions["moved", 0].log
    keys: list[int] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 20, log.log_end_offset)
        assert piece.records is not None
        with piece.records as records:
            for header, record in iter_all_records(records.read_all()):
                offset = header.next_offset
                if record.offset >= log.log_start_offset:
                    keys.append(int(record.key or b"-1"))
    return keys


def where(local: LocalTalk) -> tuple[list[str], list[str]]:
    """Return the directories with the partition's log, and those with its future log."""
    topic_partition = TopicPartition("moved", 0)
    directories = local.runtime.nodes[1].directories
    return (
        [directory.path for directory in directories if topic_partition in directory.logs],
        [directory.path for directory in directories if topic_partition in directory.future_logs],
    )


def stated(local: LocalTalk) -> str | None:
    """Return the directory of the partition in the metadata."""
    topic = local.runtime.image.topic("moved")
    assert topic is not None
    paths = {known: path for path, known in local.runtime.nodes[1].directory_ids.items()}
    return paths.get(topic.partitions[0].directories[0])


def cordon(local: LocalTalk, value: str) -> ErrorCode:
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=ConfigResourceType.BROKER,
                resource_name="1",
                configs=[AlterableConfig(name="cordoned.log.dirs", config_operation=0, value=value)],
            )
        ]
    )
    response = local.quietly(request, IncrementalAlterConfigsResponse)
    return ErrorCode(response.responses[0].error_code)


def cordoned(local: LocalTalk) -> set[str]:
    """Return the cordoned directories of the node, which must equal those in the metadata."""
    response = local.quietly(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
    notified = {result.log_dir for result in response.results if result.is_cordoned}
    known = local.runtime.image.brokers[1].cordoned_directories
    assert known is not None
    ids = local.runtime.nodes[1].directory_ids
    assert {path for path, value in ids.items() if value in known} == notified
    return notified


def other(local: LocalTalk) -> str:
    return THERE if where(local)[0] == [HERE] else HERE


@pytest.mark.parametrize("version", [1, 2])
def test_moved_log_keeps_all_records(local: LocalTalk, version: int) -> None:
    write(local, 0, 50)
    target = other(local)
    assert ask(local, target, version=version) == ErrorCode.NONE
    local.wait_until(lambda: where(local) == ([target], []), "it did not move")
    assert keys(local) == list(range(50))
    assert stated(local) == target
    write(local, 50, 10)
    assert keys(local) == list(range(60))
    assert local.runtime.partitions["moved", 0].log.high_watermark == 60
    assert ask(local, target) == ErrorCode.NONE
    assert where(local) == ([target], [])
    back = other(local)
    assert ask(local, back) == ErrorCode.NONE
    local.wait_until(lambda: where(local) == ([back], []), "it did not move back")
    assert keys(local) == list(range(60))


def test_large_log_moves_in_pieces_during_appends(local: LocalTalk) -> None:
    write(local, 0, 40, size=100_000)
    target = other(local)
    assert ask(local, target) == ErrorCode.NONE
    assert where(local)[1] == [target]
    described = local.quietly(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
    future = [
        (result.log_dir, partition.offset_lag > 0)
        for result in described.results
        for topic in result.topics
        for partition in topic.partitions
        if partition.is_future_key
    ]
    assert future == [(target, True)]
    write(local, 40, 5)
    local.wait_until(lambda: where(local) == ([target], []), "it did not move")
    assert keys(local) == list(range(45))


def test_moved_log_keeps_log_start_offset(local: LocalTalk) -> None:
    write(local, 0, 20)
    local.runtime.partitions["moved", 0].log.advance_log_start(7)
    target = other(local)
    ask(local, target)
    local.wait_until(lambda: where(local) == ([target], []), "it did not move")
    assert keys(local) == list(range(7, 20))


def test_last_requested_directory_wins(local: LocalTalk) -> None:
    write(local, 0, 40, size=100_000)
    home, target = where(local)[0][0], other(local)
    ask(local, target)
    assert where(local)[1] == [target]
    assert ask(local, home) == ErrorCode.NONE
    local.pause()
    assert where(local) == ([home], [])
    assert keys(local) == list(range(40))


def test_invalid_moves_are_refused(local: LocalTalk) -> None:
    assert ask(local, "/elsewhere") == ErrorCode.LOG_DIR_NOT_FOUND
    assert ask(local, HERE, "unknown") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(local, HERE, "moved", 7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    local.create("n" * 220)
    assert ask(local, HERE, "n" * 220) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_metadata_has_directory_of_new_log(local: LocalTalk) -> None:
    assert [stated(local)] == where(local)[0]
    local.runtime.create_topic("many", 7, 1)
    topic = local.runtime.image.topic("many")
    assert topic is not None
    ids = local.runtime.nodes[1].directory_ids
    for directory in local.runtime.nodes[1].directories:
        here = {log.partition for log in directory.logs if log.topic == "many"}
        assert len(here) in (3, 4)
        assert {topic.partitions[index].directories for index in here} == {(ids[directory.path],)}


def test_cordoned_directory_gets_no_new_logs(local: LocalTalk) -> None:
    write(local, 0, 5)
    home, target = where(local)[0][0], other(local)
    assert cordoned(local) == set()
    assert cordon(local, target) == ErrorCode.NONE
    assert cordoned(local) == {target}
    local.runtime.create_topic("new", 4, 1)
    directories = {directory.path: directory for directory in local.runtime.nodes[1].directories}
    assert not [log for log in directories[target].logs if log.topic == "new"]
    assert ask(local, target) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert cordon(local, "*") == ErrorCode.NONE
    assert cordoned(local) == {home, target}
    with pytest.raises(KafkaError, match="or have all their log directories cordoned") as refused:
        local.runtime.create_topic("refused", 1, 1)
    assert refused.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
    write(local, 5, 5)
    assert keys(local) == list(range(10))
    local.restart()
    assert cordoned(local) == {home, target}
    assert cordon(local, "") == ErrorCode.NONE
    assert cordoned(local) == set()
    assert ask(local, target) == ErrorCode.NONE


@pytest.mark.parametrize("value", ["/elsewhere", f"{HERE},/elsewhere", f"*,{HERE}"])
def test_invalid_cordoned_directories_are_refused(local: LocalTalk, value: str) -> None:
    assert cordon(local, value) == ErrorCode.INVALID_REQUEST
    assert cordoned(local) == set()


def test_cordoned_directories_require_metadata_version() -> None:
    local = LocalTalk({"log.dirs": f"{HERE},{THERE}", "cordoned.log.dirs": HERE})
    assert cordoned(local) == {HERE}
    image = local.runtime.image
    image.features[METADATA_VERSION] = CORDONED_LOG_DIRS_FROM - 1
    image.brokers[1] = replace(image.brokers[1], cordoned_directories=())
    assert cordoned(local) == set()
    local.runtime.change([FeatureLevelRecord(name=METADATA_VERSION, feature_level=CORDONED_LOG_DIRS_FROM)])
    assert cordoned(local) == {HERE}
    local.close()


def test_move_resumes_after_restart() -> None:
    local = LocalTalk({"log.dirs": f"{HERE},{THERE}"})
    local.create("moved")
    write(local, 0, 40, size=100_000)
    target = other(local)
    ask(local, target)
    assert where(local)[1] == [target]
    local.restart()
    local.wait_until(lambda: where(local) == ([target], []), "it did not move")
    assert keys(local) == list(range(40))
    local.close()
