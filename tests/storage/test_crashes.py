"""Logs on a disk that crashes, loses power, fills up and fails. Each seed is one run; a failure names its seed.

OTTLA_SIMULATION_SEEDS=1000 sets the number of seeds, OTTLA_SIMULATION_FIRST_SEED=n the first.
"""

from __future__ import annotations

import errno
import os
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import compute_crc, iter_batches
from ottla.records.builder import build_batch
from ottla.records.control import ControlType
from ottla.records.iterate import Record, iter_records
from ottla.storage.config import LogConfig
from ottla.storage.directory import LogDirectory
from ottla.storage.names import TopicPartition
from ottla.world.clock import VirtualClock
from ottla.world.disk_faulty import FaultyDisk, SimulatedCrash
from ottla.world.random import SeededRandom

if TYPE_CHECKING:
    from ottla.storage.log.log import Log

FIRST = int(os.environ.get("OTTLA_SIMULATION_FIRST_SEED", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("OTTLA_SIMULATION_SEEDS", "40")))
Entry = tuple[bytes | None, bytes | None]


@dataclass
class History:
    """The history of one partition as its clients saw it."""

    written: dict[int, Entry] = field(default_factory=dict)  # data records by offset
    in_flight: list[Entry] = field(default_factory=list)  # of an append that has not returned
    end: int = 0  # behind the last append that returned
    durable: int = 0  # what was acknowledged under sync
    sequences: dict[int, tuple[int, int, bytes]] = field(default_factory=dict)  # producer: sequence, offset, batch


class Run:
    """Restarts of a broker on one disk."""

    def __init__(self, seed: int, *, compact: bool = False) -> None:
        self.chance = random.Random(seed)
        self.clock = VirtualClock()
        self.disk = FaultyDisk(SeededRandom(seed), self.clock, sync_seconds=self.chance.choice([(0, 0), (0, 0.01)]))
        self.disk.make_dirs("/data")
        self.disk.sync_dir("/")
        self.sync = self.chance.random() < 0.6
        self.config = LogConfig(
            segment_bytes=self.chance.choice([600, 2500, 1 << 20]),
            index_interval_bytes=self.chance.choice([0, 150, 4096]),
            file_delete_delay_ms=self.chance.choice([0, 1000]),
            cleanup_policy=("compact",) if compact else ("delete",),
            min_cleanable_dirty_ratio=0.01,
            delete_retention_ms=10**9,
        )
        self.compact = compact
        self.partitions = [TopicPartition("t", n) for n in range(self.chance.choice([1, 2]))]
        self.histories = {partition: History() for partition in self.partitions}
        self.directory: LogDirectory | None = None
        self.life = 0

    def start(self) -> LogDirectory:
        directory = LogDirectory(
            self.disk, self.clock, SeededRandom(1), "/data", sync=self.sync, max_open_files=self.chance.choice([2, 50])
        )
        self.directory = directory
        directory.open()
        directory.load(lambda topic: self.config)
        for partition in self.partitions:
            directory.create_log(partition, self.config)
        return directory

    def append(self, log: Log, history: History) -> None:
        chance = self.chance
        records = [
            Record(0, self.clock.now_ms(), b"k%d" % chance.randrange(8), chance.randbytes(chance.randrange(120)))
            for _ in range(chance.randrange(1, 4))
        ]
        producer = chance.randrange(3)
        if producer:
            producer += 10 * self.life
            sequence = history.sequences[producer][0] if producer in history.sequences else 0
            made = build_batch(records, producer_id=producer, producer_epoch=0, base_sequence=sequence)
        else:
            made = build_batch(records)
        sent = bytes(made)
        history.in_flight = [(r.key, r.value) for r in records]
        result = log.append_as_leader(made, 0)
        assert result.first_offset == history.end
        history.in_flight = []
        for number, record in enumerate(records):
            history.written[result.first_offset + number] = (record.key, record.value)
        history.end = result.last_offset + 1
        if producer:
            history.sequences[producer] = (sequence + len(records), result.first_offset, sent)
        if self.sync:
            target = history.end

            def done(error: OSError | None) -> None:
                if error is None:
                    history.durable = max(history.durable, target)

            log.flush(done)

    def live(self, actions: int) -> None:
        """Run random operations until a fault or the last step."""
        directory = self.start()
        for _ in range(actions):
            partition = self.chance.choice(self.partitions)
            log, history = directory.logs[partition], self.histories[partition]
            what = self.chance.random()
            if what < 0.7:
                self.append(log, history)
            elif what < 0.8:
                self.clock.advance(self.chance.random() * 2)
            elif what < 0.85:
                log.roll()
            elif what < 0.9:
                directory.checkpoint()
            elif what < 0.95 and self.compact:
                directory.clean_all()
            else:
                assert log.high_watermark <= log.log_end_offset
                if self.sync:
                    assert log.high_watermark == max(log.durable_offset, log.log_start_offset)

    def crash(self, process_only: bool) -> None:
        self.disk.crash(process_only=process_only)
        self.disk = self.disk.reopen()
        if self.directory is not None:
            self.directory.abandon()
        self.clock.run_until_idle()

    def check(self, *, at_least: str) -> None:
        """Check the invariants after a restart; continue with the recovered contents as expected ones."""
        directory = self.directory
        assert directory is not None
        for partition in self.partitions:
            log, history = directory.logs[partition], self.histories[partition]
            possible = {**history.written}
            for number, entry in enumerate(history.in_flight):
                possible[history.end + number] = entry
            end = log.log_end_offset
            floor = {"written": history.end, "durable": history.durable, "nothing": 0}[at_least]
            assert floor <= end <= history.end + len(history.in_flight)
            recovered = contents(log)
            for offset, entry in recovered.items():
                assert possible[offset] == entry
            if self.compact:
                # Compaction leaves gaps of its own, so one that a power loss made between two segments can pass
                # for one of them; what was acknowledged under sync is safe from that.
                latest = {entry[0]: offset for offset, entry in sorted(possible.items()) if offset < floor}
                last_found = {entry[0]: offset for offset, entry in recovered.items()}
                for key, offset in latest.items():
                    assert last_found.get(key, -1) >= offset
            else:
                assert list(recovered) == list(range(end))
            history.written = recovered if self.compact else {o: e for o, e in possible.items() if o < end}
            history.end, history.in_flight = end, []
            history.durable = min(history.durable, end)
            self.check_producers(log, history, floor)

    def check_producers(self, log: Log, history: History, floor: int) -> None:
        """Check that the last surviving batch of each producer is a duplicate. Each restart uses new producers."""
        for producer, (next_sequence, offset, batch) in history.sequences.items():
            entry = log.producers.producers.get(producer)
            if offset >= (floor if self.compact else history.end):
                continue
            assert entry is not None
            if entry.last_sequence + 1 == next_sequence:  # else the one in flight made it, too
                result = log.append_as_leader(bytearray(batch), 0)
                assert (result.duplicate, result.first_offset) == (True, offset)
        history.sequences.clear()
        self.life += 1


