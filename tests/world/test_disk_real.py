"""RealDisk: partial writes, group commit, failed syncs, locks between processes."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from ottla.world import RealDisk
from ottla.world import disk_real as module
from ottla.world.disk import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ottla.world import Buffer

WAIT = 60


class Syncs:
    """A replacement of fsync that counts calls, can block the first one and fails for some files."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.failing: set[int] = set()
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.let_go.set()

    def __call__(self, fd: int) -> None:
        self.calls.append(fd)
        self.entered.set()
        assert self.let_go.wait(WAIT)
        if fd in self.failing:
            raise OSError(errno.EIO, "the device is gone")


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Syncs]:
    made = Syncs()
    monkeypatch.setattr(module, "_fsync", made)
    yield made
    made.let_go.set()


def test_partial_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._pwritev
    sizes: list[int] = []

    def stingy(fd: int, parts: Sequence[Buffer], position: int) -> int:
        written = real(fd, [b"".join(parts)[:7]], position)
        sizes.append(written)
        return written

    monkeypatch.setattr(module, "_pwritev", stingy)
    disk = RealDisk()
    file = disk.open(str(tmp_path / "a"), create=True)
    file.append(b"0123456789", b"", b"abcdefghij", b"", b"XYZ", b"")
    file.write_at(5, b"-" * 16)
    assert file.read_at(0, 99) == b"01234" + b"-" * 16 + b"YZ"
    assert max(sizes) == 7
    file.close()


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._pread
    monkeypatch.setattr(module, "_pread", lambda fd, length, position: real(fd, min(length, 3), position))
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    file.append(b"0123456789")
    assert file.read_at(1, 8) == b"12345678"
    assert file.read_at(1, 100) == b"123456789"
    file.close()


def test_failed_append_is_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._pwritev
    calls: list[int] = []

    def full(fd: int, parts: Sequence[Buffer], position: int) -> int:
        calls.append(position)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "full")
        return real(fd, [b"".join(parts)[:4]], position)

    file = RealDisk().open(str(tmp_path / "a"), create=True)
    file.append(b"before")
    monkeypatch.setattr(module, "_pwritev", full)
    with pytest.raises(OSError) as caught:
        file.append(b"never seen")
    assert caught.value.errno == errno.ENOSPC
    assert calls == [6, 10]
    assert file.read_at(0, 99) == b"before"
    file.close()


async def test_calls_during_sync_share_the_next_one(tmp_path: Path, syncs: Syncs) -> None:
    loop = asyncio.get_running_loop()
    disk = RealDisk(loop)
    files = [disk.open(str(tmp_path / name), create=True) for name in "abc"]
    order: list[int] = []
    finished = loop.create_future()
    syncs.let_go.clear()
    disk.sync([files[0]], lambda error: order.append(0))
    assert await asyncio.to_thread(syncs.entered.wait, WAIT)
    for number in range(1, 10):
        disk.sync([files[1], files[number % 3]], lambda error, number=number: order.append(number))  # type: ignore[misc]
    disk.sync([], lambda error: (order.append(10), finished.set_result(error)))
    assert order == []
    syncs.let_go.set()
    assert await finished is None
    assert order == list(range(11))
    first, *rest = syncs.calls
    assert first == files[0]._fd
    assert sorted(rest) == sorted(file._fd for file in files)
    disk.close()
    for file in files:
        file.close()


async def test_failed_sync_fails_later_syncs_of_file(tmp_path: Path, syncs: Syncs) -> None:
    loop = asyncio.get_running_loop()
    disk = RealDisk(loop)
    good, bad = (disk.open(str(tmp_path / name), create=True) for name in "ab")
    syncs.failing.add(bad._fd)

    async def sync(*files: module.RealFile) -> OSError | None:
        done: asyncio.Future[OSError | None] = loop.create_future()
        disk.sync(files, done.set_result)
        return await done

    results = await asyncio.gather(sync(good), sync(good, bad), sync(bad), sync(good))
    assert [None if error is None else error.errno for error in results] == [None, errno.EIO, errno.EIO, None]
    tried = syncs.calls.count(bad._fd)
    syncs.failing.clear()
    assert (await sync(bad)) is results[2]
    with pytest.raises(OSError):
        bad.sync()
    again = disk.open(str(tmp_path / "b"))
    with pytest.raises(OSError):
        again.sync()
    assert syncs.calls.count(bad._fd) == tried, "the system was asked again after it had failed"
    assert await sync(good) is None
    disk.close()
    for file in (good, bad, again):
        file.close()


async def test_file_closed_while_waiting_for_sync_is_synced_first(tmp_path: Path, syncs: Syncs) -> None:
    loop = asyncio.get_running_loop()
    disk = RealDisk(loop)
    first, second = (disk.open(str(tmp_path / name), create=True) for name in "ab")
    fd = second._fd
    done: asyncio.Future[OSError | None] = loop.create_future()
    syncs.let_go.clear()
    disk.sync([first], lambda error: None)
    assert await asyncio.to_thread(syncs.entered.wait, WAIT)
    disk.sync([second], done.set_result)
    second.close()
    os.fstat(fd)
    syncs.let_go.set()
    assert await done is None
    assert fd in syncs.calls
    with pytest.raises(OSError):
        os.fstat(fd)
    disk.close()
    first.close()


