"""A stopped log directory in memory, seeded damage to its files and records, and the checks that a restart must pass.

    python -m tests.broker.hostile_directory --seeds 5000 --first-seed 1000

The broker starts, or refuses with one sentence that names a file and a command; after that command it starts. Records
of undamaged partitions are all there, and every loss is in the log.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import re
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from ottla.broker.start import StartError, close_cluster, open_cluster
from ottla.cluster.metadata.repair import MetadataChoice, repair_metadata
from ottla.cluster.server_config import Endpoint, parse_server_properties
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import k08_offset_commit as k08
from ottla.protocol.messages import k22_init_producer_id as k22
from ottla.records.batch import ATTRIBUTES_POSITION, HEADER_SIZE, check_crc, iter_batches
from ottla.records.control import ControlType
from ottla.records.crc import crc32c
from ottla.records.errors import InvalidRecords
from ottla.storage.check.repair import repair
from ottla.storage.environment import StorageEnvironment
from ottla.storage.names import METADATA_TOPIC, TopicPartition
from ottla.world.clock import VirtualClock
from ottla.world.disk import write_atomic
from ottla.world.disk_memory import MemoryDisk
from ottla.world.random import SeededRandom
from ottla.world.world import World
from tests.conversations.local_talk import LocalTalk
from tests.storage.batches import batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.broker.runtime import BrokerRuntime
    from ottla.storage.log.log import Log
    from ottla.world.disk import Disk

Files = dict[str, bytes]
Records = dict[int, bytes]

SETTINGS = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}
CONFIG = parse_server_properties(
    "node.id=1\nlog.dirs=/data\nlisteners=PLAINTEXT://127.0.0.1:9092\n", "server.properties", SETTINGS
)
KINDS = ("delete", "empty", "truncate", "flip", "append", "swap", "duplicate", "record")
COMMAND = re.compile(r"`ottla log repair (\S+?)(?: --metadata (skip|truncate))?`")
OTHER_NODE = re.compile(r"meta\.properties: the directory belongs to node .* or correct node\.id in that file")
COMPACTED = ("compacted", "__consumer_offsets", "__transaction_state")
METADATA_FOLDER = f"/data/{METADATA_TOPIC}-0/"


@dataclass
class Stopped:
    """The files of a stopped broker, and the records that each partition held."""

    files: Files
    records: dict[TopicPartition, Records]


@cache
def stopped(clean: bool) -> Stopped:
    """Build the directory once: several segments, aborted transactions, deleted and compacted records, a group."""
    talk = LocalTalk(SETTINGS)
    talk.create("plain", 2)
    talk.create("transactional", 1)
    talk.runtime.create_topic("compacted", 1, 1, {"cleanup.policy": "compact"})
    _commit_offset(talk)
    talk.quietly(
        k22.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000), k22.InitProducerIdResponse
    )
    for round_number in range(4):
        for partition in talk.runtime.partitions.values():
            if partition.topic.startswith("__"):
                continue
            _append(partition.log, round_number)
            if round_number < 3:
                partition.log.roll()
        if round_number == 1:
            talk.runtime.metadata.write_snapshot()
            talk.create("late", 1)
    talk.runtime.partitions["plain", 1].log.advance_log_start(3)
    talk.world.clock.advance(120)
    records = {
        TopicPartition(*name): read_records(partition.log) for name, partition in talk.runtime.partitions.items()
    }
    if clean:
        close_cluster(talk.runtime)
    else:
        for directory in talk.runtime.nodes[1].directories:
            directory.checkpoint()
            directory.abandon()
    return Stopped(dict(_walk(talk.world.disk, "/data")), records)


def _commit_offset(talk: LocalTalk) -> None:
    topic = k08.OffsetCommitRequestTopic(
        name="plain", partitions=[k08.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    )
    request = k08.OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None, topics=[topic]
    )
    talk.runtime.create_topic("__consumer_offsets")
    talk.quietly(request, k08.OffsetCommitResponse, version=8)


def _append(log: Log, number: int) -> None:
    if log.topic_partition.topic == "transactional":
        options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 2 * number, "transactional": True}
        log.append_as_leader(batch(b"in %d" % number, b"transaction", **options), 0)
        kind = ControlType.ABORT if number % 2 else ControlType.COMMIT
        log.append_marker(kind, 0, producer_id=7, producer_epoch=0, coordinator_epoch=0)
        return
    for copy in range(3):
        log.append_as_leader(batch(b"%d.%d " % (number, copy) + b"x" * 200, keys=[b"%d" % copy]), 0)


def read_records(log: Log) -> Records:
    """Return the bytes of every batch with a right CRC by offset, as a consumer would accept them."""
    records: Records = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            result = log.read(offset, 1 << 20, log.log_end_offset)
        except KafkaError as error:
            if error.code is not ErrorCode.CORRUPT_MESSAGE:
                raise
            break
        if result.records is None:
            break
        with result.records as piece:
            data = bytes(piece.read_all())
        try:
            headers = list(iter_batches(data))
        except InvalidRecords:
            break
        for header in headers:
            if header.next_offset > offset:
                body = data[header.position + ATTRIBUTES_POSITION : header.end]
                records[header.base_offset] = body if check_crc(data, header) else b""
        if not headers or headers[-1].next_offset <= offset:
            break
        offset = headers[-1].next_offset
    return records


def _walk(disk: Disk, path: str) -> Iterator[tuple[str, bytes]]:
    for name in disk.list(path):
        below = f"{path}/{name}"
        if disk.is_dir(below):
            yield from _walk(disk, below)
        else:
            yield below, disk.read(below)


# Damage ----------------------------------------------------------------------------------------------------------


@dataclass
class Damaged:
    """The files after one seed's damage, and what was done to which of them."""

    files: Files
    done: list[str] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    def touches(self, prefix: str) -> bool:
        return any(path.startswith(prefix) for path in self.paths)


