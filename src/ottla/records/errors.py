"""What records raise: Kafka's error for a batch, and beside it Kafka's complaint about single records."""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError

__all__ = ["ErrorCode", "InvalidRecords", "RecordError"]


class RecordError(NamedTuple):
    """One record that made its batch fail, as Produce responses report it from version 8 on."""

    batch_index: int
    message: str


class InvalidRecords(KafkaError):  # noqa: N818 - it names what arrived, as Kafka's InvalidRecordException does
    """Bytes that are not a record batch, or one that a log does not take; `code` is the error that Kafka answers."""

    message: str

    def __init__(self, code: int, message: str, record_errors: tuple[RecordError, ...] = ()) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors
