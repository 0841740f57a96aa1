"""Verify a log directory: batches, indexes, snapshots and checkpoints against each other. Read-only.

A broker serves bytes unchecked, as Kafka does; verification finds bit rot. The rules are those by which Kafka's
code reads the files. `repair` repairs the findings.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ottla.protocol.errors import ProtocolError
from ottla.protocol.record_values import ControlRecordType, decode_control_key
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records
from ottla.storage import names
from ottla.storage.check.findings import FileKind, Finding, VerifyReport
from ottla.storage.check.partition import PartitionCheck, wrong_crc
from ottla.storage.check.scan import (
    METADATA_SNAPSHOT_SUFFIX,
    MetadataFacts,
    PartitionFolder,
    find_partitions,
    read_folder,
    read_metadata_facts,
    scan_batches,
)
from ottla.storage.checkpoints import (
    CorruptCheckpointError,
    decode_clean_shutdown,
    decode_offsets,
    decode_partition_metadata,
)
from ottla.storage.errors import CorruptLogError
from ottla.storage.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.protocol.uuids import Uuid
    from ottla.world.disk import Disk

__all__ = ["FileKind", "Finding", "Verifier", "VerifyReport", "bytes_to_check", "is_partition", "verify"]

BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
QUORUM_STATE = "quorum-state"


def verify(
    disk: Disk, path: str, *, deep: bool = False, progress: Callable[[int], None] = lambda size: None
) -> VerifyReport:
    """Verify a log directory or one partition's folder; `deep` also decompresses and walks the records of every batch.

    `progress` is called with the number of bytes checked since the last call.
    """
    verifier = Verifier(disk, deep=deep, progress=progress)
    if is_partition(path):
        verifier.check_partition(read_folder(disk, path))
    else:
        verifier.check_directory(path.rstrip("/") or "/")
    return verifier.report


def is_partition(path: str) -> bool:
    """Return whether a path is named like a partition's folder."""
    name = path.rstrip("/").rpartition("/")[2]
    return names.parse_partition_dir(name) is not None or name == names.METADATA_TOPIC


def bytes_to_check(disk: Disk, path: str) -> int:
    """Return the number of bytes that a verification will read."""
    folders = [read_folder(disk, path)] if is_partition(path) else find_partitions(disk, path)
    return sum(folder.size for folder in folders if len(folders) == 1 or not folder.mark)


