"""Validates signed tokens (JWT): signature, issuer, audience, lifetime and principal.

Only asymmetric signatures are accepted: `none` and shared secrets are refused, whatever the token's header has. joserfc
verifies signatures and is imported only here.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeGuard
from urllib.parse import unquote, urlsplit

from ottla.security.sasl.mechanism import Authenticated, SaslError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
KEY_TYPES: Final = ("RSA", "EC", "OKP")
FETCH_SECONDS: Final = 10
LARGEST_KEY_SET: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The claims that a token must have."""

    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    principal_claim: str = "sub"
    clock_skew_seconds: int = 30
    allow_unsigned: bool = False
    """Accept unsigned tokens; for tests only."""


def read_key_set(url: str) -> dict[str, Any]:
    """Return the issuer's public keys from a file or over HTTP; raise ValueError if there are none. Blocks."""
    parts = urlsplit(url)
    try:
        if parts.scheme in ("", "file"):
            with open(unquote(parts.path), "rb") as file:
                data = file.read(LARGEST_KEY_SET + 1)
        elif parts.scheme in ("http", "https"):
            from ottla.security.fetching import download  # only with an issuer: HTTP takes long to import

            data = download(url, FETCH_SECONDS, LARGEST_KEY_SET)
        else:
            raise ValueError(f"sasl.oauthbearer.jwks.endpoint.url: {parts.scheme} is neither file nor http(s)")
        if len(data) > LARGEST_KEY_SET:
            raise ValueError("it is too large to be a set of keys")
        document = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"the keys of {url} cannot be read: {error}") from error
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list) or not any(isinstance(key, dict) for key in keys):
        raise ValueError(f"{url} holds no set of keys (JWKS)")
    return {"keys": [key for key in keys if isinstance(key, dict)]}


@dataclass(slots=True)
class TokenValidator:
    """Validates tokens against rules and public keys, which can be replaced at any time."""

    rules: TokenRules
    keys: Mapping[str, Any] | None = None
    now_ms: Callable[[], int] = field(default=lambda: 0)
    on_unknown_key: Callable[[], None] = field(default=lambda: None)
    """Called when a token names an unknown key: the issuer may have a new one."""
    _parsed: tuple[Mapping[str, Any], list[tuple[str | None, Any]]] | None = field(default=None, init=False)

    def __call__(self, token: str) -> Authenticated:
        """Return the authenticated principal of a token; raise SaslError if it is not valid."""
        header, claims = _parts(token)
        if not (self.rules.allow_unsigned and header.get("alg") == "none"):
            claims = self._verified(token, header)
        return self._judge(claims)

    def _verified(self, token: str, header: Mapping[str, Any]) -> dict[str, Any]:
        from joserfc import jws
        from joserfc.errors import JoseError

        if header.get("alg") not in ALGORITHMS:
            raise SaslError("Authentication failed: the token is not signed with an algorithm that is accepted")
        if self.keys is None:
            raise SaslError("Authentication failed: there are no keys to check tokens with")
        key_id, public_keys = header.get("kid"), self._public_keys(self.keys)
        fitting = [key for name, key in public_keys if key_id is None or name == key_id]
        if not fitting:
            self.on_unknown_key()
            raise SaslError("Authentication failed: the token is signed with a key that is not known")
        claims = None
        for key in fitting:
            try:
                claims = json.loads(jws.deserialize_compact(token, key, algorithms=list(ALGORITHMS)).payload)
                break
            except (JoseError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
        else:
            raise SaslError("Authentication failed: the token's signature is not valid")
        if not isinstance(claims, dict):
            raise SaslError("Authentication failed: the token has no claims")
        return claims

    def _public_keys(self, keys: Mapping[str, Any]) -> list[tuple[str | None, Any]]:
        """Return the keys that verify signatures, by key id; keys of unknown types are ignored."""
        if self._parsed is None or self._parsed[0] is not keys:
            from joserfc.errors import JoseError
            from joserfc.jwk import JWKRegistry

            parsed: list[tuple[str | None, Any]] = []
            for key in keys["keys"]:
                if key.get("use", "sig") != "sig" or key.get("kty") not in KEY_TYPES:
                    continue
                with contextlib.suppress(JoseError, ValueError, KeyError, TypeError):
                    parsed.append((key.get("kid"), JWKRegistry.import_key(key)))
            self._parsed = (keys, parsed)
        return self._parsed[1]

    def _judge(self, claims: Mapping[str, Any]) -> Authenticated:
        rules, now, skew = self.rules, self.now_ms() / 1000, self.rules.clock_skew_seconds
        expires = claims.get("exp")
        if not _is_number(expires):
            raise SaslError("Authentication failed: the token does not say when it expires")
        if expires + skew <= now:
            raise SaslError("Authentication failed: the token has expired")
        for claim in ("nbf", "iat"):
            value = claims.get(claim)
            if value is not None and (not _is_number(value) or value - skew > now):
                raise SaslError("Authentication failed: the token is not valid yet")
        if rules.issuer is not None and claims.get("iss") != rules.issuer:
            raise SaslError("Authentication failed: the token is of another issuer")
        if rules.audiences:
            named = claims.get("aud")
            named = [named] if isinstance(named, str) else named if isinstance(named, list) else []
            if not any(audience in named for audience in rules.audiences):
                raise SaslError("Authentication failed: the token is for another audience")
        name = claims.get(rules.principal_claim)
        if not isinstance(name, str) or not name.strip():
            raise SaslError(f"Authentication failed: the token has no {rules.principal_claim} claim")
        return Authenticated(f"User:{name.strip()}", expires_ms=int(expires * 1000))


def _parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    pieces = token.split(".")
    if len(pieces) != 3:
        raise SaslError("Authentication failed: the token is not a signed JWT")
    try:
        header, claims = (json.loads(_decode(piece)) for piece in pieces[:2])
    except (ValueError, binascii.Error, RecursionError) as error:
        raise SaslError("Authentication failed: the token is not a signed JWT") from error
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise SaslError("Authentication failed: the token is not a signed JWT")
    return header, claims


def _decode(piece: str) -> bytes:
    return base64.urlsafe_b64decode(piece + "=" * (-len(piece) % 4))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53
