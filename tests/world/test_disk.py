"""The contract of `Disk`, run against the real disk and each simulated disk."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.world.disk import write_atomic
from ottla.world.disk_memory import CHUNK

if TYPE_CHECKING:
    from ottla.world.disk import Disk


def test_appended_parts_read_back_at_any_range(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a.log", create=True)
    file.append(b"abc", bytearray(b"def"), memoryview(b"xghix")[1:4])
    file.append()
    file.append(b"")
    file.append(b"jkl")
    assert file.size() == 12
    assert file.read_at(0, 100) == b"abcdefghijkl"
    assert file.read_at(2, 5) == b"cdefg"
    assert file.read_at(12, 5) == b""
    assert file.read_at(99, 5) == b""
    assert file.read_at(3, 0) == b""
    assert type(file.read_at(0, 3)) is bytes
    file.close()
    file.close()


def test_append_accepts_more_parts_than_iov_max(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a.log", create=True)
    parts = [bytes([i % 251]) * (i % 7) for i in range(3000)]
    file.append(b"start", *parts)
    assert file.read_at(0, 1 << 20) == b"start" + b"".join(parts)
    file.close()


def test_append_copies_its_input(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a.log", create=True)
    buffer = bytearray(b"one")
    file.append(buffer)
    buffer[:] = b"two"
    assert file.read_at(0, 3) == b"one"
    file.close()


def test_reads_cross_chunk_borders(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a.log", create=True)
    data = bytes(range(256)) * (CHUNK // 100)
    for start in range(0, len(data), 100_003):
        file.append(data[start : start + 100_003])
    assert file.size() == len(data)
    for position, length in [
        (0, len(data)),
        (CHUNK - 1, 2),
        (CHUNK, 1),
        (CHUNK - 5, CHUNK + 10),
        (17, CHUNK),
    ]:
        assert file.read_at(position, length) == data[position : position + length]
    file.write_at(CHUNK - 3, b"border")
    assert file.read_at(CHUNK - 4, 8) == data[CHUNK - 4 : CHUNK - 3] + b"border" + data[CHUNK + 3 : CHUNK + 4]
    file.close()


def test_write_past_end_fills_with_zeros(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", create=True)
    file.write_at(3, b"x")
    assert file.read_at(0, 9) == b"\0\0\0x"
    file.write_at(0, b"abcdefg")
    assert file.read_at(0, 9) == b"abcdefg"
    file.write_at(100, b"")
    assert file.size() == 7
    file.close()


def test_truncated_bytes_do_not_return(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", create=True)
    file.append(b"abcdefgh")
    file.truncate(3)
    assert file.size() == 3
    file.truncate(6)
    assert file.read_at(0, 9) == b"abc\0\0\0"
    file.truncate(0)
    file.append(b"z")
    assert file.read_at(0, 9) == b"z"
    file.close()


def test_two_handles_share_one_file(disk: Disk, root: str) -> None:
    writer = disk.open(f"{root}/a", create=True)
    reader = disk.open(f"{root}/a", writable=False)
    writer.append(b"abc")
    assert reader.read_at(1, 9) == b"bc"
    assert reader.size() == 3
    with pytest.raises(OSError) as caught:
        reader.append(b"x")
    assert caught.value.errno == errno.EBADF
    writer.close()
    reader.close()


def test_open_file_survives_removal(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", create=True)
    file.append(b"abc")
    disk.rename(f"{root}/a", f"{root}/b")
    file.append(b"def")
    assert disk.read(f"{root}/b") == b"abcdef"
    disk.remove(f"{root}/b")
    assert file.read_at(0, 9) == b"abcdef"
    file.append(b"ghi")
    assert file.size() == 9
    file.close()
    assert not disk.exists(f"{root}/b")


def test_closed_file_and_negative_positions_are_refused(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", create=True)
    file.append(b"abc")
    for call in (
        lambda: file.read_at(-1, 1),
        lambda: file.read_at(0, -1),
        lambda: file.write_at(-1, b"x"),
        lambda: file.truncate(-1),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EINVAL
    file.close()
    for call in (
        lambda: file.read_at(0, 1),
        lambda: file.append(b"x"),
        lambda: file.sync(),
        lambda: file.size(),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EBADF


def test_huge_read_length_allocates_only_file_size(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", create=True)
    file.append(b"abc")
    assert file.read_at(1, 1 << 60) == b"bc"
    assert file.read_at(1 << 40, 1 << 60) == b""
    file.close()


def test_names_are_created_listed_renamed_and_removed(disk: Disk, root: str) -> None:
    disk.make_dirs(f"{root}/x/y")
    disk.make_dirs(f"{root}/x/y")
    write_atomic(disk, f"{root}/x/b", b"1")
    write_atomic(disk, f"{root}/x/a", bytearray(b"22"))
    assert disk.list(f"{root}/x") == ["a", "b", "y"]
    assert disk.is_dir(f"{root}/x/y")
    assert not disk.is_dir(f"{root}/x/a")
    assert disk.exists(f"{root}/x/a")
    assert not disk.exists(f"{root}/x/c")
    assert not disk.exists(f"{root}/x/a/c")
    assert disk.size(f"{root}/x/a") == 2
    disk.rename(f"{root}/x/a", f"{root}/x/b")
    assert disk.list(f"{root}/x") == ["b", "y"]
    assert disk.read(f"{root}/x/b") == b"22"
    disk.rename(f"{root}/x", f"{root}/z")
    assert disk.list(root) == ["z"]
    disk.make_dirs(f"{root}/empty")
    disk.rename(f"{root}/z", f"{root}/empty")
    assert disk.list(f"{root}/empty") == ["b", "y"]
    disk.sync_dir(f"{root}/empty")
    disk.remove_tree(f"{root}/empty")
    assert disk.list(root) == []


def test_write_atomic_replaces_and_leaves_no_temporary(disk: Disk, root: str) -> None:
    write_atomic(disk, f"{root}/checkpoint", b"a much longer first version")
    write_atomic(disk, f"{root}/checkpoint", b"second")
    assert disk.read(f"{root}/checkpoint") == b"second"
    assert disk.list(root) == ["checkpoint"]
    with pytest.raises(FileNotFoundError):
        write_atomic(disk, f"{root}/nowhere/checkpoint", b"x")


def test_wrong_names_raise_posix_errors(disk: Disk, root: str) -> None:
    disk.make_dirs(f"{root}/d/full")
    disk.make_dirs(f"{root}/e")
    write_atomic(disk, f"{root}/f", b"x")
    wrong = [
        (FileNotFoundError, lambda: disk.open(f"{root}/none")),
        (FileNotFoundError, lambda: disk.open(f"{root}/none/a", create=True)),
        (IsADirectoryError, lambda: disk.open(f"{root}/d")),
        (IsADirectoryError, lambda: disk.open(f"{root}/d", writable=False)),
        (NotADirectoryError, lambda: disk.open(f"{root}/f/a", create=True)),
        (FileNotFoundError, lambda: disk.read(f"{root}/none")),
        (IsADirectoryError, lambda: disk.read(f"{root}/d")),
        (FileNotFoundError, lambda: disk.size(f"{root}/none")),
        (IsADirectoryError, lambda: disk.size(f"{root}/d")),
        (FileNotFoundError, lambda: disk.modified_ms(f"{root}/none")),
        (FileNotFoundError, lambda: disk.set_modified_ms(f"{root}/none", 1)),
        (FileNotFoundError, lambda: disk.list(f"{root}/none")),
        (NotADirectoryError, lambda: disk.list(f"{root}/f")),
        (FileExistsError, lambda: disk.make_dirs(f"{root}/f")),
        (NotADirectoryError, lambda: disk.make_dirs(f"{root}/f/f")),
        (FileNotFoundError, lambda: disk.rename(f"{root}/none", f"{root}/x")),
        (FileNotFoundError, lambda: disk.rename(f"{root}/f", f"{root}/none/x")),
        (IsADirectoryError, lambda: disk.rename(f"{root}/f", f"{root}/e")),
        (NotADirectoryError, lambda: disk.rename(f"{root}/e", f"{root}/f")),
        (FileNotFoundError, lambda: disk.remove(f"{root}/none")),
        (IsADirectoryError, lambda: disk.remove(f"{root}/d")),
        (FileNotFoundError, lambda: disk.remove_tree(f"{root}/none")),
        (NotADirectoryError, lambda: disk.remove_tree(f"{root}/f")),
        (FileNotFoundError, lambda: disk.sync_dir(f"{root}/none")),
        (NotADirectoryError, lambda: disk.sync_dir(f"{root}/f")),
        (FileNotFoundError, lambda: disk.lock(f"{root}/none/.lock")),
    ]
    for index, (kind, call) in enumerate(wrong):
        with pytest.raises(OSError) as caught:
            call()
        assert type(caught.value) is kind, index
    for old, new, code in (("e", "d", errno.ENOTEMPTY), ("d", "d/full/x", errno.EINVAL)):
        with pytest.raises(OSError) as caught:
            disk.rename(f"{root}/{old}", f"{root}/{new}")
        assert caught.value.errno == code
    assert disk.list(root) == ["d", "e", "f"]
    assert disk.list(f"{root}/d") == ["full"]


def test_modification_time_is_read_and_set(disk: Disk, root: str) -> None:
    write_atomic(disk, f"{root}/a", b"x")
    disk.set_modified_ms(f"{root}/a", 1_600_000_000_123)
    assert disk.modified_ms(f"{root}/a") == 1_600_000_000_123
    file = disk.open(f"{root}/a")
    file.append(b"y")
    assert disk.modified_ms(f"{root}/a") > 1_600_000_000_123
    file.close()


def test_space_returns_total_and_free_bytes(disk: Disk, root: str) -> None:
    total, free = disk.space(root)
    assert 0 <= free <= total
    with pytest.raises(FileNotFoundError):
        disk.space(f"{root}/nowhere")


def test_lock_has_one_holder(disk: Disk, root: str) -> None:
    lock = disk.lock(f"{root}/.lock")
    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/.lock")
    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/../{root.rpartition('/')[2]}/.lock")
    lock.release()
    lock.release()
    again = disk.lock(f"{root}/.lock")
    lock.release()
    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/.lock")
    again.release()
    assert disk.exists(f"{root}/.lock")


def test_sync_calls_back_in_order(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", create=True)
    other = disk.open(f"{root}/b", create=True)
    file.append(b"x")
    file.sync()
    calls: list[tuple[int, OSError | None]] = []
    disk.sync([file], lambda error: calls.append((1, error)))
    disk.sync([file, other, file], lambda error: calls.append((2, error)))
    disk.sync([], lambda error: calls.append((3, error)))
    assert calls == [(1, None), (2, None), (3, None)]
    other.close()
    disk.sync([file, other], lambda error: calls.append((4, error)))
    assert isinstance(calls[3][1], OSError)
    file.close()


_step = st.one_of(
    st.tuples(st.just("append"), st.lists(st.binary(max_size=300), max_size=4)),
    st.tuples(st.just("write_at"), st.integers(0, 700), st.binary(max_size=300)),
    st.tuples(st.just("truncate"), st.integers(0, 900)),
    st.tuples(st.just("read_at"), st.integers(0, 900), st.integers(0, 900)),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(_step, max_size=12))
def test_file_behaves_like_byte_array(disk: Disk, root: str, steps: list[tuple[object, ...]]) -> None:
    file = disk.open(f"{root}/a", create=True)
    file.truncate(0)
    model = bytearray()
    for step in steps:
        match step:
            case ("append", [*parts]):
                file.append(*parts)
                model += b"".join(parts)
            case ("write_at", int(position), bytes(data)):
                file.write_at(position, data)
                if data:
                    model.extend(bytes(max(0, position - len(model))))
                    model[position : position + len(data)] = data
            case ("truncate", int(size)):
                file.truncate(size)
                model = model[:size] + bytes(max(0, size - len(model)))
            case ("read_at", int(position), int(length)):
                assert file.read_at(position, length) == model[position : position + length]
    assert file.size() == len(model)
    assert disk.read(f"{root}/a") == model
    file.close()


def test_write_atomic_without_sync_leaves_no_temporary(disk: Disk, root: str) -> None:
    write_atomic(disk, f"{root}/small", b"first", sync=False)
    write_atomic(disk, f"{root}/small", b"", sync=False)
    assert disk.read(f"{root}/small") == b""
    assert disk.list(root) == ["small"]


def test_sync_tree_accepts_nested_folders(disk: Disk, root: str) -> None:
    disk.make_dirs(f"{root}/a/b")
    write_atomic(disk, f"{root}/a/b/small", b"x", sync=False)
    disk.sync_tree(root)
    assert disk.read(f"{root}/a/b/small") == b"x"
    with pytest.raises(FileNotFoundError):
        disk.sync_tree(f"{root}/nowhere")
