"""The interface of all mechanisms: tokens in, tokens out, and a principal or a failure at the end."""

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
    """Authentication failed; the message is sent to the client and holds no secret."""


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The authenticated principal and its expiry."""

    principal: str
    expires_ms: int | None = None
    """Expiry of the credential (a token) in wall clock milliseconds; None if it does not expire."""
    by_delegation_token: bool = False


class ServerMechanism(Protocol):
    """The server side of one exchange."""

    @property
    def result(self) -> Authenticated | None:
        """Return the authenticated principal after the exchange."""
        ...

    def evaluate(self, token: bytes) -> bytes:
        """Take the client's token and return the response; raise SaslError to end the exchange."""
        ...
