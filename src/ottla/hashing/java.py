"""Java's `String.hashCode`, and the iteration order of Java's HashMap and of Kafka's TimelineHashMap."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

K = TypeVar("K")


@lru_cache(maxsize=1 << 14)  # each heartbeat looks up the partition of its group
def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode`: over the UTF-16 code units, as a signed 32-bit number."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8) + units[index + 1]) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def hash_map_order(keys: Iterable[str]) -> list[str]:
    """Return distinct strings in the iteration order of a `HashMap` into which they were put one by one."""
    return hash_order(keys, java_string_hash)


def hash_order(keys: Iterable[K], hash_code: Callable[[K], int], capacity: int = 16) -> list[K]:
    """Return distinct keys in the iteration order of a `HashMap` with an initial capacity."""
    inserted = list(keys)
    buckets = 1
    while buckets < capacity or len(inserted) > buckets * 3 // 4:
        buckets *= 2

    def bucket(key: K) -> int:
        value = hash_code(key) & 0xFFFFFFFF
        return (value ^ value >> 16) & (buckets - 1)

    return sorted(inserted, key=bucket)


def timeline_map_order(keys: Iterable[str]) -> list[str]:
    """Return distinct strings in the iteration order of Kafka's `TimelineHashMap`, which holds coordinator state.

    The map never shrinks: after removals its order may differ from the one that is returned here.
    """
    inserted = list(keys)[::-1]  # within a slot, the key that was put last comes first
    slots = 2
    while len(inserted) * 3 > slots * 4:
        slots *= 2
    shift = 65 - slots.bit_length()

    def slot(key: str) -> int:
        return (java_string_hash(key) * -7046029254386353131 & 0xFFFFFFFFFFFFFFFF) >> shift

    return sorted(inserted, key=slot)
