"""SCRAM (RFC 5802, 7677): both sides prove knowledge of the password without sending it.

An unknown user goes through the same exchange with a stable salt and fails at the end like a wrong password, so that
clients cannot find out which users exist.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.cluster.security.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential
from ottla.cluster.security.scram import SCRAM_SHA_256 as SHA_256_ID
from ottla.cluster.security.scram import SCRAM_SHA_512 as SHA_512_ID
from ottla.security.sasl.mechanism import (
    OTHER_AUTHORIZATION_ID,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    Authenticated,
    SaslError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MECHANISM_IDS: Final = {SCRAM_SHA_256: SHA_256_ID, SCRAM_SHA_512: SHA_512_ID}
HASHES: Final = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
MAX_MESSAGE_LENGTH: Final = 16 * 1024
NO_CHANNEL_BINDING: Final = b"n,,"
TOKEN_AUTH: Final = "tokenauth"

_SASLNAME = r"(?:[^,=]|=2C|=3D)+"
_VALUE = r"[\x01-\x2b\x2d-\x7f]+"
_NONCE = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64 = r"[A-Za-z0-9+/]+={0,2}"
CLIENT_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authzid>{_SASLNAME}))?,(?P<bare>n=(?P<name>{_SASLNAME}),r=(?P<nonce>{_NONCE})"
    rf"(?P<extensions>(?:,[A-Za-z]+={_VALUE})*))",
    re.DOTALL,
)
CLIENT_FINAL: Final = re.compile(
    rf"(?P<without_proof>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE})(?:,[A-Za-z]+={_VALUE})*),p=(?P<proof>{_BASE64})"
)
SERVER_FIRST: Final = re.compile(rf"r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,9}})(?:,.*)?")


class State(Enum):
    """The states of an exchange."""

    CLIENT_FIRST = "waits for the client's first message"
    CLIENT_FINAL = "waits for the client's proof"
    DONE = "is over"
    FAILED = "has failed"


TRANSITIONS: Final = {State.CLIENT_FIRST: State.CLIENT_FINAL, State.CLIENT_FINAL: State.DONE}
"""The state after each accepted message; other states accept none."""


class Login(NamedTuple):
    """The credential of a login name and its principal."""

    credential: ScramCredential
    principal: str
    expires_ms: int | None = None
    by_delegation_token: bool = False


class ScramServer:
    """The server side. `find(name, is_token)` returns the login of a user or delegation token."""

    __slots__ = (
        "_client_first_bare",
        "_find",
        "_hash",
        "_login",
        "_mechanism",
        "_mock",
        "_nonce",
        "_server_first",
        "_server_nonce",
        "result",
        "state",
    )

    def __init__(
        self,
        mechanism: str,
        find: Callable[[str, bool], Login | None],
        mock: Callable[[str, bool], ScramCredential],
        server_nonce: str,
    ) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._find = find
        self._mock = mock
        self._server_nonce = server_nonce
        self._nonce = ""
        self._client_first_bare = self._server_first = b""
        self._login: tuple[ScramCredential, Login | None] | None = None
        self.state = State.CLIENT_FIRST
        self.result: Authenticated | None = None

    def evaluate(self, token: bytes) -> bytes:
        """Take one message of the client and return the response."""
        after = TRANSITIONS.get(self.state)
        if after is None:
            raise SaslError(f"Unexpected SASL token: the exchange {self.state.value}")
        try:
            if len(token) > MAX_MESSAGE_LENGTH:
                raise SaslError("Invalid SCRAM message: it is too long")
            response = self._first(token) if self.state is State.CLIENT_FIRST else self._final(token)
        except SaslError:
            self.state = State.FAILED
            raise
        self.state = after
        return response

    def _first(self, token: bytes) -> bytes:
        match = CLIENT_FIRST.fullmatch(_text(token, "first"))
        if match is None:
            raise SaslError("Invalid SCRAM client first message format")
        name = unescape(match["name"])
        authorization_id = match["authzid"]
        if authorization_id and unescape(authorization_id) != name:
            raise SaslError(OTHER_AUTHORIZATION_ID)
        extensions = dict(extension.split("=", 1) for extension in match["extensions"].split(",") if extension)
        is_token = extensions.get(TOKEN_AUTH, "").lower() == "true"
        login = self._find(name, is_token)
        credential = login.credential if login is not None else self._mock(name, is_token)
        self._login = (credential, login)
        self._nonce = match["nonce"] + self._server_nonce
        self._client_first_bare = match["bare"].encode()
        salt = base64.b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}".encode()
        return self._server_first

    def _final(self, token: bytes) -> bytes:
        match = CLIENT_FINAL.fullmatch(_text(token, "final"))
        if match is None:
            raise SaslError("Invalid SCRAM client final message format")
        assert self._login is not None
        credential, login = self._login
        message = b",".join((self._client_first_bare, self._server_first, match["without_proof"].encode()))
        signature = hmac.digest(credential.stored_key, message, self._hash)
        client_key = _xor(_base64(match["proof"]), signature)
        proven = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key)
        same_nonce = hmac.compare_digest(match["nonce"].encode(), self._nonce.encode())
        bound = _base64(match["binding"]) == NO_CHANNEL_BINDING or _base64(match["binding"]).startswith(b"n,a=")
        if login is None or not proven or not same_nonce or not bound:
            raise SaslError(
                f"Authentication failed during authentication due to invalid credentials with SASL mechanism "
                f"{self._mechanism}"
            )
        self.result = Authenticated(login.principal, login.expires_ms, login.by_delegation_token)
        verifier = hmac.digest(credential.server_key, message, self._hash)
        return b"v=" + base64.b64encode(verifier)


class ScramClient:
    """The client side: `first()`, then `final(server_first)`, then `check(server_final)`."""

    __slots__ = ("_bare", "_hash", "_message", "_name", "_nonce", "_password", "_salted")

    def __init__(self, mechanism: str, name: str, password: str, nonce: str, *, by_token: bool = False) -> None:
        self._hash = HASHES[mechanism]
        self._name = name
        self._password = password.encode()
        self._nonce = nonce
        self._bare = f"n={escape(name)},r={nonce}" + (f",{TOKEN_AUTH}=true" if by_token else "")
        self._message = self._salted = b""

    def first(self) -> bytes:
        """Return the first message."""
        return NO_CHANNEL_BINDING + self._bare.encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the client proof; raise SaslError if the server's message is invalid."""
        match = SERVER_FIRST.fullmatch(_text(server_first, "first"))
        if match is None:
            raise SaslError("the server's first SCRAM message is not one")
        if not match["nonce"].startswith(self._nonce) or match["nonce"] == self._nonce:
            raise SaslError("the server's nonce does not continue ours")
        iterations = int(match["iterations"])
        if not MIN_ITERATIONS <= iterations <= 100 * MAX_ITERATIONS:
            raise SaslError(f"the server asks for {iterations} iterations, which is not between the bounds")
        self._salted = hashlib.pbkdf2_hmac(self._hash, self._password, _base64(match["salt"]), iterations)
        client_key = hmac.digest(self._salted, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        without_proof = f"c=biws,r={match['nonce']}"
        self._message = b",".join((self._bare.encode(), bytes(server_first), without_proof.encode()))
        proof = _xor(client_key, hmac.digest(stored_key, self._message, self._hash))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Raise SaslError if the server did not prove knowledge of the password."""
        server_key = hmac.digest(self._salted, b"Server Key", self._hash)
        expected = b"v=" + base64.b64encode(hmac.digest(server_key, self._message, self._hash))
        if not hmac.compare_digest(expected, bytes(server_final).split(b",")[0]):
            raise SaslError("the server did not prove that it knows the password")


def mock_credential(mechanism: str, secret: bytes, name: str, iterations: int = MIN_ITERATIONS) -> ScramCredential:
    """Return the credential that an unknown user seems to have: the same for each attempt, matched by no proof."""
    kind = HASHES[mechanism]
    seed = hmac.digest(secret, name.encode(), kind)
    return ScramCredential(
        salt=stable_salt(mechanism, secret, name),
        stored_key=hmac.digest(seed, b"stored key", kind),
        server_key=hmac.digest(seed, b"server key", kind),
        iterations=iterations,
    )


def stable_salt(mechanism: str, secret: bytes, name: str) -> bytes:
    """Return a salt that depends on the secret and the name only, in the form that Kafka's tools make.

    Kafka's tools write 130 random bits as digits and letters; another form would reveal that the user is unknown.
    """
    kind = HASHES[mechanism]
    digest = hmac.digest(hmac.digest(secret, name.encode(), kind), b"salt", kind)
    number = int.from_bytes(digest, "big") >> (8 * len(digest) - 130)
    digits = bytearray()
    while number:
        number, digit = divmod(number, 36)
        digits.append(b"0123456789abcdefghijklmnopqrstuvwxyz"[digit])
    return bytes(reversed(digits))


def mock_iterations(counts: Mapping[int, int], mechanism: str, secret: bytes, name: str) -> int:
    """Return the iteration count of an unknown user, drawn from those of the known users (`counts`: users per count).

    The same name always draws the same place of the distribution.
    """
    total = sum(counts.values())
    if not total:
        return MIN_ITERATIONS
    digest = hmac.digest(secret, b"iterations of " + name.encode(), HASHES[mechanism])
    index = int.from_bytes(digest[:8], "big") * total >> 64
    for iterations, users in sorted(counts.items()):
        index -= users
        if index < 0:
            return iterations
    raise AssertionError("the place lies beyond the distribution")


def escape(name: str) -> str:
    """Return a name escaped for a message."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescape(name: str) -> str:
    """Return the name of an escaped one."""
    return name.replace("=2C", ",").replace("=3D", "=")


def _text(token: bytes, which: str) -> str:
    try:
        return bytes(token).decode()
    except UnicodeDecodeError as error:
        raise SaslError(f"Invalid SCRAM {which} message format") from error


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise SaslError("Invalid SCRAM message: it is not base64") from error


def _xor(left: bytes, right: bytes) -> bytes:
    if len(left) != len(right):
        raise SaslError("Invalid SCRAM message: the proof has the wrong length")
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