def damage(files: Files, seed: int) -> Damaged:
    """Damage one to three files."""
    chance = random.Random(seed)
    result = Damaged(dict(files))
    for _ in range(chance.choice((1, 1, 2, 3))):
        kind = chance.choice(KINDS)
        # Half of the damage hits the few files that everything depends on.
        central = [path for path in result.files if path.startswith(METADATA_FOLDER) or path.count("/") == 2]
        path = chance.choice(central if chance.random() < 0.5 else list(result.files))
        if path.endswith("/.lock"):
            continue
        _damage_file(result, chance, kind, path)
        result.done.append(f"{kind} {path}")
    return result


def _damage_file(result: Damaged, chance: random.Random, kind: str, path: str) -> None:
    data = result.files[path]
    result.paths.add(path)
    if kind == "delete":
        del result.files[path]
    elif kind == "empty":
        result.files[path] = b""
    elif kind == "truncate":
        result.files[path] = data[: chance.randrange(len(data))] if data else b""
    elif kind == "flip" and data:
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 8))):
            changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        result.files[path] = bytes(changed)
    elif kind == "append":
        result.files[path] = data + chance.choice((chance.randbytes(chance.randrange(1, 300)), bytes(100)))
    elif kind == "duplicate":
        result.files[path] = data + data
    elif kind == "swap":
        other = chance.choice(list(result.files))
        if not other.endswith("/.lock"):
            result.files[path], result.files[other] = result.files[other], data
            result.paths.add(other)
    elif kind == "record" and path.endswith(".log"):
        result.files[path] = _damage_record(data, chance)


def _damage_record(data: bytes, chance: random.Random) -> bytes:
    """Change a byte of a batch's records and compute its CRC again."""
    try:
        headers = list(iter_batches(data))
    except InvalidRecords:
        return data
    if not headers:
        return data
    header = chance.choice(headers)
    changed = bytearray(data)
    changed[chance.randrange(header.position + HEADER_SIZE, header.end)] = chance.randrange(256)
    crc = crc32c(memoryview(changed)[header.position + ATTRIBUTES_POSITION : header.end])
    changed[header.position + 17 : header.position + 21] = crc.to_bytes(4)
    return bytes(changed)


# Restart ---------------------------------------------------------------------------------------------------------


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        assert record.exc_info is None, f"a traceback in the log: {record.getMessage()}"


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """Collect warnings and errors of the broker."""
    handler = _Lines()
    logger = logging.getLogger("ottla")
    before = logger.propagate, logger.level
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)
        logger.propagate, logger.level = before


def check_restart(before: Stopped, damaged: Damaged) -> str:
    """Start on damaged files, hold the result against what was there, and return the kind of outcome."""
    world = make_world(damaged.files)
    outcome = "started"
    with logged() as lines:
        for _ in range(4):
            try:
                runtime = open_broker(world)
                break
            except StartError as error:
                outcome = "refused"
                lines.append(str(error))
                lines += _follow(world, str(error))
        else:
            raise AssertionError(f"the commands do not help: {lines[-1]}")
        result = _read_all(runtime)
        world.clock.advance(400)
        close_cluster(runtime)
        _check_records(before, damaged, result, lines)
        if lines and outcome == "started":
            outcome = "reported"
    with logged() as lines:
        runtime = open_broker(world)
        again = _read_all(runtime)
        close_cluster(runtime)
        for partition, records in result.items():
            if partition.topic not in COMPACTED:
                assert again.get(partition) == records, f"a second start changed {partition}"
    return outcome


