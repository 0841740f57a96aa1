"""OAUTHBEARER (RFC 7628): the client presents a token that an issuer signed.

A rejected token is answered with the reason in JSON; the client acknowledges with one byte, and then the exchange
fails.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Final

from ottla.security.sasl.mechanism import Authenticated, SaslError

if TYPE_CHECKING:
    from collections.abc import Callable

_SASLNAME = r"(?:[^,=\x00-\x1f]|=2C|=3D)+"
_PAIRS = r"(?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)*"
CLIENT_FIRST: Final = re.compile(rf"n,(?:a=(?P<authzid>{_SASLNAME}))?,\x01(?P<pairs>{_PAIRS})\x01", re.DOTALL)
BEARER: Final = re.compile(r"[Bb]earer\s+(?P<token>[-_~+/.A-Za-z0-9]+=*)\s*")
ACKNOWLEDGED: Final = b"\x01"
REFUSED: Final = b'{"status":"invalid_token"}'
MAX_MESSAGE_LENGTH: Final = 64 * 1024


class State(Enum):
    """The states of an exchange."""

    TOKEN = "waits for the client's token"
    REFUSED = "waits for the client to acknowledge the refusal"
    DONE = "is over"
    FAILED = "has failed"


class OAuthBearerServer:
    """Validates the token with `validate`, which returns the principal or raises SaslError."""

    __slots__ = ("_problem", "_validate", "result", "state")

    def __init__(self, validate: Callable[[str], Authenticated]) -> None:
        self._validate = validate
        self._problem = ""
        self.state = State.TOKEN
        self.result: Authenticated | None = None

    def evaluate(self, token: bytes) -> bytes:
        """Take the client's message."""
        if self.state is State.REFUSED and token == ACKNOWLEDGED:
            self.state = State.FAILED
            raise SaslError(self._problem)
        if self.state is not State.TOKEN:
            self.state = State.FAILED
            raise SaslError("Unexpected SASL token")
        self.state = State.FAILED
        authorization_id, bearer = _parse(token)
        try:
            authenticated = self._validate(bearer)
        except SaslError as error:
            self._problem = str(error)
            self.state = State.REFUSED
            return REFUSED
        if authorization_id and f"User:{authorization_id}" != authenticated.principal:
            raise SaslError(
                "Authentication failed: Client requested an authorization id that is different from the token's "
                "principal name"
            )
        self.state = State.DONE
        self.result = authenticated
        return b""


def oauthbearer_token(token: str, extensions: dict[str, str] | None = None) -> bytes:
    """Return the client's first message."""
    pairs = "".join(f"{key}={value}\x01" for key, value in {"auth": f"Bearer {token}", **(extensions or {})}.items())
    return f"n,,\x01{pairs}\x01".encode()


def _parse(message: bytes) -> tuple[str, str]:
    if len(message) > MAX_MESSAGE_LENGTH:
        raise SaslError("Invalid OAUTHBEARER client first message: it is too long")
    try:
        match = CLIENT_FIRST.fullmatch(message.decode())
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise SaslError("Invalid OAUTHBEARER client first message")
    pairs = dict(pair.split("=", 1) for pair in match["pairs"].split("\x01") if pair)
    bearer = BEARER.fullmatch(pairs.get("auth", ""))
    if bearer is None:
        raise SaslError("Invalid OAUTHBEARER client first message: 'auth' is not a bearer token")
    authorization_id = (match["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
    return authorization_id, bearer["token"]
