"""Verification and repair: valid directories pass, each kind of damage is located, repair removes it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.records.control import ControlType
from ottla.storage import checkpoints, names
from ottla.storage.check.findings import FileKind, Finding
from ottla.storage.check.repair import RepairReport, repair
from ottla.storage.check.verify import VerifyReport, bytes_to_check, verify
from ottla.storage.config import LogConfig
from ottla.storage.directory import LogDirectory
from ottla.storage.environment import StorageEnvironment
from ottla.storage.names import TopicPartition
from ottla.world.clock import VirtualClock
from ottla.world.disk_memory import MemoryDisk
from ottla.world.disk_real import RealDisk
from ottla.world.random import SeededRandom

from .batches import batch

if TYPE_CHECKING:
    from ottla.storage.log.log import Log

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "kafka" / "4.3.1"
SEGMENT_BYTES = 2000


class Stage:
    """A directory with one partition of several segments, transactions and an index entry in every segment."""

    def __init__(self) -> None:
        self.clock = VirtualClock(1_700_000_000_000)
        self.disk = MemoryDisk(clock=self.clock)
        self.open()
        config = LogConfig(segment_bytes=SEGMENT_BYTES, index_interval_bytes=100, retention_ms=-1)
        self.log = self.directory.create_log(TopicPartition("t", 0), config)
        self.log.start_epoch(0)

    def open(self) -> None:
        self.directory = LogDirectory(self.disk, self.clock, SeededRandom(1), "/data")
        self.directory.open()
        self.directory.load()

    def fill(self) -> Log:
        for round_number in range(12):
            self.clock.advance(1)
            now = self.clock.now_ms()
            if round_number == 6:
                self.log.start_epoch(3)
            epoch = 3 if round_number >= 6 else 0
            sequence = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 3 * round_number}
            self.log.append_as_leader(batch("a" * 100, "b", "c", timestamp=now, **sequence), epoch)
            open_ = {"producer_id": 8, "producer_epoch": 0, "base_sequence": 2 * round_number, "transactional": True}
            self.log.append_as_leader(batch("d" * 50, "e", timestamp=now, **open_), epoch)
            ends = ControlType.ABORT if round_number % 2 else ControlType.COMMIT
            self.log.append_marker(ends, epoch, producer_id=8, producer_epoch=0, coordinator_epoch=0)
        return self.log

    def close(self) -> None:
        self.directory.close()

    def verify(self, *, deep: bool = False) -> VerifyReport:
        return verify(self.disk, "/data", deep=deep)

    def repair(self, *, truncate: bool = False, dry_run: bool = False) -> RepairReport:
        env = StorageEnvironment(self.disk, self.clock, SeededRandom(1))
        return repair(env, "/data", truncate=truncate, dry_run=dry_run)

    def flip(self, path: str, position: int) -> None:
        file = self.disk.open(path)
        file.write_at(position, bytes([file.read_at(position, 1)[0] ^ 0x40]))
        file.close()

    def write(self, path: str, data: bytes) -> None:
        file = self.disk.open(path, create=True)
        file.truncate(0)
        file.append(data)
        file.close()

    def names(self, suffix: str) -> list[str]:
        return [f"/data/t-0/{name}" for name in self.disk.list("/data/t-0") if name.endswith(suffix)]

    def contents(self) -> dict[str, bytes]:
        files = {name: self.disk.read(f"/data/t-0/{name}") for name in self.disk.list("/data/t-0")}
        return files | {
            name: self.disk.read(f"/data/{name}")
            for name in self.disk.list("/data")
            if not self.disk.is_dir(f"/data/{name}")
        }


@pytest.fixture
def stage() -> Stage:
    made = Stage()
    made.fill()
    made.close()
    return made


def only(report: VerifyReport) -> Finding:
    assert len(report.wrong) == 1, report.wrong
    return report.wrong[0]


@pytest.mark.parametrize("name", ["data", "data-static"])
@pytest.mark.parametrize("deep", [False, True])
def test_verify_accepts_kafkas_directory(name: str, deep: bool) -> None:
    path = str(FIXTURE / name)
    report = verify(RealDisk(), path, deep=deep)
    assert report.wrong == []
    assert report.bytes == bytes_to_check(RealDisk(), path)
    assert report.batches > 10


def test_verify_accepts_ottlas_directory(stage: Stage) -> None:
    before = stage.contents()
    report = stage.verify(deep=True)
    assert report.wrong == []
    assert report.segments == len(stage.names(".log")) > 2
    assert report.batches == 36
    assert report.ends == {TopicPartition("t", 0): 72}
    assert stage.contents() == before


def test_verify_after_crash_reports_only_tail() -> None:
    stage = Stage()
    stage.fill()
    stage.directory.abandon()
    assert stage.verify().wrong == []


def test_progress_adds_up_to_total_bytes(stage: Stage) -> None:
    seen: list[int] = []
    verify(stage.disk, "/data", progress=seen.append)
    assert sum(seen) == bytes_to_check(stage.disk, "/data") == stage.verify().bytes


def test_one_partition_can_be_verified_alone(stage: Stage) -> None:
    assert verify(stage.disk, "/data/t-0").batches == 36


def test_flipped_bit_in_record_is_found_with_file_byte_and_offset(stage: Stage) -> None:
    log = stage.names(".log")[1]
    base = int(log.rpartition("/")[2].removesuffix(".log"))
    stage.flip(log, 80)
    finding = only(stage.verify())
    assert (finding.path, finding.kind, finding.position, finding.offset) == (log, FileKind.LOG, 0, base)
    assert "wrong CRC" in finding.reason


def test_every_byte_of_log_is_covered(stage: Stage) -> None:
    log = stage.names(".log")[0]
    size = stage.disk.size(log)
    for position in range(0, size, 7):
        stage.flip(log, position)
        assert stage.verify().wrong, f"byte {position} of {size}"
        stage.flip(log, position)


def test_wrong_offset_is_reported_once(stage: Stage) -> None:
    log = stage.names(".log")[0]
    stage.flip(log, 0)  # the base offset is outside the CRC
    findings = [finding for finding in stage.verify().wrong if finding.path == log]
    assert [finding.position for finding in findings] == [0]
    assert "in a segment that ends before" in findings[0].reason


def test_truncated_tail_is_found(stage: Stage) -> None:
    log = stage.names(".log")[-1]
    file = stage.disk.open(log)
    file.truncate(file.size() - 5)
    file.close()
    findings = [finding for finding in stage.verify().wrong if finding.kind is FileKind.LOG]
    assert "cut off" in findings[0].reason
    assert findings[0].offset is not None


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [(".index", FileKind.INDEX), (".timeindex", FileKind.TIME_INDEX), (".txnindex", FileKind.TXN_INDEX)],
)
def test_every_byte_of_index_is_covered(stage: Stage, suffix: str, kind: FileKind) -> None:
    path = next(name for name in stage.names(suffix) if stage.disk.size(name))
    before = stage.disk.read(path)
    missed = []
    for position in range(len(before)):
        stage.flip(path, position)
        wrong = stage.verify().wrong
        if not wrong:
            missed.append(position)
        else:
            assert {finding.kind for finding in wrong} == {kind}
        stage.flip(path, position)
    # Without knowing the topic's policy the content of aborted transactions is not held against the log.
    allowed = len(before) if kind is FileKind.TXN_INDEX else 0
    assert len(missed) <= allowed, missed
    assert stage.disk.read(path) == before


def test_damaged_producer_snapshot_is_found(stage: Stage) -> None:
    path = stage.names(".snapshot")[0]
    stage.flip(path, 20)
    finding = only(stage.verify())
    assert (finding.path, finding.kind) == (path, FileKind.SNAPSHOT)


def test_epochs_contradicting_log_are_found(stage: Stage) -> None:
    path = "/data/t-0/leader-epoch-checkpoint"
    entries = checkpoints.decode_epochs(stage.disk.read(path))
    assert entries[-1] == (3, 36)
    stage.write(path, checkpoints.encode_epochs([(0, 0), (3, 30)]))
    finding = only(stage.verify())
    assert (finding.kind, finding.offset) == (FileKind.EPOCHS, 30)
    stage.write(path, checkpoints.encode_epochs([(3, 0), (0, 30)]))
    assert only(stage.verify()).kind is FileKind.EPOCHS
    stage.write(path, b"nonsense")
    assert only(stage.verify()).kind is FileKind.EPOCHS


def test_checkpoint_beyond_log_end_is_found(stage: Stage) -> None:
    path = "/data/recovery-point-offset-checkpoint"
    stage.write(path, checkpoints.encode_offsets({TopicPartition("t", 0): 73, TopicPartition("gone", 1): 5}))
    finding = only(stage.verify())
    assert (finding.path, finding.offset) == (path, 73)
    stage.write(path, b"0\n2\nt 0 1\n")
    assert only(stage.verify()).kind is FileKind.CHECKPOINT


def test_damaged_topic_id_is_found(stage: Stage) -> None:
    stage.write("/data/t-0/partition.metadata", b"version: 0\ntopic_id: !!\n")
    assert only(stage.verify()).kind is FileKind.TOPIC_ID


# Repair ----------------------------------------------------------------------------------------------------------


def test_repair_of_valid_directory_changes_nothing(stage: Stage) -> None:
    before = stage.contents()
    report = stage.repair(truncate=True)
    assert (report.steps, report.left) == ([], [])
    assert stage.contents() == before


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_derived_file_is_rebuilt_from_log(stage: Stage, suffix: str) -> None:
    path = next(name for name in stage.names(suffix) if stage.disk.size(name))
    stage.flip(path, 1)
    damaged = stage.contents()
    assert stage.verify().wrong
    plan = stage.repair(dry_run=True)
    assert plan.steps
    assert plan.after is None
    assert stage.contents() == damaged
    done = stage.repair()
    assert done.steps == plan.steps
    assert done.after is not None
    assert done.after.wrong == []
    logs = {name for name in damaged if name.endswith(".log")}
    assert all(stage.contents()[name] == damaged[name] for name in logs)


def test_derived_files_of_closed_segments_are_rebuilt_identically() -> None:
    stage = Stage()
    stage.log.config = LogConfig(segment_bytes=SEGMENT_BYTES, retention_ms=-1)
    stage.fill()
    stage.close()
    before = stage.contents()
    for name in [*stage.names("index"), "/data/t-0/leader-epoch-checkpoint"]:
        stage.disk.remove(name)
    snapshot = stage.names(".snapshot")[0]
    stage.flip(snapshot, 20)
    stage.repair()
    after = stage.contents()
    # The one file that no damage pointed at: an index of aborted transactions that is not there is not missed.
    assert {name: data for name, data in after.items() if not name.endswith(".txnindex")} == {
        name: data for name, data in before.items() if not name.endswith(".txnindex")
    }


def test_repair_without_truncate_removes_no_record(stage: Stage) -> None:
    log = stage.names(".log")[1]
    stage.flip(log, 80)
    before = stage.contents()
    report = stage.repair()
    assert report.needs_truncate
    assert [finding.kind for finding in report.left] == [FileKind.LOG]
    assert report.steps == []
    assert stage.contents() == before


def test_repair_without_truncate_keeps_checkpoints_of_damaged_log(stage: Stage) -> None:
    file = stage.disk.open(stage.names(".log")[0])
    file.truncate(20)
    file.close()
    for name in stage.names(".log")[1:]:
        stage.disk.remove(name)
    before = stage.contents()
    report = stage.repair()
    assert report.needs_truncate
    after = stage.contents()
    assert {name: after[name] for name in names.CHECKPOINTS} == {name: before[name] for name in names.CHECKPOINTS}


def test_repair_with_truncate_ends_log_before_damage(stage: Stage) -> None:
    log = stage.names(".log")[1]
    stage.flip(log, 700)
    damage = only(stage.verify())
    assert damage.position is not None
    assert damage.position > 0
    plan = stage.repair(truncate=True, dry_run=True)
    assert "cut at byte" in plan.steps[0].action
    report = stage.repair(truncate=True)
    assert report.steps == plan.steps
    assert report.after is not None
    assert report.after.wrong == []
    assert report.after.ends == {TopicPartition("t", 0): damage.offset}
    stage.open()
    reopened = stage.directory.logs[TopicPartition("t", 0)]
    assert reopened.log_end_offset == damage.offset
    assert reopened.producers.producers[7].last_data_offset < (damage.offset or 0)
    stage.close()


def test_truncation_corrects_checkpoints(stage: Stage) -> None:
    stage.flip(stage.names(".log")[0], 300)
    stage.repair(truncate=True)
    end = next(iter(stage.verify().ends.values()))
    points = checkpoints.decode_offsets(stage.disk.read("/data/recovery-point-offset-checkpoint"))
    assert points == {TopicPartition("t", 0): end}


def test_gap_is_reported_and_kept(tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(FIXTURE / "data", root)
    gone = root / "segmented-0" / "00000000000000000008.log"
    assert gone.exists()
    for path in gone.parent.glob(f"{gone.stem}.*"):
        path.unlink()
    report = verify(RealDisk(), str(root))
    findings = [finding for finding in report.wrong if finding.kind is FileKind.GAP]
    assert [(finding.offset, finding.position) for finding in findings] == [(8, 0)]
    env = StorageEnvironment(RealDisk(), VirtualClock(), SeededRandom(1))
    mended = repair(env, str(root), truncate=True)
    assert [finding.kind for finding in mended.left] == [FileKind.GAP]
    assert (root / "segmented-0" / "00000000000000000016.log").exists()


def test_topic_id_is_taken_from_metadata_log(tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(FIXTURE / "data", root)
    path = root / "orders-1" / "partition.metadata"
    before = path.read_bytes()
    path.write_bytes(b"")
    report = verify(RealDisk(), str(root))
    assert [finding.kind for finding in report.wrong] == [FileKind.TOPIC_ID]
    env = StorageEnvironment(RealDisk(), VirtualClock(), SeededRandom(1))
    mended = repair(env, str(root))
    assert mended.after is not None
    assert mended.after.wrong == []
    assert path.read_bytes() == before


def test_other_topic_id_is_reported_and_kept(tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(FIXTURE / "data", root)
    path = root / "orders-1" / "partition.metadata"
    path.write_bytes((root / "segmented-0" / "partition.metadata").read_bytes())
    env = StorageEnvironment(RealDisk(), VirtualClock(), SeededRandom(1))
    mended = repair(env, str(root))
    assert {finding.kind for finding in mended.left} == {FileKind.TOPIC_ID}
    assert mended.steps == []


def test_missing_transaction_index_entry_is_repaired(tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(FIXTURE / "data", root)
    path = root / "transactional-0" / "00000000000000000001.txnindex"
    before = path.read_bytes()
    for damaged in (b"", before[:-1], before[:10] + bytes(8) + before[18:]):
        path.write_bytes(damaged)
        assert [finding.kind for finding in verify(RealDisk(), str(root)).wrong] == [FileKind.TXN_INDEX]
        repair(StorageEnvironment(RealDisk(), VirtualClock(), SeededRandom(1)), str(root))
        assert path.read_bytes() == before


def test_metadata_snapshot_without_footer_is_found(tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(FIXTURE / "data", root)
    path = root / "__cluster_metadata-0" / "00000000000000000254-0000000002.checkpoint"
    path.write_bytes(path.read_bytes()[:-75])
    assert [finding.kind for finding in verify(RealDisk(), str(root)).wrong] == [FileKind.METADATA]


def test_metadata_log_shorter_than_clean_shutdown_file_is_found(tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(FIXTURE / "data", root)
    (root / ".kafka_cleanshutdown").write_bytes(checkpoints.encode_clean_shutdown(1_000_000))
    finding = only(verify(RealDisk(), str(root)))
    assert finding.path == f"{root}/__cluster_metadata-0"
    assert "before broker epoch 1000000 in .kafka_cleanshutdown" in finding.reason


@pytest.mark.parametrize("name", names.WRITTEN_AT_SHUTDOWN)
def test_emptied_checkpoint_after_clean_shutdown_is_found_and_repaired(stage: Stage, name: str) -> None:
    stage.write(f"/data/{name}", b"")
    finding = only(stage.verify())
    assert (finding.path, finding.kind) == (f"/data/{name}", FileKind.CHECKPOINT)
    stage.repair()
    assert stage.verify().wrong == []


@pytest.mark.parametrize("name", names.WRITTEN_AT_SHUTDOWN)
def test_empty_checkpoint_without_clean_shutdown_is_accepted(stage: Stage, name: str) -> None:
    stage.write(f"/data/{name}", b"")
    stage.disk.remove("/data/.kafka_cleanshutdown")
    assert stage.verify().wrong == []


@pytest.mark.parametrize("name", names.WRITTEN_AT_SHUTDOWN)
def test_start_reports_checkpoint_emptied_after_clean_shutdown(stage: Stage, name: str) -> None:
    stage.write(f"/data/{name}", b"")
    reports: list[str] = []
    directory = LogDirectory(stage.disk, stage.clock, SeededRandom(1), "/data")
    directory.env.on_problem = reports.append
    directory.open()
    directory.load()
    assert reports == [f"/data/{name}: empty, although the shutdown was clean; written again"]
    directory.close()
    assert stage.verify().wrong == []


def test_segment_of_another_partition_is_found_by_its_indexes(stage: Stage) -> None:
    stage.open()
    other = stage.directory.create_log(TopicPartition("u", 0), stage.log.config)
    other.start_epoch(0)
    for number in range(12):
        stage.clock.advance(1)
        other.append_as_leader(batch("other" * 60, "x" * number, timestamp=stage.clock.now_ms()), 0)
    stage.close()
    mine, theirs = (f"/data/{folder}/00000000000000000000.log" for folder in ("t-0", "u-0"))
    contents = stage.disk.read(mine), stage.disk.read(theirs)
    stage.write(mine, contents[1])
    stage.write(theirs, contents[0])
    assert {finding.path.split("/")[2] for finding in stage.verify().wrong} == {"t-0", "u-0"}
