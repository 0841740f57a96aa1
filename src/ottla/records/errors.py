"""Errors of records: Kafka's error code for a batch, and its errors for single records."""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError

__all__ = ["ErrorCode", "InvalidRecords", "RecordError"]


class RecordError(NamedTuple):
    """A record that made its batch fail, as Produce responses report it from version 8 on."""

    batch_index: int
    message: str


class InvalidRecords(KafkaError):  # noqa: N818 - it names what arrived, as Kafka's InvalidRecordException does
    """Bytes that are not a record batch, or a batch that a log refuses; `code` is Kafka's error."""

    message: str

    def __init__(self, code: int, message: str, record_errors: tuple[RecordError, ...] = ()) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors
