"""A log directory written by Apache Kafka, compared with the output of Kafka's tools."""

from __future__ import annotations

import base64
import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.records.batch import check_crc, iter_batches
from ottla.records.iterate import iter_records
from ottla.storage import checkpoints
from ottla.storage.config import LogConfig
from ottla.storage.directory import LogDirectory
from ottla.storage.environment import StorageEnvironment
from ottla.storage.log.indexes import OffsetIndex, TimeIndex, TransactionIndex
from ottla.storage.log.log import Log
from ottla.storage.log.producer_state import ProducerState, decode_snapshot
from ottla.storage.log.reading import MAX_TIMESTAMP
from ottla.storage.names import parse_numbered, parse_partition_dir
from ottla.world.clock import VirtualClock
from ottla.world.disk_memory import MemoryDisk
from ottla.world.random import SeededRandom

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KAFKA = Path(__file__).resolve().parents[1] / "fixtures" / "kafka" / "4.3.1"
DATA = KAFKA / "data"
FACTS: dict[str, Any] = json.loads((KAFKA / "facts.json").read_text())
CAPTURED_MS: int = FACTS["quorum"]["voters"][0]["lastFetchTimestamp"]

FOLDERS = sorted(path.name for path in DATA.iterdir() if path.is_dir() and not path.name.endswith("-delete"))
PARTITIONS = [name for name in FOLDERS if not name.startswith("__cluster_metadata")]
COMPACTED = ("compacted-0", "compacted-transactional-0")


def files(*suffixes: str) -> list[str]:
    """Return the fixture's files with a suffix, by their path in the directory."""
    return sorted(
        str(path.relative_to(DATA))
        for path in DATA.rglob("*")
        if path.suffix in suffixes and path.parent.name in FOLDERS and parse_numbered(path.name) is not None
    )


@cache
def dump(name: str) -> dict[str, list[str]]:
    """Return the output of DumpLogSegments by file."""
    lines_by_file: dict[str, list[str]] = {}
    for line in gzip.decompress((KAFKA / "dumps" / name).read_bytes()).decode().splitlines():
        if line.startswith("Dumping "):
            lines_by_file[line.removeprefix("Dumping ")] = []
        else:
            lines_by_file[next(reversed(lines_by_file))].append(line)
    return lines_by_file


