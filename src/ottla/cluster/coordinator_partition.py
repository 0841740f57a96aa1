"""Which partition of a coordinator's topic keeps a key: a group's in `__consumer_offsets`, or a transactional id's."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=1 << 14)  # every heartbeat asks, and most groups beat often
def java_string_hash(text: str) -> int:
    """`String.hashCode` of Java, over the UTF-16 code units."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8) + units[index + 1]) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def partition_for(key: str, partition_count: int) -> int:
    """The partition of a key, as Kafka computes it; the smallest number has no absolute value and goes to 0."""
    value = java_string_hash(key)
    return 0 if value == -0x8000_0000 else abs(value) % partition_count
