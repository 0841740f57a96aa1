"""Formats of the small files in a log directory: checkpoints, `partition.metadata`, the clean shutdown file.

Formats are Kafka's, byte for byte. Decoding a damaged file raises `CorruptCheckpointError`; callers decide how to
recover.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from ottla.protocol.uuids import ZERO_UUID, Uuid
from ottla.storage.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SPACES = re.compile(r"\s+")
_COLON = re.compile(r":\s+")


class CorruptCheckpointError(ValueError):
    """A file that does not have the format of a checkpoint."""


def _encode(version: int, lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in (str(version), str(len(lines)), *lines)).encode()


def _decode(data: bytes, version: int) -> list[str]:
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError("checkpoint is not UTF-8") from error
    if not lines:
        return []
    if _int(lines[0]) != version:
        raise CorruptCheckpointError(f"unrecognised checkpoint version {lines[0]!r}, expected {version}")
    if len(lines) == 1:
        return []
    entries = lines[2:]
    if len(entries) != _int(lines[1]):
        raise CorruptCheckpointError(f"expected {lines[1]} entries in checkpoint, found {len(entries)}")
    return entries


def _int(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
        raise CorruptCheckpointError(f"malformed number {text!r} in checkpoint")
    return int(text)


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Encode an `*-offset-checkpoint` file: an offset per partition."""
    return _encode(0, [f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()])


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Decode an offset checkpoint; an empty file has no entries."""
    offsets: dict[TopicPartition, int] = {}
    for line in _decode(data, 0):
        parts = _SPACES.split(line)
        if len(parts) != 3:
            raise CorruptCheckpointError(f"malformed line {line!r} in checkpoint")
        offsets[TopicPartition(parts[0], _int(parts[1]))] = _int(parts[2])
    return offsets


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """Encode `leader-epoch-checkpoint`: the start offset of each leader epoch."""
    return _encode(0, [f"{epoch} {start}" for epoch, start in entries])


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    """Decode a leader epoch checkpoint as (epoch, start offset) pairs."""
    entries = []
    for line in _decode(data, 0):
        parts = _SPACES.split(line)
        if len(parts) != 2:
            raise CorruptCheckpointError(f"malformed line {line!r} in checkpoint")
        entries.append((_int(parts[0]), _int(parts[1])))
    return entries


def encode_partition_metadata(topic_id: Uuid) -> bytes:
    """Encode `partition.metadata`: the topic id of a partition's folder."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def decode_partition_metadata(data: bytes) -> Uuid:
    """Return the topic id in a `partition.metadata`; padded base64, which some tools write, is accepted."""
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError("partition.metadata is not UTF-8") from error
    if len(lines) < 2:
        raise CorruptCheckpointError("partition.metadata has fewer than two lines")
    version, topic_id = _COLON.split(lines[0]), _COLON.split(lines[1])
    if len(version) != 2 or len(topic_id) != 2 or _int(version[1]) < 0:
        raise CorruptCheckpointError("malformed line in partition.metadata")
    try:
        parsed = Uuid.parse(topic_id[1].strip().rstrip("="))
    except ValueError as error:
        raise CorruptCheckpointError(f"malformed topic id {topic_id[1]!r} in partition.metadata") from error
    if parsed == ZERO_UUID:
        raise CorruptCheckpointError("partition.metadata has the zero topic id")
    return parsed


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """Encode `.kafka_cleanshutdown`, the clean shutdown file, with the broker epoch."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def decode_clean_shutdown(data: bytes) -> int | None:
    """Return the broker epoch in a clean shutdown file, or None; before Kafka 3.8 the file was empty."""
    try:
        content = json.loads(data)
    except ValueError:
        return None
    epoch = content.get("brokerEpoch") if isinstance(content, dict) else None
    return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else None
