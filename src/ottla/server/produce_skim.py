"""Counts the topics and partitions of a Produce request without decoding it."""

from __future__ import annotations

import struct

MOST_PARTITIONS = 500
_LENGTHS = {2: struct.Struct(">h"), 4: struct.Struct(">i")}
_TOPIC_IDS = 13  # the version that names topics by id


def has_few_partitions(frame: memoryview, position: int, version: int, flexible: bool) -> bool:
    """Return whether a Produce request names at most 500 topics and partitions, from the end of its client id on.

    Return True for a truncated request as well: decoding it fails early.
    """
    try:
        if flexible:
            if frame[position] != 0:  # tagged fields in the header
                return False
            position += 1
        skim = _Skim(frame, position, flexible)
        skim.skip_bytes(2)  # transactional id
        skim.position += 6  # acks, timeout
        remaining = MOST_PARTITIONS
        for _ in range(skim.count()):
            if version >= _TOPIC_IDS:
                skim.position += 16
            else:
                skim.skip_bytes(2)
            partitions = skim.count()
            remaining -= 1 + partitions
            if remaining < 0:
                return False
            for _ in range(partitions):
                skim.position += 4
                skim.skip_bytes(4)
                if not skim.skip_empty_tags():
                    return False
            if not skim.skip_empty_tags():
                return False
    except (IndexError, struct.error):
        pass
    return True


class _Skim:
    """A position in a request that moves over fields without decoding them."""

    __slots__ = ("_flexible", "_frame", "position")

    def __init__(self, frame: memoryview, position: int, flexible: bool) -> None:
        self._frame = frame
        self._flexible = flexible
        self.position = position

    def count(self) -> int:
        """Read the number of elements of an array."""
        return self._length(4)

    def skip_bytes(self, width: int) -> None:
        """Skip a string or bytes whose length has `width` bytes in versions that are not flexible."""
        length = self._length(width)
        self.position += length

    def skip_empty_tags(self) -> bool:
        """Skip an empty tag buffer; False if there are tagged fields."""
        if self._flexible:
            self.position += 1
            return self._frame[self.position - 1] == 0
        return True

    def _length(self, width: int) -> int:
        position = self.position
        if not self._flexible:
            self.position += width
            length: int = _LENGTHS[width].unpack_from(self._frame, position)[0]
            return max(length, 0)
        value = shift = 0
        while True:
            byte = self._frame[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80 or shift > 28:
                break
            shift += 7
        self.position = position
        return max(value - 1, 0)
