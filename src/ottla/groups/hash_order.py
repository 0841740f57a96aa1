"""The order in which Java's HashMap gives its keys, where Kafka lets it decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.coordinator_partition import java_string_hash

if TYPE_CHECKING:
    from collections.abc import Iterable


def hash_map_order(keys: Iterable[str]) -> list[str]:
    """Distinct strings in the order of a `HashMap` that they were put into one after the other."""
    listed = list(keys)
    buckets = 16
    while len(listed) > buckets * 3 // 4:
        buckets *= 2

    def bucket(key: str) -> int:
        value = java_string_hash(key) & 0xFFFFFFFF
        return (value ^ value >> 16) & (buckets - 1)

    return sorted(listed, key=bucket)
