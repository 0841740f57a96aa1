"""How a client proves who it is: Kafka's own client properties read into a login and a TLS context.

Passwords and tokens come from a file of properties, from files of their own or from the environment; a command line is
no place for them, because every user of a machine sees it.
"""

from __future__ import annotations

import base64
import json
import os
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.sasl.mechanism import MECHANISMS, OAUTHBEARER, PLAIN, SaslError

# What a login or TLS needs is imported where it is used: most commands and Spark workers do without, and start faster.
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from ottla.security.tls import TlsSettings

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PASSWORD_VARIABLE: Final = "OTTLA_SASL_PASSWORD"
TOKEN_VARIABLE: Final = "OTTLA_SASL_TOKEN"
SECRETS: Final = frozenset(
    {
        "sasl.jaas.config",
        "sasl.password",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.token",
        "ssl.key.password",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.truststore.password",
    }
)
"""Properties that must not stand on a command line."""
TOKEN_SECONDS: Final = 10
LIBRDKAFKA_NAMES: Final = {"sasl.mechanisms": "sasl.mechanism", "ssl.ca.location": "ssl.truststore.location"}


class Exchange(Protocol):
    """Sends a token and returns the server's, with the session's lifetime in ms."""

    def __call__(self, token: bytes) -> tuple[bytes, int]:
        """One round trip."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class Login:
    """A mechanism with what it needs. It holds secrets, so it is not shown."""

    mechanism: str
    username: str = ""
    password: str = ""
    by_token: bool = False
    """Whether name and password are a delegation token's id and secret."""
    token: str | None = None
    token_file: str | None = None
    token_url: str | None = None
    scope: str | None = None

    def __repr__(self) -> str:
        return f"Login({self.mechanism}, {self.username or 'token'})"

    def authenticate(self, exchange: Exchange) -> int:
        """Go through the exchange; the session's lifetime in ms, 0 for no end."""
        if self.mechanism == PLAIN:
            from ottla.security.sasl.plain import plain_token

            return exchange(plain_token(self.username, self.password))[1]
        if self.mechanism == OAUTHBEARER:
            from ottla.security.sasl.oauthbearer import ACKNOWLEDGED, oauthbearer_token

            answer, lifetime = exchange(oauthbearer_token(self._bearer()))
            if answer:
                exchange(ACKNOWLEDGED)  # the server now says why it refuses
            return lifetime
        from ottla.security.sasl.scram import ScramClient

        nonce = base64.b64encode(os.urandom(24)).decode()
        scram = ScramClient(self.mechanism, self.username, self.password, nonce, by_token=self.by_token)
        challenge, _ = exchange(scram.first())
        answer, lifetime = exchange(scram.final(challenge))
        scram.check(answer)
        return lifetime

    def _bearer(self) -> str:
        if self.token is not None:
            return self.token
        if self.token_file is not None:
            with open(self.token_file, encoding="ascii") as file:
                return file.read().strip()
        assert self.token_url is not None
        return fetch_token(self.token_url, self.username, self.password, self.scope)


@dataclass(frozen=True, slots=True, repr=False)
class Security:
    """How to talk to a broker: in the clear and as nobody, unless TLS settings or a login are given."""

    tls: TlsSettings | None = None
    login: Login | None = None

    def __repr__(self) -> str:
        return f"Security(tls={self.tls is not None}, login={self.login!r})"

    def context(self) -> ssl.SSLContext | None:
        """The TLS context, if there is TLS."""
        return None if self.tls is None else _context(self.tls)


@lru_cache(maxsize=32)
def _context(settings: TlsSettings) -> ssl.SSLContext:
    from ottla.security.tls import client_context

    return client_context(settings)


