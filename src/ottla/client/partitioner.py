"""The partition of a key, as Kafka's DefaultPartitioner in the Java client chooses it: murmur2 of the key."""

from __future__ import annotations

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash of Kafka's Java client, as an unsigned number.

    >>> murmur2(b"21") - 2**32
    -973932308
    """
    length = len(data)
    hashed = (_SEED ^ length) & _MASK
    whole = length & ~3
    for start in range(0, whole, 4):
        word = (int.from_bytes(data[start : start + 4], "little") * _MULTIPLIER) & _MASK
        word ^= word >> 24
        hashed = ((hashed * _MULTIPLIER) & _MASK) ^ ((word * _MULTIPLIER) & _MASK)
    if length & 3:
        hashed ^= int.from_bytes(data[whole:], "little")
        hashed = (hashed * _MULTIPLIER) & _MASK
    hashed ^= hashed >> 13
    hashed = (hashed * _MULTIPLIER) & _MASK
    return hashed ^ (hashed >> 15)


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition that Kafka's Java client chooses for a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
