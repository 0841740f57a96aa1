"""XXH3 with 64 bits and seed 0: the hash of topic metadata in the records of consumer, share and streams groups.

Apache Kafka computes the same hash, so that it takes a group over without a rebalance.
"""

from __future__ import annotations


def xxh3_64(data: bytes) -> int:
    """Return the hash as an unsigned number."""
    import xxhash

    return xxhash.xxh3_64_intdigest(data)
