"""Find damage in `__cluster_metadata-0` before the log is opened, and describe what truncation would lose.

Reading only: `metadata.log` refuses to start on damage with valid batches behind it, `metadata.repair` removes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

from ottla.protocol.errors import ProtocolError
from ottla.protocol.record_schemas.metadata import TopicRecord
from ottla.protocol.record_values import decode_metadata_record
from ottla.records.batch import HEADER, HEADER_SIZE, MAGIC, MAGIC_POSITION, BatchHeader, check_crc
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records
from ottla.storage.names import LOG_SUFFIX, parse_numbered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.world.disk import Disk

_TOPICS_NAMED = 5
_MAX_EPOCH = 2**31 - 1024
MAX_MISSING_OFFSETS = 10_000_000


class DamagedMetadataError(Exception):
    """The metadata cannot be loaded without losing records; the message says where, what, and which command helps."""


@dataclass(slots=True)
class MetadataSegment:
    """One segment of the metadata log: its valid batches in offset order, and where other bytes begin."""

    path: str
    base_offset: int
    data: bytes
    batches: list[BatchHeader] = field(default_factory=list)


@dataclass(slots=True)
class Damage:
    """The first place where the metadata log is not what was written, and what follows it."""

    path: str
    position: int
    offset: int
    reason: str
    following: list[tuple[MetadataSegment, BatchHeader]]

    def describe(self) -> str:
        """Return where the damage is and what a cut there would lose."""
        where = f"{self.path}: {self.reason} at byte {self.position}, offset {self.offset}"
        if not self.following:
            return where
        last = self.following[-1][1].last_offset
        topics = self._topics()
        named = f", with topics {', '.join(topics[:_TOPICS_NAMED])}" if topics else ""
        more = f" and {len(topics) - _TOPICS_NAMED} more" if len(topics) > _TOPICS_NAMED else ""
        return f"{where}; {len(self.following)} valid batches up to offset {last} follow{named}{more}"

    def _topics(self) -> list[str]:
        names: list[str] = []
        for segment, header in self.following:
            if header.is_control:
                continue
            try:
                for record in iter_records(segment.data, header):
                    decoded = decode_metadata_record(record.value or b"")
                    if isinstance(decoded, TopicRecord):
                        names.append(decoded.name)
            except (InvalidRecords, ProtocolError):
                continue
        return names


def read_segments(disk: Disk, folder: str) -> list[MetadataSegment]:
    """Read all segments of the metadata log with the valid batches in them, also those behind damage."""
    segments = []
    next_offset = 0
    for name in disk.list(folder):
        file = parse_numbered(name)
        if file is None or file.kind != LOG_SUFFIX or file.mark:
            continue
        path = f"{folder}/{name}"
        segment = MetadataSegment(path, file.offset, disk.read(path))
        next_offset = max(next_offset, file.offset)
        candidates = list(valid_batches(segment.data))
        for header, following in zip_longest(candidates, candidates[1:]):
            if _is_plausible(header, following, next_offset):
                segment.batches.append(header)
                next_offset = header.next_offset
        segments.append(segment)
    return segments


def _is_plausible(header: BatchHeader, following: BatchHeader | None, expected: int) -> bool:
    """Return whether base offset and leader epoch, which the CRC does not cover, fit the batches around them."""
    if not 0 <= header.partition_leader_epoch < _MAX_EPOCH:
        return False
    if following is not None and 0 <= following.partition_leader_epoch < header.partition_leader_epoch:
        return False
    if header.base_offset == expected:
        return True
    if following is not None and following.base_offset == expected + header.last_offset_delta + 1:
        return False
    return expected < header.base_offset < expected + MAX_MISSING_OFFSETS


def find_damage(segments: list[MetadataSegment]) -> Damage | None:
    """Return the first byte or offset at which the batches are not contiguous; None if all of them are."""
    expected: int | None = None
    for number, segment in enumerate(segments):
        position = 0
        if expected is not None and segment.base_offset != expected:
            before = segments[number - 1]
            reason = f"offsets {expected} to {segment.base_offset - 1} are missing"
            return Damage(before.path, len(before.data), expected, reason, _from(segments, number, 0))
        expected = segment.base_offset
        for index, header in enumerate(segment.batches):
            if header.position != position or header.base_offset != expected:
                return Damage(segment.path, position, expected, "no valid batch", _from(segments, number, index))
            position, expected = header.end, header.next_offset
        if position != len(segment.data):
            return Damage(segment.path, position, expected, "no valid batch", _from(segments, number + 1, 0))
    return None


def _from(segments: list[MetadataSegment], number: int, index: int) -> list[tuple[MetadataSegment, BatchHeader]]:
    following = [(segments[number], header) for header in segments[number].batches[index:]] if segments[number:] else []
    return following + [(segment, header) for segment in segments[number + 1 :] for header in segment.batches]


def valid_batches(data: bytes) -> Iterator[BatchHeader]:
    """Yield every batch with a right CRC, also behind bytes that are no batch."""
    position = 0
    while len(data) - position >= HEADER_SIZE:
        header = _batch_at(data, position)
        if header is not None:
            yield header
            position = header.end
            continue
        # The next candidate is where the byte of the magic is followed by the header of a batch.
        magic = data.find(MAGIC, position + 1 + MAGIC_POSITION)
        if magic < 0:
            return
        position = magic - MAGIC_POSITION


def _batch_at(data: bytes, position: int) -> BatchHeader | None:
    header = BatchHeader._make((*HEADER.unpack_from(data, position), position))
    size = header.size
    if header.magic != MAGIC or size < HEADER_SIZE or size > len(data) - position:
        return None
    if header.base_offset < 0 or header.last_offset_delta < 0 or not check_crc(data, header):
        return None
    return header
