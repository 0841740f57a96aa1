"""The order in which Java's HashMap gives its keys, where Kafka lets it decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ottla.hashing.string_hash import java_string_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

K = TypeVar("K")


def hash_map_order(keys: Iterable[str]) -> list[str]:
    """Distinct strings in the order of a `HashMap` that they were put into one after the other."""
    return hash_order(keys, java_string_hash)


def hash_order(keys: Iterable[K], hash_code: Callable[[K], int], capacity: int = 16) -> list[K]:
    """The same for keys of any kind, and a map that was made for so many."""
    listed = list(keys)
    buckets = 1
    while buckets < capacity or len(listed) > buckets * 3 // 4:
        buckets *= 2

    def bucket(key: K) -> int:
        value = hash_code(key) & 0xFFFFFFFF
        return (value ^ value >> 16) & (buckets - 1)

    return sorted(listed, key=bucket)


def timeline_map_order(keys: Iterable[str]) -> list[str]:
    """Distinct strings in the order of Kafka's `TimelineHashMap`, which keeps the state of coordinators.

    It never shrinks, so the order is another one where there once were more.
    """
    listed = list(keys)[::-1]  # of one slot, what was put last comes first
    slots = 2
    while len(listed) * 3 > slots * 4:
        slots *= 2
    shift = 65 - slots.bit_length()

    def slot(key: str) -> int:
        return (java_string_hash(key) * -7046029254386353131 & 0xFFFFFFFFFFFFFFFF) >> shift

    return sorted(listed, key=slot)
