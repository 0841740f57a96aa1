"""Which partition a record goes to when nobody says: Java's rule for keys, whole batches in turn for those without."""

from __future__ import annotations

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Kafka's Java client, as an unsigned number.

    >>> murmur2(b"21") - 2**32
    -973932308
    """
    length = len(data)
    found = (_SEED ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        word = (int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER) & _MASK
        word ^= word >> 24
        found = ((found * _MULTIPLIER) & _MASK) ^ ((word * _MULTIPLIER) & _MASK)
    if length & 3:
        found ^= int.from_bytes(data[whole:], "little")
        found = (found * _MULTIPLIER) & _MASK
    found ^= found >> 13
    found = (found * _MULTIPLIER) & _MASK
    return found ^ (found >> 15)


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition that Kafka's clients choose for a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
