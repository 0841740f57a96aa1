"""Faults of the simulated disk. Each seed is one run; a failure names its seed."""

from __future__ import annotations

import errno
from functools import partial
from typing import TYPE_CHECKING

import pytest

from ottla.world import FaultyDisk, SeededRandom, SimulatedCrash, VirtualClock
from ottla.world.disk import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = range(200)


def made(seed: int) -> FaultyDisk:
    """Return a disk with one durable folder."""
    disk = FaultyDisk(SeededRandom(seed))
    disk.make_dirs("/d")
    disk.sync_dir("/")
    return disk


def after_power_loss(disk: FaultyDisk) -> FaultyDisk:
    disk.crash()
    return disk.reopen()


@pytest.mark.parametrize("seed", SEEDS)
def test_synced_bytes_survive_power_loss(seed: int) -> None:
    disk = made(seed)
    file = disk.open("/d/a", create=True)
    disk.sync_dir("/d")
    file.append(b"durable ")
    file.sync()
    file.append(b"perhaps ")
    file.append(b"never")
    disk = after_power_loss(disk)
    left = disk.read("/d/a")
    whole = b"durable perhaps never"
    assert left.startswith(b"durable ")
    assert len(left) <= len(whole)
    assert all(got in (expected, 0) for got, expected in zip(left, whole, strict=False))


def test_unsynced_write_has_every_outcome() -> None:
    fates: set[bytes] = set()
    for seed in range(600):
        disk = made(seed)
        file = disk.open("/d/a", create=True)
        disk.sync_dir("/d")
        file.append(b"ab")
        file.append(b"cd")
        fates.add(after_power_loss(disk).read("/d/a"))
    assert {b"", b"a", b"ab", b"abc", b"abcd", b"\0\0cd", b"a\0cd", b"ab\0\0", b"\0\0"} <= fates


def test_unsynced_overwrite_may_be_lost() -> None:
    fates: set[bytes] = set()
    for seed in range(100):
        disk = made(seed)
        file = disk.open("/d/a", create=True)
        disk.sync_dir("/d")
        file.append(b"old!")
        file.sync()
        file.write_at(1, b"EW")
        fates.add(after_power_loss(disk).read("/d/a"))
    assert fates == {b"old!", b"oEd!", b"oEW!"}


def test_lost_truncation_loses_later_writes() -> None:
    fates: set[bytes] = set()
    for seed in range(300):
        disk = made(seed)
        file = disk.open("/d/a", create=True)
        disk.sync_dir("/d")
        file.append(b"abcd")
        file.sync()
        file.truncate(1)
        file.append(b"X")
        fates.add(after_power_loss(disk).read("/d/a"))
    assert fates == {b"abcd", b"a", b"aX", b"a\0"}


@pytest.mark.parametrize("seed", SEEDS)
def test_process_crash_keeps_completed_writes(seed: int) -> None:
    disk = made(seed)
    file = disk.open("/d/a", create=True)
    file.append(b"abc")
    disk.rename("/d/a", "/d/b")
    file.write_at(1, b"X")
    disk.crash(process_only=True)
    disk = disk.reopen()
    assert disk.list("/d") == ["b"]
    assert disk.read("/d/b") == b"aXc"
    # It was never synced, so the power can still take it.
    assert disk.unsynced_bytes("/d/b") == 4


def test_latest_name_changes_are_lost_first() -> None:
    states: set[tuple[str, ...]] = set()
    for seed in range(300):
        disk = made(seed)
        for name in "abc":
            disk.open(f"/d/{name}", create=True).close()
        disk.rename("/d/a", "/d/z")
        disk.remove("/d/b")
        states.add(tuple(after_power_loss(disk).list("/d")))
    assert states == {(), ("a",), ("a", "b"), ("a", "b", "c"), ("b", "c", "z"), ("c", "z")}


def test_sync_dir_keeps_all_earlier_name_changes() -> None:
    states: set[tuple[str, ...]] = set()
    for seed in range(200):
        disk = made(seed)
        disk.open("/d/a", create=True).close()
        disk.make_dirs("/e/f")
        disk.open("/e/f/b", create=True).close()
        disk.sync_dir("/e/f")
        disk.open("/d/c", create=True).close()
        disk = after_power_loss(disk)
        assert disk.list("/e/f") == ["b"]
        states.add(tuple(disk.list("/d")))
    assert states == {("a",), ("a", "c")}


