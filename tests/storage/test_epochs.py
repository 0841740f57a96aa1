from __future__ import annotations

from ottla.storage.log.leader_epochs import LeaderEpochCache

CACHE = [(0, 0), (2, 10), (5, 30)]


def test_epoch_ends_where_next_epoch_starts() -> None:
    cache = LeaderEpochCache(CACHE)
    assert cache.end_offset_for(5, 44) == (5, 44)
    assert cache.end_offset_for(2, 44) == (2, 30)
    assert cache.end_offset_for(4, 44) == (2, 30)
    assert cache.end_offset_for(1, 44) == (0, 10)
    assert cache.end_offset_for(6, 44) == (-1, -1)
    assert cache.end_offset_for(-1, 44) == (-1, -1)
    assert LeaderEpochCache([(3, 7)]).end_offset_for(1, 9) == (1, 7)
    assert LeaderEpochCache().end_offset_for(0, 9) == (-1, -1)


def test_new_epoch_removes_contradicting_entries() -> None:
    cache = LeaderEpochCache(CACHE)
    assert not cache.assign(5, 40)
    assert cache.assign(6, 30)
    assert cache.entries() == [(0, 0), (2, 10), (6, 30)]
    assert cache.assign(3, 5)
    assert cache.entries() == [(0, 0), (3, 5)]
    assert not cache.assign(-1, 5)


def test_epochs_are_truncated_from_both_ends() -> None:
    cache = LeaderEpochCache(CACHE)
    cache.truncate_from_end(30)
    assert cache.entries() == [(0, 0), (2, 10)]
    cache.truncate_from_start(12)
    assert cache.entries() == [(2, 12)]
    cache.truncate_from_start(12)
    assert cache.entries() == [(2, 12)]
