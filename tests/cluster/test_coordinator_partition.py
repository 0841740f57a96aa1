"""Which partition coordinates an id: Kafka's hash, computed by Java."""

from __future__ import annotations

import pytest

from ottla.cluster.coordinator_partition import partition_for
from ottla.hashing.string_hash import java_string_hash


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("my-transactional-id", -959806496),
        ("polygenelubricants", -2147483648),
        ("grüße", 98768023),
        ("\U0001f600", 1772899),
    ],
)
def test_the_hash_is_javas(text, value):
    assert java_string_hash(text) == value


def test_the_smallest_number_has_no_absolute_value_and_goes_to_partition_0():
    assert partition_for("polygenelubricants", 50) == 0


def test_a_negative_hash_counts_by_its_absolute_value():
    assert partition_for("my-transactional-id", 50) == 46
