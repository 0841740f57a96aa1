"""Which partition coordinates an id: Kafka's hash, computed by Java."""

from __future__ import annotations

from ottla.cluster.internal_topics import partition_for


def test_smallest_hash_maps_to_partition_0():
    assert partition_for("polygenelubricants", 50) == 0


def test_negative_hash_uses_absolute_value():
    assert partition_for("my-transactional-id", 50) == 46