def numbers(line: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", line)]


def base_offset(path: str) -> int:
    file = parse_numbered(path.rpartition("/")[2])
    assert file is not None
    return file.offset


def config_for(topic: str) -> LogConfig:
    entries = FACTS["configs"].get(f"TOPIC:{topic}", {})
    return LogConfig.from_properties({name: entry["value"] for name, entry in entries.items()})


def copy_to_memory(keep: Callable[[str], bool] = lambda name: True) -> tuple[MemoryDisk, VirtualClock]:
    """Copy the fixture's directory to a new disk whose clock is at the time of its capture."""
    clock = VirtualClock(CAPTURED_MS)
    disk = MemoryDisk(clock=clock)
    disk.make_dirs("/data")
    for path in sorted(DATA.rglob("*")):
        name = str(path.relative_to(DATA))
        if path.is_dir():
            disk.make_dirs(f"/data/{name}")
        elif keep(name):
            file = disk.open(f"/data/{name}", create=True)
            file.append(path.read_bytes())
            file.close()
    return disk, clock


def contents(disk: MemoryDisk, folder: str = "/data") -> dict[str, bytes]:
    files_by_name: dict[str, bytes] = {}
    for name in disk.list(folder):
        path = f"{folder}/{name}"
        if disk.is_dir(path):
            files_by_name.update({f"{name}/{inner}": data for inner, data in contents(disk, path).items()})
        else:
            files_by_name[name] = disk.read(path)
    return files_by_name


@pytest.mark.parametrize("path", files(".index"))
def test_offset_index_round_trip_equals_kafkas(path: str) -> None:
    data = (DATA / path).read_bytes()
    index = OffsetIndex.decode(base_offset(path), data, (DATA / path).with_suffix(".log").stat().st_size)
    expected = [tuple(numbers(line)) for line in dump("indexes.txt.gz")[path] if line.startswith("offset:")]
    assert len(index) == len(data) // 8
    if data:  # of an empty index the tool prints an entry of zeros
        assert [(offset, index.lookup(offset)) for offset, _ in expected] == expected
    assert index.encode() == data


@pytest.mark.parametrize("path", files(".timeindex"))
def test_time_index_round_trip_equals_kafkas(path: str) -> None:
    data = (DATA / path).read_bytes()
    index = TimeIndex.decode(base_offset(path), data)
    expected = [tuple(numbers(line)) for line in dump("indexes.txt.gz")[path] if line.startswith("timestamp:")]
    if data:
        assert [(timestamp, index.lookup(timestamp)) for timestamp, _ in expected] == expected
        assert index.last == expected[-1]
    assert index.encode() == data


@pytest.mark.parametrize("path", files(".txnindex"))
def test_transaction_index_round_trip_equals_kafkas(path: str) -> None:
    data = (DATA / path).read_bytes()
    index = TransactionIndex.decode(base_offset(path), data)
    expected = [numbers(line)[1:] for line in dump("indexes.txt.gz")[path]]
    assert [
        [entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset] for entry in index.entries
    ] == expected
    assert index.encode() == data


@pytest.mark.parametrize("path", files(".snapshot"))
def test_producer_snapshot_round_trip_equals_kafkas(path: str) -> None:
    data = (DATA / path).read_bytes()
    state = ProducerState()
    state.load(decode_snapshot(data), base_offset(path), now_ms=0)  # at a time when none has expired
    assert state.encode_snapshot() == data
    lines = [line for line in dump("indexes.txt.gz")[path] if line.startswith("producerId:")]
    assert sorted(entry.producer_id for entry in decode_snapshot(data)) == sorted(numbers(line)[0] for line in lines)


@pytest.mark.parametrize("name", [path.name for path in DATA.iterdir() if path.name.endswith("-checkpoint")])
def test_offset_checkpoint_equals_kafkas(name: str) -> None:
    data = (DATA / name).read_bytes()
    assert checkpoints.encode_offsets(checkpoints.decode_offsets(data)) == data


@pytest.mark.parametrize("folder", FOLDERS)
def test_epochs_and_partition_metadata_equal_kafkas(folder: str) -> None:
    epochs = (DATA / folder / "leader-epoch-checkpoint").read_bytes()
    assert checkpoints.encode_epochs(checkpoints.decode_epochs(epochs)) == epochs
    metadata = (DATA / folder / "partition.metadata").read_bytes()
    topic_id = checkpoints.decode_partition_metadata(metadata)
    assert checkpoints.encode_partition_metadata(topic_id) == metadata
    parsed = parse_partition_dir(folder)
    assert parsed is not None
    topic = FACTS["topics"].get(parsed.topic_partition.topic)
    assert topic is None or topic["topicId"] == str(topic_id)


def test_clean_shutdown_file_equals_kafkas() -> None:
    data = (DATA / ".kafka_cleanshutdown").read_bytes()
    epoch = checkpoints.decode_clean_shutdown(data)
    assert epoch is not None
    assert checkpoints.encode_clean_shutdown(epoch) == data


@pytest.mark.parametrize("path", files(".log"))
def test_batches_equal_kafkas_dump(path: str) -> None:
    name = path.rpartition("-")[0] if path.startswith("__") else "records"
    lines = [line for line in dump(f"{name}.txt.gz")[path] if line.startswith("baseOffset:")]
    data = (DATA / path).read_bytes()
    headers = list(iter_batches(data))
    assert all(check_crc(data, header) for header in headers)
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    assert [
        {
            "baseOffset": str(header.base_offset),
            "lastOffset": str(header.last_offset),
            "count": str(header.record_count),
            "baseSequence": str(header.base_sequence),
            "producerId": str(header.producer_id),
            "producerEpoch": str(header.producer_epoch),
            "partitionLeaderEpoch": str(header.partition_leader_epoch),
            "isTransactional": str(header.is_transactional).lower(),
            "isControl": str(header.is_control).lower(),
            "deleteHorizonMs": "OptionalLong.empty"
            if header.delete_horizon_ms is None
            else f"OptionalLong[{header.delete_horizon_ms}]",
            "position": str(header.position),
            "size": str(header.size),
            "compresscodec": codecs[header.compression],
            "crc": str(header.crc),
        }
        for header in headers
    ] == [
        {
            key: value
            for key, value in re.findall(r"(\w+): (\S+)", line)
            if key not in ("lastSequence", "CreateTime", "LogAppendTime", "magic", "isvalid")
        }
        for line in lines
    ]


def read_log(log: Log) -> Iterator[tuple[dict[str, Any], bool]]:
    """Return every record of a log in the fixture's format, and whether read_committed returns it."""
    offset = log.log_start_offset
    aborted = log.aborted_transactions(offset, log.log_end_offset)
    while offset < log.log_end_offset:
        result = log.read(offset, 1 << 20)
        if result.records is None:
            return
        with result.records as records:
            data = records.read_all()
        for header in iter_batches(data):
            offset = header.next_offset
            if header.is_control:
                continue
            visible = header.last_offset < log.last_stable_offset and not any(
                header.is_transactional
                and entry.producer_id == header.producer_id
                and entry.first_offset <= header.base_offset <= entry.last_offset
                for entry in aborted
            )
            for record in iter_records(data, header):
                if record.offset < log.log_start_offset:
                    continue
                line = {
                    "topic": log.topic_partition.topic,
                    "partition": log.topic_partition.partition,
                    "timestamp": record.timestamp,
                    "key": None if record.key is None else base64.b64encode(record.key).decode(),
                    "value": None if record.value is None else base64.b64encode(record.value).decode(),
                    "headers": [
                        [name, None if value is None else base64.b64encode(value).decode()]
                        for name, value in record.headers
                    ],
                    "offset": record.offset,
                    "timestamp_type": ("CreateTime", "LogAppendTime")[header.timestamp_type],
                    "leader_epoch": header.partition_leader_epoch,
                }
                yield line, visible


def open_directory(keep: Callable[[str], bool] = lambda name: True) -> tuple[LogDirectory, MemoryDisk]:
    disk, clock = copy_to_memory(keep)
    directory = LogDirectory(disk, clock, SeededRandom(1), "/data")
    directory.open()
    directory.load(config_for)
    return directory, disk


def test_records_equal_kafkas_consumer() -> None:
    expected = [json.loads(line) for line in (KAFKA / "records.jsonl").read_text().splitlines()]
    directory, _ = open_directory()
    topics = {line["topic"] for line in expected}
    actual = [
        {**line, "committed": visible}
        for partition in sorted(directory.logs)
        if partition.topic in topics
        for line, visible in read_log(directory.logs[partition])
    ]
    assert actual == expected


@pytest.mark.parametrize("unclean", [False, True], ids=["clean", "unclean"])
def test_offsets_equal_kafkas(unclean: bool) -> None:
    directory, _ = open_directory(lambda name: not (unclean and name == ".kafka_cleanshutdown"))
    facts = FACTS["offsets"]
    assert {f"{partition.topic}:{partition.partition}" for partition in directory.logs} == set(facts["latest"])
    by_time = next(key for key in facts if key.isdigit())
    for partition, log in directory.logs.items():
        name = f"{partition.topic}:{partition.partition}"
        assert log.log_start_offset == facts["earliest"][name]["offset"], name
        assert log.log_end_offset == facts["latest"][name]["offset"], name
        assert log.last_stable_offset == facts["latest_committed"][name]["offset"], name
        for timestamp, response in ((MAX_TIMESTAMP, facts["max_timestamp"]), (int(by_time), facts[by_time])):
            expected = response[name]
            result = log.offset_for_timestamp(timestamp)
            if result is None:
                assert expected["offset"] == -1, name
            else:
                assert (result.timestamp, result.offset) == (expected["timestamp"], expected["offset"]), name


def test_open_and_close_change_no_byte() -> None:
    directory, disk = open_directory()
    for log in directory.logs.values():
        log.load()
    assert [report for report in directory.reports if report.segments_checked] == []
    directory.close(checkpoints.decode_clean_shutdown((DATA / ".kafka_cleanshutdown").read_bytes()) or 0)
    actual = contents(disk)
    expected = {
        name: data
        for name, data in contents(copy_to_memory()[0]).items()
        if not name.endswith(".deleted") and "-delete/" not in name
    }
    actual.pop(".lock", None)
    for partition, log in directory.logs.items():  # as in Kafka, an epoch that has no records yet is forgotten
        name = f"{partition}/leader-epoch-checkpoint"
        epochs = [entry for entry in checkpoints.decode_epochs(expected[name]) if entry[1] < log.log_end_offset]
        expected[name] = checkpoints.encode_epochs(epochs)
    for name in expected:
        if name.endswith("offset-checkpoint"):  # the order of its lines is that of a hash map
            expected[name], actual[name] = (
                b"".join(sorted(tree[name].splitlines(True))) for tree in (expected, actual)
            )
    assert sorted(actual) == sorted(expected)
    assert [name for name in expected if actual[name] != expected[name]] == []


@pytest.mark.parametrize("folder", PARTITIONS)
def test_rebuilt_indexes_and_snapshots_equal_kafkas(folder: str) -> None:
    def kept(name: str) -> bool:
        return not name.endswith((".index", ".timeindex", ".txnindex", ".snapshot", ".deleted"))

    disk, clock = copy_to_memory(kept)
    parsed = parse_partition_dir(folder)
    assert parsed is not None
    partition = parsed.topic_partition
    log = Log.open(
        StorageEnvironment(disk, clock, SeededRandom(1)),
        f"/data/{folder}",
        partition,
        config_for(partition.topic),
        log_start_offset=FACTS["offsets"]["earliest"][f"{partition.topic}:{partition.partition}"]["offset"],
        clean=False,
    )
    log.close()
    rebuilt = contents(disk, f"/data/{folder}")
    # An epoch that has no records yet is forgotten after an unclean stop. What a cleaned log's transactions were can
    # not be known any more, because their data is gone.
    differs = {"leader-epoch-checkpoint"} | ({"00000000000000000000.txnindex"} if folder in COMPACTED else set())
    expected = {
        path.name: path.read_bytes()
        for path in (DATA / folder).iterdir()
        if path.suffix != ".deleted" and path.name not in differs
    }
    rebuilt = {name: data for name, data in rebuilt.items() if name not in differs}
    assert sorted(rebuilt) == sorted(expected)
    assert [name for name in expected if rebuilt[name] != expected[name]] == []


@pytest.mark.parametrize("folder", [name for name in PARTITIONS if name not in COMPACTED])
def test_same_appended_batches_give_same_files(folder: str) -> None:
    parsed = parse_partition_dir(folder)
    assert parsed is not None
    partition = parsed.topic_partition
    clock = VirtualClock(CAPTURED_MS)
    disk = MemoryDisk(clock=clock)
    disk.make_dirs("/data")
    config = config_for(partition.topic)
    log = Log.open(StorageEnvironment(disk, clock, SeededRandom(1)), f"/data/{folder}", partition, config, clean=False)
    for path in sorted((DATA / folder).glob("*.log")):
        data = path.read_bytes()
        for header in iter_batches(data):
            log.append_raw(data[header.position : header.end])
    log.close()
    written = contents(disk, f"/data/{folder}")
    expected = {
        path.name: path.read_bytes()
        for path in (DATA / folder).iterdir()
        if path.name not in ("partition.metadata", "leader-epoch-checkpoint")
    }
    written.pop("leader-epoch-checkpoint", None)
    assert sorted(written) == sorted(expected)
    assert [name for name in expected if written[name] != expected[name]] == []
