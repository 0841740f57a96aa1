"""PLAIN (RFC 4616): user and password in one message, without encryption of its own."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from ottla.security.sasl.mechanism import OTHER_AUTHORIZATION_ID, Authenticated, SaslError

if TYPE_CHECKING:
    from collections.abc import Callable

REFUSAL = "Authentication failed: Invalid username or password"


class PlainServer:
    """Compares the password with the user's configured one."""

    __slots__ = ("_password_of", "result")

    def __init__(self, password_of: Callable[[str], str | None]) -> None:
        self._password_of = password_of
        self.result: Authenticated | None = None

    def evaluate(self, token: bytes) -> bytes:
        """Take the only message: authorization id, user and password, separated by zero bytes."""
        if self.result is not None:
            raise SaslError("Unexpected SASL token after authentication has completed")
        parts = token.split(b"\0")
        if len(parts) != 3:
            raise SaslError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        try:
            authorization_id, name, password = (part.decode() for part in parts)
        except UnicodeDecodeError as error:
            raise SaslError("Invalid SASL/PLAIN response: it is not UTF-8") from error
        if not name:
            raise SaslError("Authentication failed: username not specified")
        if not password:
            raise SaslError("Authentication failed: password not specified")
        expected = self._password_of(name)
        # Compare in constant time, also for unknown users.
        same = hmac.compare_digest((expected if expected is not None else password + "x").encode(), password.encode())
        if expected is None or not same:
            raise SaslError(REFUSAL)
        if authorization_id not in ("", name):
            raise SaslError(OTHER_AUTHORIZATION_ID)
        self.result = Authenticated(f"User:{name}")
        return b""


def plain_token(name: str, password: str) -> bytes:
    """Return the client's message."""
    return b"\0".join((b"", name.encode(), password.encode()))
