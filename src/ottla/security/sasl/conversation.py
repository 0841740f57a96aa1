"""The order of authentication on a connection; Kafka's SaslServerAuthenticator. No sockets, no frames.

The order: at most one answered ApiVersions, a SaslHandshake that chooses the mechanism, then tokens in SaslAuthenticate
requests (handshake v1) or bare (v0). After that any request until the session ends; before that a client may
re-authenticate with the same principal and mechanism (KIP-368).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from ottla.security.sasl.mechanism import Authenticated, SaslError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.security.sasl.mechanism import ServerMechanism


class State(Enum):
    """The states of an authentication."""

    START = "start"
    VERSIONS_KNOWN = "versions are known"
    TOKENS = "tokens in requests"
    BARE_TOKENS = "bare tokens"
    AUTHENTICATED = "authenticated"
    AGAIN = "authenticating again"
    FAILED = "failed"


class Event(Enum):
    """The events of an authentication."""

    API_VERSIONS = "ApiVersions"
    HANDSHAKE_V0 = "SaslHandshake v0"
    HANDSHAKE_V1 = "SaslHandshake"
    TOKEN = "SaslAuthenticate"
    BARE_TOKEN = "a bare token"
    SUCCESS = "success"
    FAILURE = "failure"
    OTHER = "any other request"


TRANSITIONS: Final = {
    (State.START, Event.API_VERSIONS): State.VERSIONS_KNOWN,
    (State.START, Event.HANDSHAKE_V0): State.BARE_TOKENS,
    (State.START, Event.HANDSHAKE_V1): State.TOKENS,
    (State.VERSIONS_KNOWN, Event.HANDSHAKE_V0): State.BARE_TOKENS,
    (State.VERSIONS_KNOWN, Event.HANDSHAKE_V1): State.TOKENS,
    (State.TOKENS, Event.TOKEN): State.TOKENS,
    (State.TOKENS, Event.SUCCESS): State.AUTHENTICATED,
    (State.BARE_TOKENS, Event.BARE_TOKEN): State.BARE_TOKENS,
    (State.BARE_TOKENS, Event.SUCCESS): State.AUTHENTICATED,
    (State.AUTHENTICATED, Event.HANDSHAKE_V1): State.AGAIN,
    (State.AUTHENTICATED, Event.API_VERSIONS): State.AUTHENTICATED,
    (State.AUTHENTICATED, Event.OTHER): State.AUTHENTICATED,
    (State.AGAIN, Event.TOKEN): State.AGAIN,
    (State.AGAIN, Event.SUCCESS): State.AUTHENTICATED,
} | {(state, Event.FAILURE): State.FAILED for state in State}
"""Allowed transitions. Any other event is refused and the connection closes."""


class IllegalStepError(Exception):
    """A request that is not allowed in the current state."""


class Conversation:
    """The authentication of one connection.

    `start(mechanism)` returns the server side of a mechanism; `lifetime_ms(mechanism)` is the maximum session lifetime,
    0 for unlimited.
    """

    __slots__ = (
        "_lifetime_ms",
        "_mechanism",
        "_now_ms",
        "_server",
        "_start",
        "expires_ms",
        "mechanisms",
        "result",
        "state",
    )

    def __init__(
        self,
        mechanisms: Sequence[str],
        start: Callable[[str], ServerMechanism],
        lifetime_ms: Callable[[str], int],
        now_ms: Callable[[], int],
    ) -> None:
        self.mechanisms = tuple(mechanisms)
        self._start = start
        self._lifetime_ms = lifetime_ms
        self._now_ms = now_ms
        self._mechanism: str | None = None
        self._server: ServerMechanism | None = None
        self.state = State.START
        self.result: Authenticated | None = None
        self.expires_ms: int | None = None
        """End of the session in wall clock milliseconds."""

    @property
    def expired(self) -> bool:
        """Return whether the session has ended, so that only re-authentication is allowed."""
        return self.expires_ms is not None and self._now_ms() >= self.expires_ms

    @property
    def authenticated(self) -> bool:
        """Return whether the client is authenticated and requests are allowed."""
        return self.state is State.AUTHENTICATED

    @property
    def renewable(self) -> bool:
        """Return whether re-authentication is allowed: only sessions with a lifetime have it."""
        return self.state is State.AUTHENTICATED and self.expires_ms is not None

    def step(self, event: Event) -> None:
        """Take an event; raise IllegalStepError if the table does not allow it."""
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise IllegalStepError(f"{event.value} in state '{self.state.value}'")
        self.state = after

    def handshake(self, mechanism: str, version: int) -> bool:
        """Choose a mechanism; return False, and fail, if it is not enabled."""
        self.step(Event.HANDSHAKE_V0 if version == 0 else Event.HANDSHAKE_V1)
        if mechanism not in self.mechanisms:
            self.step(Event.FAILURE)
            return False
        if self.state is State.AGAIN and mechanism != self._mechanism:
            self.step(Event.FAILURE)
            raise SaslError(
                f"SASL mechanism '{mechanism}' requested by client is not the one of this session, '{self._mechanism}'"
            )
        self._mechanism = mechanism
        self._server = self._start(mechanism)
        return True

    def token(self, token: bytes, *, bare: bool = False) -> tuple[bytes, int]:
        """Take a token; return the response and, at the end, the session lifetime in ms. Raise SaslError on failure."""
        self.step(Event.BARE_TOKEN if bare else Event.TOKEN)
        assert self._server is not None
        assert self._mechanism is not None
        try:
            response = self._server.evaluate(token)
            authenticated = self._server.result
            if authenticated is None:
                return response, 0
            if self.result is not None and self.result.principal != authenticated.principal:
                raise SaslError("Cannot change principals during re-authentication")
            lifetime = self._lifetime(authenticated)
        except SaslError:
            self.step(Event.FAILURE)
            raise
        self._server = None
        self.result = authenticated
        self.expires_ms = self._now_ms() + lifetime if lifetime else None
        self.step(Event.SUCCESS)
        return response, lifetime

    def _lifetime(self, authenticated: Authenticated) -> int:
        assert self._mechanism is not None
        most = self._lifetime_ms(self._mechanism)
        if authenticated.expires_ms is None:
            return most
        left = max(authenticated.expires_ms - self._now_ms(), 1)
        return min(left, most) if most else left