def test_lost_removal_restores_durable_bytes() -> None:
    left: set[bytes | None] = set()
    for seed in range(60):
        disk = made(seed)
        disk.make_dirs("/e")
        write_atomic(disk, "/d/a", b"durable")
        disk.rename("/d/a", "/e/b")
        disk.remove("/e/b")
        disk.sync_dir("/d")  # makes the rename durable, but not the removal
        disk = after_power_loss(disk)
        assert disk.list("/d") == []
        left.add(disk.read("/e/b") if disk.exists("/e/b") else None)
    assert left == {b"durable", None}


def test_file_sync_does_not_keep_its_name() -> None:
    outcomes = set()
    for seed in range(50):
        disk = made(seed)
        file = disk.open("/d/a", create=True)
        file.append(b"x")
        file.sync()
        disk = after_power_loss(disk)
        outcomes.add(disk.exists("/d/a") and disk.read("/d/a"))
    assert outcomes == {False, b"x"}


def test_rename_before_sync_may_leave_empty_file() -> None:
    outcomes = set()
    for seed in range(200):
        disk = made(seed)
        write_atomic(disk, "/d/a", b"old")
        file = disk.open("/d/a.tmp", create=True)
        file.append(b"new")
        disk.rename("/d/a.tmp", "/d/a")
        disk.sync_dir("/d")
        outcomes.add(after_power_loss(disk).read("/d/a"))
    assert {b"", b"new"} <= outcomes
    assert b"old" not in outcomes


@pytest.mark.parametrize("power", [True, False], ids=["power", "process"])
def test_write_atomic_leaves_old_or_new_file_at_any_crash(power: bool) -> None:
    outcomes: set[bytes] = set()
    steps = 0
    while True:
        steps += 1
        finished = 0
        for seed in range(20):
            disk = made(seed)
            write_atomic(disk, "/d/checkpoint", b"old")
            disk.crash_at_step(steps)
            try:
                write_atomic(disk, "/d/checkpoint", b"the new one")
            except SimulatedCrash:
                pass
            else:
                finished += 1
            disk.crash(process_only=not power)
            left = disk.reopen().read("/d/checkpoint")
            assert left in (b"old", b"the new one")
            assert not finished or left == b"the new one", "an answer was given, and then it was taken back"
            outcomes.add(left)
        if finished:
            break
    assert steps == 6
    assert outcomes == {b"old", b"the new one"}


def test_crash_during_write_leaves_prefix() -> None:
    lengths: set[int] = set()
    for seed in range(100):
        disk = made(seed)
        file = disk.open("/d/a", create=True)
        file.append(b"first ")
        disk.crash_after(2)
        file.append(b"second ")
        with pytest.raises(SimulatedCrash):
            file.append(b"th", b"ird")
        left = disk.reopen().read("/d/a")
        assert b"first second third".startswith(left)
        lengths.add(len(left) - len(b"first second "))
    assert lengths == {0, 1, 2, 3, 4, 5}


def test_torn_byte_can_be_chosen() -> None:
    for torn in range(6):
        disk = made(1)
        file = disk.open("/d/a", create=True)
        disk.crash_after(1, torn_bytes=torn)
        with pytest.raises(SimulatedCrash):
            file.append(b"abcde")
        assert disk.reopen().read("/d/a") == b"abcde"[:torn]


def test_crash_invalidates_handles_and_releases_locks() -> None:
    disk = made(1)
    file = disk.open("/d/a", create=True)
    lock = disk.lock("/d/.lock")
    disk.crash(process_only=True)
    calls: list[Callable[[], object]] = [
        lambda: file.append(b"x"),
        lambda: file.write_at(0, b"x"),
        lambda: file.read_at(0, 1),
        lambda: file.truncate(0),
        lambda: file.sync(),
        lambda: file.size(),
        lambda: disk.open("/d/a"),
        lambda: disk.read("/d/a"),
        lambda: disk.list("/d"),
        lambda: disk.exists("/d"),
        lambda: disk.rename("/d/a", "/d/b"),
        lambda: disk.remove("/d/a"),
        lambda: disk.sync([], lambda error: None),
    ]
    for call in calls:
        with pytest.raises(SimulatedCrash):
            call()
    file.close()
    lock.release()
    fresh = disk.reopen()
    assert fresh.list("/d") == [".lock", "a"]
    fresh.lock("/d/.lock")


