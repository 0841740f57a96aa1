"""What all mechanisms have in common: a token in, a token out, and at the end a principal or a failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)


OTHER_AUTHORIZATION_ID: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


class SaslError(Exception):
    """Authentication failed; the text is for the client and holds no secret."""


@dataclass(frozen=True, slots=True)
class Authenticated:
    """Who somebody turned out to be, and until when that holds."""

    principal: str
    expires_ms: int | None = None
    """When what was presented (a token) ends, on the wall clock; None if it does not."""
    by_delegation_token: bool = False


class ServerMechanism(Protocol):
    """The server's side of one exchange."""

    @property
    def result(self) -> Authenticated | None:
        """Who it is, once the exchange is over."""
        ...

    def evaluate(self, token: bytes) -> bytes:
        """Take the client's token and give the answer; `SaslError` ends the exchange."""
        ...
