"""Captures round-trip, and other files are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.capture import (
    CapturedFrame,
    from_line,
    header_line,
    is_capture,
    read_capture,
    to_line,
)
from ottla.protocol.errors import ProtocolError

frames = st.builds(
    CapturedFrame,
    st.integers(0, 2**62),
    st.integers(1, 1000),
    st.sampled_from(["request", "response"]),
    st.text(),
    st.text(),
    st.none() | st.integers(0, 10),
    st.integers(0, 92),
    st.text(),
    st.integers(0, 20),
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.text(),
    st.integers(0, 2**31),
    st.binary(),
)


@given(st.lists(frames))
def test_capture_round_trips(written: list[CapturedFrame]) -> None:
    lines = [header_line(target="x:1"), *map(to_line, written)]
    assert is_capture(lines[0].encode())
    assert list(read_capture(lines)) == written
    assert all(line.count("\n") == 1 for line in lines)


@given(frames)
def test_truncated_last_line_is_skipped(frame: CapturedFrame) -> None:
    line = to_line(frame)
    assert list(read_capture([header_line(), line, line[: len(line) // 2]])) == [frame]


def test_other_file_is_refused() -> None:
    for line in ("{}", "[]", "1", '{"frame": "!"}', "\x00"):
        with pytest.raises(ProtocolError, match="a line of a capture"):
            from_line(line)
    with pytest.raises(ProtocolError, match="version 1"):
        from_line('{"format": "ottla-capture", "version": 2}')