def test_second_power_loss_changes_nothing() -> None:
    for seed in range(100):
        disk = made(seed)
        for name in "abc":
            file = disk.open(f"/d/{name}", create=True)
            file.append(b"one")
            file.append(b"two")
        disk = after_power_loss(disk)
        before = {name: disk.read(f"/d/{name}") for name in disk.list("/d")}
        for _ in range(3):
            disk = after_power_loss(disk)
            assert {name: disk.read(f"/d/{name}") for name in disk.list("/d")} == before


def test_same_seed_leaves_same_disk() -> None:
    def run(seed: int) -> list[tuple[str, bytes]]:
        disk = made(seed)
        for number in range(20):
            file = disk.open(f"/d/{number}", create=True)
            file.append(b"x" * number)
            file.append(b"y" * number)
            if number % 3:
                file.sync()
        disk = after_power_loss(disk)
        return [(name, disk.read(f"/d/{name}")) for name in disk.list("/d")]

    assert [run(seed) for seed in range(20)] == [run(seed) for seed in range(20)]
    assert run(1) != run(2)


def test_full_disk_keeps_nothing_of_refused_write() -> None:
    disk = made(1)
    write_atomic(disk, "/d/old", b"x" * 10)
    disk.fill_after(5)
    file = disk.open("/d/a", create=True)
    file.append(b"123")
    with pytest.raises(OSError) as caught:
        file.append(b"456")
    assert caught.value.errno == errno.ENOSPC
    assert file.read_at(0, 9) == b"123"
    file.write_at(0, b"abc")
    with pytest.raises(OSError):
        file.write_at(2, b"789xyz")
    assert file.read_at(0, 9) == b"ab789", "what fits of an overwrite is written, as a real disk does"
    disk.remove("/d/old")
    file.append(b"0123456789")
    disk.heal()
    file.append(b"x" * 1_000)


@pytest.mark.parametrize("operation", ["read", "write", "sync"])
def test_only_injected_call_fails(operation: str) -> None:
    disk = made(1)
    file, other = disk.open("/d/1.log", create=True), disk.open("/d/1.index", create=True)
    file.append(b"x")
    fault = disk.fail(operation, "*.log", nth=2, times=2)  # type: ignore[arg-type]

    def outcome(name: str) -> int | None:
        target = {"log": file, "index": other}[name]
        call: Callable[[], object] = {
            "read": lambda: target.read_at(0, 1),
            "write": lambda: target.append(b"y"),
            "sync": lambda: target.sync(),
        }[operation]
        try:
            call()
        except OSError as error:
            return error.errno
        return None

    results = [outcome(name) for name in ("log", "index", "index", "log", "index", "log", "log", "log")]
    after = errno.EIO if operation == "sync" else None
    assert results == [None, None, None, errno.EIO, None, errno.EIO, after, after]
    if operation == "write":
        assert disk.read("/d/1.log") == b"xyyy", "a failed append leaves nothing"
    assert fault.calls == (2 if operation == "sync" else 5)


def test_bytes_of_failed_sync_may_never_be_durable() -> None:
    left: set[bytes] = set()
    for seed in range(60):
        disk = made(seed)
        file = disk.open("/d/a", create=True)
        disk.sync_dir("/d")
        disk.fail("sync", "/d/a")
        file.append(b"lost?")
        with pytest.raises(OSError):
            file.sync()
        disk.heal()
        with pytest.raises(OSError):
            file.sync()
        with pytest.raises(OSError):
            disk.open("/d/a").sync()
        disk.crash(process_only=True)
        disk = disk.reopen()
        assert disk.read("/d/a") == b"lost?", "the kernel still shows it"
        again = disk.open("/d/a")
        again.append(b"kept!")
        again.sync()
        left.add(after_power_loss(disk).read("/d/a"))
    assert left == {b"lost?kept!", b"\0\0\0\0\0kept!"}


