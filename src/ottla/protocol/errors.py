"""The two ways in which a conversation goes wrong: bytes that are not Kafka's, and an error with a code.

The codes themselves are in `error_codes`, which is generated.
"""

from __future__ import annotations

from ottla.protocol.error_codes import ErrorCode

__all__ = ["ErrorCode", "KafkaError", "ProtocolError"]


class KafkaError(Exception):
    """An error that is answered with a code; `message` is for the client, if a response has room for it."""

    def __init__(self, code: int, message: str | None = None) -> None:
        try:
            self.code = ErrorCode(code)
        except ValueError:  # a newer broker may know more errors; Kafka's clients take them for this one too
            self.code = ErrorCode.UNKNOWN_SERVER_ERROR
            message = message or f"error code {code}"
        self.message = message
        super().__init__(code, message)

    def __str__(self) -> str:
        name = f"{self.code.name} ({self.code.value})"
        return f"{name}: {self.message}" if self.message else name

    @property
    def retriable(self) -> bool:
        """Whether a client may try again without changing anything."""
        return self.code.retriable


class ProtocolError(ValueError):
    """Bytes that are not the message they should be, or a message that has no bytes in a version.

    `path` names the field from the message down ("topics[0].partitions[2].records"), `position` is the byte
    in the buffer that was given, and `expected` says what should have been there.
    """

    def __init__(
        self,
        expected: str,
        *,
        message: str = "",
        version: int | None = None,
        path: str = "",
        position: int | None = None,
    ) -> None:
        self.message = message
        self.version = version
        self.path = path
        self.position = position
        self.expected = expected
        super().__init__(expected)

    def __str__(self) -> str:
        where = self.message if self.version is None else f"{self.message} v{self.version}"
        if self.path:
            where = f"{where}, {self.path}" if where else self.path
        if self.position is not None:
            where = f"{where} at byte {self.position}" if where else f"byte {self.position}"
        return f"{where}: {self.expected}" if where else self.expected

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self.expected, self.message, self.version, self.path, self.position)


def _restore(expected: str, message: str, version: int | None, path: str, position: int | None) -> ProtocolError:
    return ProtocolError(expected, message=message, version=version, path=path, position=position)
