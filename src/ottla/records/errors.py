"""What records raise: one exception with Kafka's error code, and Kafka's per-record complaints beside it."""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN_SERVER_ERROR = -1
CORRUPT_MESSAGE = 2
MESSAGE_TOO_LARGE = 10
INVALID_TIMESTAMP = 32
UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
UNSUPPORTED_COMPRESSION_TYPE = 76
INVALID_RECORD = 87


class RecordError(NamedTuple):
    """One record that made its batch fail, as Produce responses report it from version 8 on."""

    batch_index: int
    message: str


class InvalidRecords(Exception):  # noqa: N818 - it names what arrived, as Kafka's InvalidRecordException does
    """Bytes that are not the record batch they claim to be; `code` is the error that Kafka answers."""

    def __init__(self, code: int, message: str, record_errors: tuple[RecordError, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.record_errors = record_errors
