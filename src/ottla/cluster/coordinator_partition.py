"""Which partition of a coordinator's topic keeps a key: a group's in `__consumer_offsets`, or a transactional id's."""

from __future__ import annotations

from ottla.hashing.java import java_string_hash


def partition_for(key: str, partition_count: int) -> int:
    """The partition of a key, as Kafka computes it; the smallest number has no absolute value and goes to 0."""
    value = java_string_hash(key)
    return 0 if value == -0x8000_0000 else abs(value) % partition_count
