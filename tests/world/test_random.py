from __future__ import annotations

import base64
import uuid

import pytest

from ottla.world import Random, SeededRandom, SystemRandom


@pytest.mark.parametrize("random", [SystemRandom(), SeededRandom(3)], ids=["system", "seeded"])
def test_values_stay_within_bounds(random: Random) -> None:
    assert len(random.bytes(33)) == 33
    assert {random.below(3) for _ in range(200)} == {0, 1, 2}
    assert all(0 <= random.float() < 1 for _ in range(100))
    assert {random.choice("ab") for _ in range(100)} == {"a", "b"}
    items = list(range(50))
    random.shuffle(items)
    assert sorted(items) == list(range(50))
    assert len(random.fork("x").bytes(4)) == 4


@pytest.mark.parametrize("random", [SystemRandom(), SeededRandom(3)], ids=["system", "seeded"])
def test_id_is_uuid_4_without_leading_dash(random: Random) -> None:
    made = [random.uuid() for _ in range(2_000)]
    assert len(set(made)) == 2_000
    for value in made:
        assert uuid.UUID(bytes=value).version == 4
        assert not base64.urlsafe_b64encode(value).startswith(b"-")
        assert int.from_bytes(value) >= 100


def test_same_seed_gives_same_values() -> None:
    random = SeededRandom(42)
    assert random.bytes(8).hex() == SeededRandom(42).bytes(8).hex() == "5f0d83efbd1c592d"
    assert SeededRandom(43).bytes(8) != SeededRandom(42).bytes(8)
    assert SeededRandom("42").bytes(8) == SeededRandom(42).bytes(8)


def test_fork_does_not_depend_on_earlier_draws() -> None:
    one, other = SeededRandom(1), SeededRandom(1)
    other.bytes(1_000)
    assert one.fork("disk").bytes(16) == other.fork("disk").bytes(16)
    assert one.fork("disk").bytes(16) != one.fork("network").bytes(16)
    assert one.fork("disk").fork("a").bytes(16) != one.fork("disk").bytes(16)