def make_world(files: Files) -> World:
    """Return a simulated world whose disk in memory holds these files."""
    world: World = World.simulated(1)
    disk = MemoryDisk(None, world.clock)
    world.disk = disk
    disk.make_dirs("/data")
    for path, data in files.items():
        disk.make_dirs(path.rpartition("/")[0])
        file = disk.open(path, create=True)
        file.append(data)
        file.close()
    return world


def open_broker(world: World) -> BrokerRuntime:
    """Start the node on the files of a world."""
    return open_cluster(world, [CONFIG], {1: [Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)]})


def _follow(world: World, sentence: str) -> list[str]:
    """Run the command that a refusal names, and return what it did."""
    assert "\n" not in sentence, sentence
    assert "/data" in sentence, f"names no file: {sentence}"
    if OTHER_NODE.search(sentence):  # a changed number cannot be told from another node's directory
        properties = "/data/meta.properties"
        corrected = re.sub(rb"(?m)^node\.id=.*$", b"node.id=1", world.disk.read(properties))
        write_atomic(world.disk, properties, corrected)
        return [f"{properties}: corrected node.id"]
    command = COMMAND.search(sentence)
    assert command is not None, f"names no command: {sentence}"
    env = StorageEnvironment(world.disk, VirtualClock(), SeededRandom(3))
    choice = None if command[2] is None else MetadataChoice(command[2])
    steps = repair_metadata(env, "/data", choice) + repair(env, "/data").steps
    return [f"{step.path}: {step.action}" for step in steps]


def _read_all(runtime: BrokerRuntime) -> dict[TopicPartition, Records]:
    records = {}
    for name, partition in runtime.partitions.items():
        records[TopicPartition(*name)] = read_records(partition.log)
    return records


def _check_records(before: Stopped, damaged: Damaged, after: dict[TopicPartition, Records], lines: list[str]) -> None:
    for partition, records in before.records.items():
        now = after.get(partition, {})
        missing = [offset for offset, body in records.items() if now.get(offset) not in (body, b"")]
        if not missing:
            continue
        reported = any(str(partition) in line for line in lines)
        if damaged.touches(f"/data/{partition}/"):
            # Compacted logs may lack offsets anywhere, no CRC covers base offsets, and exchanged segments are valid.
            compacted = partition.topic in COMPACTED
            segments = [path.rpartition("/")[2] for path in damaged.paths if path.endswith(".log")]
            # Of a log that lost its end above the recovery point only the high watermark knows.
            unknown_end = any(path.endswith("/replication-offset-checkpoint") for path in damaged.paths)
            exchanged = all(offset in now for offset in missing) or len(set(segments)) < len(segments)
            excused = (
                compacted
                or exchanged
                or unknown_end
                or any(done.startswith(("record", "flip")) for done in damaged.done)
            )
            assert reported or excused, f"silent loss of {missing} in the damaged {partition}: {lines}"
        elif damaged.touches("/data/log-start-offset-checkpoint") and min(now, default=99) > min(records):
            continue  # another number in this file is a log start offset like any other
        else:
            assert reported, f"silent loss of {missing} in the undamaged {partition}: {lines}"
            assert damaged.touches(METADATA_FOLDER) or damaged.touches("/data/"), f"lost {missing} of {partition}"


def run(seed: int) -> str:
    """Run one seed; a failure names it."""
    before = stopped(clean=seed % 2 == 0)
    damaged = damage(before.files, seed)
    try:
        return check_restart(before, damaged)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {'; '.join(damaged.done)}: {type(error).__name__}: {error}") from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    began = time.process_time()
    outcomes: Counter[str] = Counter()
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        try:
            outcomes[run(seed)] += 1
        except AssertionError as error:
            outcomes["FAILED"] += 1
            print(error)
            cause = error.__cause__
            if cause is not None and not isinstance(cause, AssertionError):
                print("".join(traceback.format_exception(cause)[-4:]))
    print(f"{options.seeds} seeds in {time.process_time() - began:.0f} s of CPU: {dict(outcomes)}")


if __name__ == "__main__":
    main()
