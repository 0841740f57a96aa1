"""Java's string hash and the iteration order of its hash maps, against what Java 17 gives."""

from __future__ import annotations

import pytest

from ottla.hashing.java import hash_map_order, hash_order, java_string_hash


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
def test_string_hash_equals_javas(text: str, value: int) -> None:
    assert java_string_hash(text) == value


@pytest.mark.parametrize(
    ("count", "numbers"),
    [
        (5, [28, 0, 14, 21, 7]),
        (12, [70, 28, 0, 49, 14, 35, 56, 77, 21, 7, 42, 63]),
        (13, [28, 49, 14, 35, 56, 77, 21, 7, 42, 63, 84, 70, 0]),  # the map has grown to 32 buckets
    ],
)
def test_hash_map_order_equals_javas(count: int, numbers: list[int]) -> None:
    keys = [f"member-{index * 7}" for index in range(count)]
    assert hash_map_order(keys) == [f"member-{number}" for number in numbers]


def test_hash_order_with_capacity_equals_javas() -> None:
    assert hash_order([300, 1, 65537, 17, 64, -1], lambda key: key, 64) == [65537, 64, -1, 1, 17, 300]
