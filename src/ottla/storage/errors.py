"""Errors of storage besides `KafkaError`: damage that recovery repairs, and a cleaning that was stopped."""

from __future__ import annotations


class CorruptIndexError(ValueError):
    """An index file contradicts itself or its log; it is rebuilt."""


class CorruptSnapshotError(ValueError):
    """A producer snapshot is damaged; recovery uses an older one, or the log."""


class CorruptLogError(ValueError):
    """The bytes at `position` of a log file are not a batch."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class CleaningAbortedError(Exception):
    """A cleaning was cancelled; its output is deleted."""