class Verifier:
    """A verification in progress; `report` has its findings."""

    def __init__(self, disk: Disk, *, deep: bool = False, progress: Callable[[int], None] = lambda size: None) -> None:
        self.disk = disk
        self.report = VerifyReport()
        self._deep = deep
        self._progress = progress
        self._facts = MetadataFacts()
        self._cleaned: dict[TopicPartition, int] = {}

    def add_finding(
        self,
        path: str,
        kind: FileKind,
        reason: str,
        position: int | None = None,
        offset: int | None = None,
        *,
        wrong: bool = True,
    ) -> None:
        """Add a finding."""
        self.report.findings.append(Finding(path, kind, reason, position, offset, wrong))

    # A directory -------------------------------------------------------------------------------------------------

    def check_directory(self, root: str) -> None:
        """Check every partition, then checkpoints and other files of the directory."""
        self._facts = read_metadata_facts(self.disk, root)
        self.report.topic_ids = self._facts.topic_ids
        checkpoints = {name: self._read_checkpoint(f"{root}/{name}") for name in names.CHECKPOINTS}
        self._cleaned = checkpoints[names.CLEANER_CHECKPOINT] or {}
        ids: dict[str, dict[Uuid, str]] = {}
        for folder in find_partitions(self.disk, root):
            if folder.mark:
                self.add_finding(folder.path, FileKind.NAME, f"set aside as {folder.mark[1:]}", wrong=False)
                continue
            topic_id = self.check_partition(folder)
            if topic_id is not None:
                ids.setdefault(folder.partition.topic, {}).setdefault(topic_id, folder.path)
        for topic, paths in ids.items():
            if len(paths) > 1:
                listing = ", ".join(f"{topic_id} in {path}" for topic_id, path in paths.items())
                path = f"{next(iter(paths.values()))}/{names.PARTITION_METADATA}"
                self.add_finding(path, FileKind.TOPIC_ID, f"partitions of {topic} have different topic ids: {listing}")
        for name, offsets in checkpoints.items():
            self._check_offsets(f"{root}/{name}", offsets or {})
        self._check_clean_shutdown(root)
        self._check_properties(f"{root}/{names.META_PROPERTIES}")
        if self.disk.exists(f"{root}/{BOOTSTRAP_CHECKPOINT}"):
            self._check_metadata_snapshot(f"{root}/{BOOTSTRAP_CHECKPOINT}")

    def _read_checkpoint(self, path: str) -> dict[TopicPartition, int] | None:
        try:
            return decode_offsets(self.disk.read(path))
        except FileNotFoundError:
            return None
        except CorruptCheckpointError as error:
            self.add_finding(path, FileKind.CHECKPOINT, str(error))
            return None

    def _check_offsets(self, path: str, offsets: dict[TopicPartition, int]) -> None:
        for partition, offset in offsets.items():
            end = self.report.ends.get(partition)
            if offset < 0:
                self.add_finding(
                    path, FileKind.CHECKPOINT, f"{partition} has the negative offset {offset}", offset=offset
                )
            elif end is None:
                self.add_finding(path, FileKind.CHECKPOINT, f"{partition} is not in this directory", wrong=False)
            elif offset > end:
                self.add_finding(
                    path, FileKind.CHECKPOINT, f"{partition} has offset {offset}, its log ends at {end}", offset=offset
                )

    def _check_clean_shutdown(self, root: str) -> None:
        """Check what a clean shutdown leaves: a metadata log up to the broker epoch, and checkpoints."""
        try:
            epoch = decode_clean_shutdown(self.disk.read(f"{root}/{names.CLEAN_SHUTDOWN_FILE}"))
        except FileNotFoundError:
            return
        ends = dict(self.report.ends)
        metadata_end = ends.pop(TopicPartition(names.METADATA_TOPIC, 0), None)
        if epoch is not None and metadata_end is not None and epoch >= metadata_end:
            self.add_finding(
                f"{root}/{names.METADATA_TOPIC}-0",
                FileKind.METADATA,
                f"the log ends at offset {metadata_end}, before broker epoch {epoch} in {names.CLEAN_SHUTDOWN_FILE}: "
                "its end is lost",
                offset=metadata_end,
            )
        for name in names.WRITTEN_AT_SHUTDOWN if any(ends.values()) else ():
            path = f"{root}/{name}"
            if self.disk.exists(path) and not self.disk.read(path):
                self.add_finding(path, FileKind.CHECKPOINT, "empty, although the shutdown was clean")

    def _check_properties(self, path: str) -> None:
        try:
            text = self.disk.read(path).decode("latin-1")
        except FileNotFoundError:
            self.add_finding(path, FileKind.METADATA, "not there: this is not a formatted log directory", wrong=False)
            return
        pairs = {
            key.strip(): value.strip()
            for key, equals, value in (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
            if equals
        }
        for key in ("version", "cluster.id", "node.id") if pairs.get("version") != "0" else ("cluster.id", "broker.id"):
            if not pairs.get(key):
                self.add_finding(path, FileKind.METADATA, f"has no {key}")

    # A partition -------------------------------------------------------------------------------------------------

    def check_partition(self, folder: PartitionFolder) -> Uuid | None:
        """Check a partition's folder; return the topic id in it."""
        self.report.partitions += 1
        topic_id = self._check_topic_id(folder)
        for name in folder.orphans:
            self.add_finding(f"{folder.path}/{name}", FileKind.NAME, "an index without its log", wrong=False)
        for name in folder.others:
            self._check_other(folder, name)
        if not folder.segments:
            self.add_finding(folder.path, FileKind.NAME, "has no segment", wrong=False)
        check = PartitionCheck(
            self.disk,
            folder,
            self.report,
            may_have_gaps=self._may_have_gaps(folder.partition),
            deep=self._deep,
            progress=self._progress,
        )
        self.report.ends[folder.partition] = check.run()
        return topic_id

    def _may_have_gaps(self, partition: TopicPartition) -> bool:
        return not self._facts.known or partition.topic in self._facts.compacted or partition in self._cleaned

    def _check_topic_id(self, folder: PartitionFolder) -> Uuid | None:
        path = f"{folder.path}/{names.PARTITION_METADATA}"
        topic = folder.partition.topic
        expected = self._facts.topic_ids.get(topic)
        try:
            topic_id = decode_partition_metadata(self.disk.read(path))
        except FileNotFoundError:
            if topic != names.METADATA_TOPIC:
                self.add_finding(path, FileKind.TOPIC_ID, "not there", wrong=expected is not None)
            return None
        except CorruptCheckpointError as error:
            self.add_finding(path, FileKind.TOPIC_ID, str(error))
            return None
        if expected is not None and topic_id != expected:
            self.add_finding(
                path, FileKind.TOPIC_ID, f"names topic {topic_id}, but {topic} is {expected} in the metadata log"
            )
        elif expected is None and self._facts.known and topic != names.METADATA_TOPIC:
            reason = f"the metadata log has no topic {topic}: a broker would set this folder aside"
            self.add_finding(path, FileKind.TOPIC_ID, reason, wrong=False)
        return topic_id

    def _check_other(self, folder: PartitionFolder, name: str) -> None:
        path = f"{folder.path}/{name}"
        file = names.parse_numbered(name)
        if file is not None:
            if file.mark != names.DELETED_SUFFIX:
                self.add_finding(path, FileKind.NAME, "left by a compaction that did not finish", wrong=False)
        elif name.endswith(METADATA_SNAPSHOT_SUFFIX) and folder.partition.topic == names.METADATA_TOPIC:
            self._check_metadata_snapshot(path)
        elif name == QUORUM_STATE:
            try:
                state = json.loads(self.disk.read(path))
                if not isinstance(state.get("leaderEpoch"), int):
                    self.add_finding(path, FileKind.METADATA, "has no leaderEpoch")
            except (ValueError, AttributeError):
                self.add_finding(path, FileKind.METADATA, "is not a JSON object")

    def _check_metadata_snapshot(self, path: str) -> None:
        """Check a metadata snapshot: whole batches from header to footer."""
        kinds: list[object] = []
        position = offset = 0
        try:
            for header, data in scan_batches(self.disk, path):
                position, offset = header.position, header.base_offset
                if reason := wrong_crc(header, data):
                    self.add_finding(path, FileKind.METADATA, reason, position, offset)
                if header.is_control:
                    records = iter_records(data, header._replace(position=0))
                    kinds += [decode_control_key(record.key or b"") for record in records]
        except CorruptLogError as error:
            self.add_finding(path, FileKind.METADATA, str(error), error.position, offset)
            return
        except (InvalidRecords, ProtocolError) as error:
            self.add_finding(path, FileKind.METADATA, str(error), position, offset)
            return
        if not kinds or kinds[0] is not ControlRecordType.SNAPSHOT_HEADER:
            self.add_finding(path, FileKind.METADATA, "does not begin with a snapshot header", 0)
        elif kinds[-1] is not ControlRecordType.SNAPSHOT_FOOTER:
            self.add_finding(path, FileKind.METADATA, "has no footer: it was not finished", position)