async def test_callback_error_does_not_block_next_callback(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    disk = RealDisk(loop)
    file = disk.open(str(tmp_path / "a"), create=True)
    done: asyncio.Future[OSError | None] = loop.create_future()
    disk.sync([file], lambda error: 1 // 0)
    disk.sync([file], done.set_result)
    assert await done is None
    assert [type(error) for error in errors] == [ZeroDivisionError]
    disk.close()
    file.close()


async def test_close_completes_pending_syncs_and_ends_thread(tmp_path: Path, syncs: Syncs) -> None:
    disk = RealDisk(asyncio.get_running_loop())
    file = disk.open(str(tmp_path / "a"), create=True)
    results: list[OSError | None] = []
    for _ in range(5):
        disk.sync([file], results.append)
    thread = disk._flusher
    assert thread is not None
    disk.close()
    disk.close()
    assert not thread.is_alive()
    await asyncio.sleep(0)
    assert results == [None] * 5
    with pytest.raises(OSError):
        disk.sync([file], results.append)
    file.close()


def test_loop_may_close_before_sync_ends(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    disk = RealDisk(loop)
    file = disk.open(str(tmp_path / "a"), create=True)
    loop.close()
    disk.sync([file], lambda error: None)
    disk.close()
    file.close()


def test_file_of_another_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        RealDisk().sync([object()], lambda error: None)  # type: ignore[list-item]


def test_write_atomic_syncs_bytes_then_renames_then_syncs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, syncs: Syncs
) -> None:
    steps: list[str] = []
    monkeypatch.setattr(module, "_fsync", lambda fd: steps.append("bytes"))
    replace, sync_dir = os.replace, RealDisk.sync_dir
    monkeypatch.setattr(os, "replace", lambda old, new: (steps.append("name"), replace(old, new)))
    monkeypatch.setattr(RealDisk, "sync_dir", lambda self, path: (steps.append(path), sync_dir(self, path)))
    write_atomic(RealDisk(), f"{tmp_path}/checkpoint", b"x")
    assert steps == ["bytes", "name", str(tmp_path)]


def test_write_atomic_keeps_old_file_if_sync_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    write_atomic(disk, f"{tmp_path}/checkpoint", b"old")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(module, "_fsync", fail)
    with pytest.raises(OSError):
        write_atomic(disk, f"{tmp_path}/checkpoint", b"new")
    assert disk.list(str(tmp_path)) == ["checkpoint"]
    assert disk.read(f"{tmp_path}/checkpoint") == b"old"


def test_descriptors_are_closed(tmp_path: Path) -> None:
    disk = RealDisk()
    file = disk.open(str(tmp_path / "a"), create=True)
    fd = file._fd
    del file
    with pytest.raises(OSError):
        os.fstat(fd)
    with pytest.raises(IsADirectoryError):
        disk.open(str(tmp_path), writable=False)


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as Java's FileChannel.tryLock: a record lock over the whole file
print("held", flush=True)
sys.stdin.read()
"""
TRY = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("taken")
except BlockingIOError:
    print("refused")
"""
TRY_OTTLA = """
import sys
from ottla.world import RealDisk
try:
    RealDisk().lock(sys.argv[1])
    print("taken")
except BlockingIOError as error:
    print("refused", error)
"""
posix = pytest.mark.skipif(sys.platform == "win32", reason="record locks are POSIX")


def _python(code: str, path: str) -> str:
    return subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True).stdout.strip()


@posix
def test_other_process_is_refused_until_lock_is_released(tmp_path: Path) -> None:
    path = f"{tmp_path}/.lock"
    lock = RealDisk().lock(path)
    with pytest.raises(BlockingIOError):  # and this must not give up the lock by closing the file
        RealDisk().lock(path)
    assert _python(TRY, path) == "refused"
    refusal = _python(TRY_OTTLA, path)
    assert refusal.startswith("refused")
    assert "another process" in refusal
    lock.release()
    assert _python(TRY, path) == "taken"
    assert _python(TRY_OTTLA, path) == "taken"


@posix
def test_lock_of_another_program_is_respected(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match="another process"):
            RealDisk().lock(str(path))
        holder.communicate("")
    RealDisk().lock(str(path)).release()


@posix
def test_lock_follows_file_not_its_name(tmp_path: Path) -> None:
    lock = RealDisk().lock(f"{tmp_path}/.lock")
    os.symlink(tmp_path, tmp_path / "link")
    with pytest.raises(BlockingIOError, match="this process"):
        RealDisk().lock(f"{tmp_path}/link/.lock")
    lock.release()
