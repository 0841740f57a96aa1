from __future__ import annotations

import errno
import threading

import pytest

from ottla.world import MemoryDisk, VirtualClock
from ottla.world.disk import write_atomic
from ottla.world.disk_memory import CHUNK


def test_writes_beyond_cap_fail_until_files_are_removed() -> None:
    disk = MemoryDisk(cap_bytes=100)
    file = disk.open("a", create=True)
    file.append(b"x" * 60)
    for call in (
        lambda: file.append(b"y" * 20, b"z" * 21),
        lambda: file.write_at(90, b"y" * 11),
        lambda: file.truncate(101),
        lambda: write_atomic(disk, "b", b"y" * 41),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.ENOSPC
    assert file.read_at(0, 200) == b"x" * 60
    assert disk.list("/") == ["a"]
    file.write_at(50, b"y" * 50)
    assert disk.used_bytes == 100
    file.truncate(10)
    write_atomic(disk, "b", b"z" * 90)
    assert disk.used_bytes == 100
    disk.remove("b")
    assert disk.used_bytes == 10
    disk.make_dirs("d/e")
    disk.rename("a", "d/e/a")
    disk.remove_tree("d")
    assert disk.used_bytes == 0
    file.append(b"into nowhere")
    assert disk.used_bytes == 0


def test_replaced_file_frees_its_bytes() -> None:
    disk = MemoryDisk(cap_bytes=100)
    for _ in range(10):
        write_atomic(disk, "a", b"x" * 50)
    assert disk.used_bytes == 50


def test_chunks_fit_file_size() -> None:
    disk = MemoryDisk()
    file = disk.open("a", create=True)
    file.append(b"x" * 10)
    assert [len(chunk) for chunk in file.contents.chunks] == [256]
    file.append(b"x" * (3 * CHUNK))
    assert [len(chunk) for chunk in file.contents.chunks] == [CHUNK] * 4


def test_sync_calls_back_on_next_clock_turn() -> None:
    clock = VirtualClock(start_ms=5)
    disk = MemoryDisk(clock=clock)
    file = disk.open("a", create=True)
    calls: list[object] = []
    disk.sync([file], calls.append)
    assert calls == []
    clock.advance(0)
    assert calls == [None]
    assert disk.modified_ms("a") == 5
    clock.advance(1)
    file.append(b"x")
    assert disk.modified_ms("a") == 1_005


def test_reader_thread_does_not_disturb_writer() -> None:
    disk = MemoryDisk()
    writer = disk.open("a", create=True)
    reader = disk.open("a", writable=False)
    stop = threading.Event()
    wrong: list[bytes] = []

    def read() -> None:
        while not stop.is_set():
            data = reader.read_at(0, 1 << 20)
            if data.strip(b"x"):
                wrong.append(data)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for size in range(1, 3_000):
            writer.append(b"x" * (size % 700))
            if size % 100 == 0:
                writer.truncate(writer.size() // 2)
    finally:
        stop.set()
        thread.join()
    assert wrong == []