def security_from_properties(
    properties: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> Security | None:
    """Read `security.protocol`, `sasl.*` and `ssl.*`; None for plain text. ValueError names the property."""
    environment = os.environ if environment is None else environment
    found = {LIBRDKAFKA_NAMES.get(key, key): value for key, value in properties.items()}
    protocol = found.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in PROTOCOLS:
        raise ValueError(f"security.protocol={protocol}: use one of {', '.join(PROTOCOLS)}")
    if protocol == "PLAINTEXT":
        return None
    tls = None
    if protocol.endswith("SSL"):
        from ottla.security.tls import TlsSettings

        _join_pem_files(found)
        tls = TlsSettings.read(found.get)
        _context(tls)  # what is wrong is told now, not at the first connection
    return Security(tls, _login(found, environment) if protocol.startswith("SASL") else None)


def refuse_secrets(words: Mapping[str, str]) -> None:
    """Refuse secrets that stand on a command line."""
    for key in words:
        if key in SECRETS:
            raise ValueError(
                f"{key} on a command line can be read by every user of this machine; put it into a file and give that "
                f"with --command-config, or set {PASSWORD_VARIABLE}"
            )


def _join_pem_files(found: dict[str, str]) -> None:
    """librdkafka has a file for the key and one for the certificate; they are one store here."""
    certificate, key = found.pop("ssl.certificate.location", None), found.pop("ssl.key.location", None)
    if certificate is None or key is None:
        return
    for name, path in (("ssl.keystore.certificate.chain", certificate), ("ssl.keystore.key", key)):
        try:
            with open(path, encoding="ascii") as file:
                found[name] = file.read()
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from error


def _login(found: Mapping[str, str], environment: Mapping[str, str]) -> Login:
    mechanism = found.get("sasl.mechanism", "").strip().upper()
    if mechanism not in MECHANISMS:
        raise ValueError(f"sasl.mechanism={mechanism or '(none)'}: use one of {', '.join(MECHANISMS)}")
    options: Mapping[str, str] = {}
    if "sasl.jaas.config" in found:
        from ottla.security.jaas import parse_jaas

        options = parse_jaas(found["sasl.jaas.config"]).options
    username = found.get("sasl.username") or options.get("username") or ""
    password = found.get("sasl.password") or options.get("password") or environment.get(PASSWORD_VARIABLE) or ""
    if mechanism != OAUTHBEARER:
        if not username or not password:
            raise ValueError(
                f"sasl.mechanism={mechanism} needs a name (sasl.username or sasl.jaas.config) and a password "
                f"(sasl.password in a file, or {PASSWORD_VARIABLE})"
            )
        by_token = options.get("tokenauth", found.get("sasl.tokenauth", "")).lower() == "true"
        return Login(mechanism, username, password, by_token)
    token = found.get("sasl.oauthbearer.token") or environment.get(TOKEN_VARIABLE)
    file = found.get("sasl.oauthbearer.token.file")
    url = found.get("sasl.oauthbearer.token.endpoint.url")
    if url is not None and url.startswith("file:"):
        import urllib.parse

        file, url = urllib.parse.unquote(urllib.parse.urlsplit(url).path), None
    if token is None and file is None and url is None:
        raise ValueError(
            f"sasl.mechanism=OAUTHBEARER needs a token: set {TOKEN_VARIABLE}, sasl.oauthbearer.token.file or "
            "sasl.oauthbearer.token.endpoint.url"
        )
    client_id = found.get("sasl.oauthbearer.client.credentials.client.id") or options.get("clientId") or username
    secret = found.get("sasl.oauthbearer.client.credentials.client.secret") or options.get("clientSecret") or password
    return Login(
        mechanism, client_id, secret, token=token, token_file=file, token_url=url, scope=_scope(found, options)
    )


def _scope(found: Mapping[str, str], options: Mapping[str, str]) -> str | None:
    return found.get("sasl.oauthbearer.scope") or options.get("scope")


def fetch_token(url: str, client_id: str, secret: str, scope: str | None) -> str:
    """Ask an issuer for a token with the client's own credentials (RFC 6749, 4.4)."""
    import urllib.parse
    import urllib.request

    form = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
    basic = base64.b64encode(f"{urllib.parse.quote(client_id)}:{urllib.parse.quote(secret)}".encode()).decode()
    request = urllib.request.Request(
        url,
        data=urllib.parse.urlencode(form).encode(),
        headers={"Authorization": f"Basic {basic}", "Content-Type": "application/x-www-form-urlencoded"},
    )
    try:
        with urllib.request.urlopen(request, timeout=TOKEN_SECONDS) as answer:
            token = json.loads(answer.read())["access_token"]
    except (OSError, ValueError, KeyError) as error:
        raise SaslError(f"no token from {url}: {type(error).__name__}") from None
    if not isinstance(token, str):
        raise SaslError(f"no token from {url}: access_token is no text")
    return token


class SessionClock:
    """When a login has to be repeated (KIP-368): well before the broker ends the session."""

    __slots__ = ("_monotonic", "_renew_at")

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._renew_at: float | None = None

    def logged_in(self, lifetime_ms: int) -> None:
        """A login that lasts so long; 0 for ever."""
        self._renew_at = self._monotonic() + 0.85 * lifetime_ms / 1000 if lifetime_ms else None

    @property
    def due(self) -> bool:
        """Whether it is time to log in again."""
        return self._renew_at is not None and self._monotonic() >= self._renew_at


def refusal(error: SaslError, address: str) -> KafkaError:
    """A failed login as the client reports it."""
    return KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, f"{address}: {error}")
