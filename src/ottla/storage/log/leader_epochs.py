"""The leader epochs of a log and their start offsets: the cache behind `leader-epoch-checkpoint`.

State only; `Log` decides when it is written.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochCache:
    """Leader epochs in increasing order, each with its start offset (Kafka's LeaderEpochFileCache)."""

    __slots__ = ("_epochs", "_starts", "dirty")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.dirty = False
        for epoch, start in entries:
            self.assign(epoch, start)
        self.dirty = False

    def __len__(self) -> int:
        return len(self._epochs)

    def entries(self) -> list[tuple[int, int]]:
        """Return all (epoch, start offset) pairs."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int | None:
        """The newest epoch, or None."""
        return self._epochs[-1] if self._epochs else None

    @property
    def earliest(self) -> tuple[int, int] | None:
        """The oldest epoch and its start offset, or None."""
        return (self._epochs[0], self._starts[0]) if self._epochs else None

    def assign(self, epoch: int, start: int) -> bool:
        """Add `epoch` with its start offset, and remove entries that contradict it; return whether anything changed."""
        if epoch < 0 or start < 0:
            return False
        epochs, starts = self._epochs, self._starts
        if epochs and epoch == epochs[-1] and start >= starts[-1]:
            return False
        while epochs and (epochs[-1] >= epoch or starts[-1] >= start):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(start)
        self.dirty = True
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest epoch not above `epoch` and its end offset, as OffsetForLeaderEpoch answers."""
        epochs = self._epochs
        if epoch == UNDEFINED_EPOCH or not epochs:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epochs[-1] == epoch:
            return epoch, log_end_offset
        above = bisect_right(epochs, epoch)
        if above == len(epochs):
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if above == 0:
            return epoch, self._starts[0]
        return epochs[above - 1], self._starts[above]

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that start at or past `end_offset`."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            del self._epochs[keep:], self._starts[keep:]
            self.dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that end at or below `start_offset`; the one that holds it starts there now."""
        gone = bisect_right(self._starts, start_offset)
        if gone and (gone > 1 or self._starts[0] != start_offset):
            del self._epochs[: gone - 1], self._starts[: gone - 1]
            self._starts[0] = start_offset
            self.dirty = True

    def clear(self) -> None:
        """Remove all epochs."""
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self.dirty = True
