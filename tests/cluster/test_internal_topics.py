"""Which partition coordinates an id: Kafka's hash, computed by Java."""

from __future__ import annotations

from ottla.cluster.internal_topics import partition_for


def test_the_smallest_number_has_no_absolute_value_and_goes_to_partition_0():
    assert partition_for("polygenelubricants", 50) == 0


def test_a_negative_hash_counts_by_its_absolute_value():
    assert partition_for("my-transactional-id", 50) == 46