def contents(log: Log) -> dict[int, Entry]:
    """Return all data records of a log; check that every batch is complete with a valid CRC."""
    entries: dict[int, Entry] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, 700, log.log_end_offset)
        if result.records is None:
            break
        with result.records as records:
            data = records.read_all()
        for header in iter_batches(data):
            assert compute_crc(data, header.position, header.size) == header.crc
            offset = header.next_offset
            if not header.is_control:
                entries.update((r.offset, (r.key, r.value)) for r in iter_records(data, header))
    return entries


@pytest.mark.parametrize("compact", [False, True], ids=["plain", "compacted"])
@pytest.mark.parametrize("seed", SEEDS)
def test_crash_at_any_step_loses_nothing_acknowledged(seed: int, compact: bool) -> None:
    run = Run(seed, compact=compact)
    for _ in range(4):
        process_only = run.chance.random() < 0.4
        run.disk.crash_at_step(run.chance.choice([3, 30, 200, 1000]) + run.chance.randrange(100))
        try:
            run.live(run.chance.randrange(5, 120))
            if run.chance.random() < 0.3:
                assert run.directory is not None
                run.directory.close()
        except SimulatedCrash:
            pass
        run.crash(process_only)
        while True:  # recovery may be cut off as well
            run.disk.crash_at_step(run.chance.choice([5, 50, 10**6]))
            try:
                run.start()
                break
            except SimulatedCrash:
                run.crash(process_only)
        run.disk.heal()
        run.check(at_least="written" if process_only else "durable")
        assert run.directory is not None
        before = {p: contents(log) for p, log in run.directory.logs.items()}
        run.directory.abandon()
        again = run.start()
        for report in again.reports:
            assert report.damage == [], report
        assert {p: contents(log) for p, log in again.logs.items()} == before
        again.close()
        clean = run.start()
        assert clean.had_clean_shutdown
        assert clean.reports == []
        assert {p: contents(log) for p, log in clean.logs.items()} == before
        for partition, log in clean.logs.items():
            run.histories[partition].durable = log.log_end_offset
        clean.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_disk_error_takes_directory_offline_without_loss(seed: int) -> None:
    run = Run(seed)
    operation = run.chance.choice(["write", "sync", "read", "full"])
    nth = run.chance.randrange(1, 60)
    try:
        directory = run.start()
    except SimulatedCrash:
        pytest.fail("no crash was asked for")
    if operation == "full":
        run.disk.fill_after(run.chance.randrange(8000))
    else:
        run.disk.fail(operation, nth=nth, times=None, code=errno.EIO)  # type: ignore[arg-type]
    failed: KafkaError | None = None
    for _ in range(200):
        partition = run.chance.choice(run.partitions)
        log, history = directory.logs[partition], run.histories[partition]
        try:
            run.append(log, history)
            if run.chance.random() < 0.1:
                log.roll()
            if run.chance.random() < 0.1:
                contents(log)
            run.clock.advance(0.02)
        except KafkaError as error:
            failed = error
            break
        except OSError:
            pytest.fail("an OSError got through")
    if failed is not None or not directory.online:
        assert failed is None or failed.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert not directory.online
        with pytest.raises(KafkaError):
            directory.logs[run.partitions[0]].append_as_leader(build_batch([Record(0, 0, None, b"x")]), 0)
    run.disk.heal()
    run.crash(process_only=False)
    run.start()
    run.check(at_least="durable")


