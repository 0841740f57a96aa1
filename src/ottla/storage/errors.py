"""What storage raises beside `KafkaError`: damage that recovery repairs, and a log directory that is gone."""

from __future__ import annotations


class CorruptIndexError(ValueError):
    """An index file that contradicts itself or its log; it is rebuilt."""


class CorruptSnapshotError(ValueError):
    """A producer-state snapshot that cannot be used; an older one or the log is."""


class CorruptLogError(ValueError):
    """Bytes of a log that are not a batch; `position` is where in the file."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class CleaningAbortedError(Exception):
    """A cleaning was asked to stop; what it made so far is thrown away."""
