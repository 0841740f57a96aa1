"""Kafka's Uuid: topic ids, directory ids, member ids of some groups."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class Uuid(bytes):
    """Sixteen bytes that print as Kafka prints them: URL-safe base64 without padding."""

    __slots__ = ()

    def __new__(cls, value: bytes | bytearray | memoryview = bytes(16)) -> Self:
        """Take sixteen bytes as they are."""
        if len(value) != 16:
            raise ValueError(f"a Uuid has 16 bytes, not {len(value)}")
        return bytes.__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form that `str()` gives."""
        try:
            value = base64.urlsafe_b64decode(text + "==")
        except (binascii.Error, ValueError):
            raise ValueError(f"not a Uuid in URL-safe base64: {text!r}") from None
        if len(value) != 16:
            raise ValueError(f"not a Uuid of 16 bytes: {text!r}")
        return bytes.__new__(cls, value)

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self).decode("ascii").rstrip("=")

    def __repr__(self) -> str:
        return f"Uuid.parse({str(self)!r})"

    def __reduce__(self) -> tuple[type[Uuid], tuple[bytes]]:
        return type(self), (bytes(self),)


ZERO_UUID = Uuid()