@pytest.mark.parametrize("seed", SEEDS)
def test_recovery_truncates_at_flipped_bit(seed: int) -> None:
    run = Run(seed)
    run.sync = False
    run.partitions = run.partitions[:1]
    directory = run.start()
    log, history = directory.logs[run.partitions[0]], run.histories[run.partitions[0]]
    for _ in range(40):
        run.append(log, history)
    run.clock.advance(1)
    active = log.active_segment
    if not active.size:
        run.append(log, history)
        active = log.active_segment
    starts = [header.position for header in active.batches()]
    bases = [header.base_offset for header in active.batches()]
    byte = run.chance.randrange(active.size)
    path = active.log_path
    run.disk.flip(path, byte, run.chance.randrange(8))
    directory.abandon()
    again = run.start()
    report = again.reports[0]
    (damage,) = report.damage or [None]
    hit = max(start for start in starts if start <= byte)
    if byte in range(hit, hit + 8) or byte in range(hit + 12, hit + 16):
        return  # the CRC covers neither the offset nor the epoch; such a batch may pass for a good one, as in Kafka
    assert damage is not None
    assert (damage.path, damage.position) == (path, hit)
    assert damage.offset == bases[starts.index(hit)]
    assert damage.reason
    run.check(at_least="nothing")


@pytest.mark.parametrize("seed", SEEDS)
def test_crash_keeps_decided_transactions(seed: int) -> None:
    run = Run(seed)
    run.sync = False
    partition = run.partitions[0]
    run.partitions = [partition]
    log = run.start().logs[partition]
    sequences = [0, 0, 0]
    is_open = [False, False, False]
    for _ in range(60):
        producer = run.chance.randrange(3)
        if is_open[producer] and run.chance.random() < 0.3:
            kind = run.chance.choice([ControlType.ABORT, ControlType.COMMIT])
            log.append_marker(kind, 0, producer_id=producer, producer_epoch=0, coordinator_epoch=0)
            is_open[producer] = False
        else:
            made = build_batch(
                [Record(0, run.clock.now_ms(), None, b"v")],
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequences[producer],
                transactional=True,
            )
            log.append_as_leader(made, 0)
            sequences[producer] += 1
            is_open[producer] = True
        if run.chance.random() < 0.05:
            run.clock.advance(1)

    def state(of: Log) -> object:
        return (
            of.log_end_offset,
            of.last_stable_offset,
            dict(of.producers.ongoing),
            [of.aborted_transactions(start, of.log_end_offset) for start in range(0, of.log_end_offset, 7)],
        )

    before = state(log)
    run.crash(process_only=True)
    directory = run.start()
    assert state(directory.logs[partition]) == before
    directory.close()
    assert state(run.start().logs[partition]) == before
