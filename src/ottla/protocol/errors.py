"""The two kinds of protocol failures: bytes that are not a message, and an error with a code.

The codes are in `error_codes`, which is generated.
"""

from __future__ import annotations

from ottla.protocol.error_codes import ErrorCode

__all__ = ["ErrorCode", "KafkaError", "ProtocolError"]


class KafkaError(Exception):
    """An error that is answered with a code; `message` is for the client, if the response has a field for it."""

    def __init__(self, code: int, message: str | None = None) -> None:
        try:
            self.code = ErrorCode(code)
        except ValueError:  # an error of a newer broker; Kafka's clients treat it the same way
            self.code = ErrorCode.UNKNOWN_SERVER_ERROR
            message = message or f"error code {code}"
        self.message = message
        super().__init__(code, message)

    def __str__(self) -> str:
        name = f"{self.code.name} ({self.code.value})"
        return f"{name}: {self.message}" if self.message else name

    @property
    def retriable(self) -> bool:
        """Return whether a client may retry the same request."""
        return self.code.retriable


class ProtocolError(ValueError):
    """Invalid bytes of a message, or a message that a version cannot encode.

    `path` names the field ("topics[0].partitions[2].records"), `position` is the byte in the buffer, and `expected`
    what should be there.
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