def test_flip_changes_one_bit_also_after_power_loss() -> None:
    disk = made(1)
    write_atomic(disk, "/d/a", b"\x00\x00\x00")
    disk.flip("/d/a", 1, 3)
    assert disk.read("/d/a") == b"\x00\x08\x00"
    disk = after_power_loss(disk)
    assert disk.read("/d/a") == b"\x00\x08\x00"
    disk.flip("/d/a", 1, 3)
    assert disk.read("/d/a") == b"\x00\x00\x00"
    with pytest.raises(ValueError):
        disk.flip("/d/a", 3, 0)


def test_calls_during_sync_share_the_next_one() -> None:
    clock = VirtualClock()
    disk = FaultyDisk(SeededRandom(1), clock, sync_seconds=(0.010, 0.010))
    file = disk.open("a", create=True)
    done: list[tuple[float, str]] = []

    def ask(name: str) -> None:
        disk.sync([file], lambda error: done.append((clock.monotonic(), name)))

    file.append(b"1")
    ask("first")
    clock.advance(0.004)
    file.append(b"2")
    ask("second")
    ask("third")
    assert disk.unsynced_bytes("a") == 2
    clock.advance(0.006)
    assert disk.unsynced_bytes("a") == 1, "what was written after the sync began is not part of it"
    clock.advance(0.010)
    assert disk.unsynced_bytes("a") == 0
    assert done == [(0.010, "first"), (0.020, "second"), (0.020, "third")]


def test_sync_interrupted_by_crash_gets_no_callback() -> None:
    clock = VirtualClock()
    disk = FaultyDisk(SeededRandom(1), clock, sync_seconds=(0.010, 0.010))
    file = disk.open("a", create=True)
    file.append(b"1")
    disk.sync([file], lambda error: pytest.fail("answered"))
    disk.sync([file], lambda error: pytest.fail("answered"))
    disk.crash()
    clock.advance(1)


def test_disk_sync_survives_power_loss() -> None:
    for seed in range(50):
        clock = VirtualClock()
        disk = FaultyDisk(SeededRandom(seed), clock, sync_seconds=(0.001, 0.1))
        file = disk.open("a", create=True)
        disk.sync_dir("/")
        acknowledged = 0

        def note(length: int, error: OSError | None) -> None:
            nonlocal acknowledged
            assert error is None
            acknowledged = length

        for number in range(30):
            file.append(bytes([number + 1]) * 10)
            disk.sync([file], partial(note, file.size()))
            clock.advance(disk.random.float() * 0.05)
        left = after_power_loss(disk).read("a")
        assert 0 < acknowledged <= len(left)
        assert left[:acknowledged] == b"".join(bytes([number + 1]) * 10 for number in range(30))[:acknowledged]


def test_interrupted_remove_tree_leaves_a_part() -> None:
    left: set[tuple[str, ...] | None] = set()
    for seed in range(200):
        disk = made(seed)
        disk.make_dirs("/d/t")
        for name in "abc":
            disk.open(f"/d/t/{name}", create=True).close()
        disk.sync_dir("/d/t")
        disk.remove_tree("/d/t")
        disk = after_power_loss(disk)
        left.add(tuple(disk.list("/d/t")) if disk.exists("/d/t") else None)
    assert left == {("a", "b", "c"), ("b", "c"), ("c",), (), None}


def test_unsynced_writes_are_bounded_by_writeback() -> None:
    disk = made(1)
    file = disk.open("/d/a", create=True)
    disk.sync_dir("/d")
    for _ in range(20_000):
        file.append(b"x")
    assert disk.unsynced_bytes("/d/a") <= 4_096
    assert len(after_power_loss(disk).read("/d/a")) > 10_000


def test_sync_tree_keeps_files_and_names_through_power_loss() -> None:
    for seed in range(50):
        disk = made(seed)
        disk.make_dirs("/d/log")
        for number in range(3):
            write_atomic(disk, f"/d/log/{number}", b"content", sync=False)
        disk.sync_tree("/d")
        write_atomic(disk, "/d/log/3", b"later", sync=False)
        disk.crash()
        left = disk.reopen()
        assert [left.read(f"/d/log/{number}") for number in range(3)] == [b"content"] * 3


def test_sync_tree_fails_if_one_file_below_fails() -> None:
    disk = made(1)
    write_atomic(disk, "/d/a", b"x", sync=False)
    disk.fail("sync", "/d/a")
    with pytest.raises(OSError, match="/d/a"):
        disk.sync_tree("/d")
