"""Turns Kafka's client properties into a TLS context and a SASL login.

Secrets come from a properties file, a separate file or the environment. They are refused on a command line, which
every user of the machine can read.
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
from ottla.protocol.inspect.secrets import is_secret_config
from ottla.security.sasl.mechanism import MECHANISMS, OAUTHBEARER, PLAIN, SaslError

# Modules for logins and TLS are imported where they are used: most commands and Spark workers need neither.
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from ottla.security.tls import TlsSettings

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PASSWORD_VARIABLE: Final = "OTTLA_SASL_PASSWORD"
TOKEN_VARIABLE: Final = "OTTLA_SASL_TOKEN"
BEARER_TOKEN: Final = "sasl.oauthbearer.token"
TOKEN_SECONDS: Final = 10
LIBRDKAFKA_NAMES: Final = {"sasl.mechanisms": "sasl.mechanism", "ssl.ca.location": "ssl.truststore.location"}
SECURITY_PROPERTIES: Final = frozenset(
    {
        "security.protocol",
        "sasl.jaas.config",
        "sasl.mechanism",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.scope",
        BEARER_TOKEN,
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.token.file",
        "sasl.password",
        "sasl.tokenauth",
        "sasl.username",
        "ssl.certificate.location",
        "ssl.cipher.suites",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
        *LIBRDKAFKA_NAMES,
    }
)
"""Every property that `security_from_properties` reads."""


class Exchange(Protocol):
    """Sends a SASL token; returns the server's token and the session's lifetime in ms."""

    def __call__(self, token: bytes) -> tuple[bytes, int]:
        """Make one round trip."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class Login:
    """A SASL mechanism with its credentials. It holds secrets, so `repr` shows the name only."""

    mechanism: str
    username: str = ""
    password: str = ""
    by_token: bool = False
    """Return whether username and password are a delegation token's id and HMAC."""
    token: str | None = None
    token_file: str | None = None
    token_url: str | None = None
    scope: str | None = None

    def __repr__(self) -> str:
        return f"Login({self.mechanism}, {self.username or 'token'})"

    def authenticate(self, exchange: Exchange) -> int:
        """Run the mechanism's exchange; return the session's lifetime in ms, 0 for a session without end."""
        if self.mechanism == PLAIN:
            from ottla.security.sasl.plain import plain_token

            return exchange(plain_token(self.username, self.password))[1]
        if self.mechanism == OAUTHBEARER:
            from ottla.security.sasl.oauthbearer import ACKNOWLEDGED, oauthbearer_token

            response, lifetime = exchange(oauthbearer_token(self._bearer()))
            if response:
                exchange(ACKNOWLEDGED)  # RFC 7628: the server answers this with the reason for its refusal
            return lifetime
        from ottla.security.sasl.scram import ScramClient

        nonce = base64.b64encode(os.urandom(24)).decode()
        scram = ScramClient(self.mechanism, self.username, self.password, nonce, by_token=self.by_token)
        challenge, _ = exchange(scram.first())
        response, lifetime = exchange(scram.final(challenge))
        scram.check(response)
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
    """TLS settings and login of a connection; without either it is plain text and unauthenticated."""

    tls: TlsSettings | None = None
    login: Login | None = None

    def __repr__(self) -> str:
        return f"Security(tls={self.tls is not None}, login={self.login!r})"

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context; None for plain text."""
        return None if self.tls is None else _context(self.tls)


@lru_cache(maxsize=32)
def _context(settings: TlsSettings) -> ssl.SSLContext:
    from ottla.security.tls import client_context

    return client_context(settings)


def security_from_properties(
    properties: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> Security | None:
    """Return what `security.protocol`, `sasl.*` and `ssl.*` describe; None for plain text.

    Raise ValueError, with the name of the property, for one that is wrong or missing.
    """
    environment = os.environ if environment is None else environment
    values = {LIBRDKAFKA_NAMES.get(key, key): value for key, value in properties.items()}
    protocol = values.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in PROTOCOLS:
        raise ValueError(f"security.protocol={protocol}: use one of {', '.join(PROTOCOLS)}")
    if protocol == "PLAINTEXT":
        return None
    tls = None
    if protocol.endswith("SSL"):
        from ottla.security.tls import TlsSettings

        _join_pem_files(values)
        tls = TlsSettings.read(values.get)
        _context(tls)  # report wrong settings now, not at the first connection
    return Security(tls, _login(values, environment) if protocol.startswith("SASL") else None)


def refuse_secrets(properties: Mapping[str, str]) -> None:
    """Raise ValueError if properties from a command line hold a secret."""
    for name in properties:
        if is_secret_config(name) or name == BEARER_TOKEN:
            raise ValueError(
                f"{name}: every user of this machine can read a command line; put it into a file and give that with "
                f"--command-config, or set {PASSWORD_VARIABLE}"
            )


def _join_pem_files(values: dict[str, str]) -> None:
    """Replace librdkafka's two files, one for the key and one for the certificate, by the PEM key store they make."""
    certificate, key = values.pop("ssl.certificate.location", None), values.pop("ssl.key.location", None)
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise ValueError("ssl.certificate.location and ssl.key.location are only used together")
    for name, path in (("ssl.keystore.certificate.chain", certificate), ("ssl.keystore.key", key)):
        try:
            with open(path, encoding="ascii") as file:
                values[name] = file.read()
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from error


def _login(values: Mapping[str, str], environment: Mapping[str, str]) -> Login:
    mechanism = values.get("sasl.mechanism", "").strip().upper()
    if mechanism not in MECHANISMS:
        raise ValueError(f"sasl.mechanism={mechanism or '(none)'}: use one of {', '.join(MECHANISMS)}")
    options: Mapping[str, str] = {}
    if "sasl.jaas.config" in values:
        from ottla.security.jaas import parse_jaas

        options = parse_jaas(values["sasl.jaas.config"]).options
    username = values.get("sasl.username") or options.get("username") or ""
    password = values.get("sasl.password") or options.get("password") or environment.get(PASSWORD_VARIABLE) or ""
    if mechanism != OAUTHBEARER:
        if not username or not password:
            raise ValueError(
                f"sasl.mechanism={mechanism} needs a user name (sasl.username or sasl.jaas.config) and a password "
                f"(sasl.password in a file, or {PASSWORD_VARIABLE})"
            )
        by_token = options.get("tokenauth", values.get("sasl.tokenauth", "")).lower() == "true"
        return Login(mechanism, username, password, by_token)
    token = values.get(BEARER_TOKEN) or environment.get(TOKEN_VARIABLE)
    file = values.get("sasl.oauthbearer.token.file")
    url = values.get("sasl.oauthbearer.token.endpoint.url")
    if url is not None and url.startswith("file:"):
        import urllib.parse

        file, url = urllib.parse.unquote(urllib.parse.urlsplit(url).path), None
    if token is None and file is None and url is None:
        raise ValueError(
            f"sasl.mechanism=OAUTHBEARER needs a token: set {TOKEN_VARIABLE}, sasl.oauthbearer.token.file or "
            "sasl.oauthbearer.token.endpoint.url"
        )
    client_id = values.get("sasl.oauthbearer.client.credentials.client.id") or options.get("clientId") or username
    secret = values.get("sasl.oauthbearer.client.credentials.client.secret") or options.get("clientSecret") or password
    return Login(
        mechanism, client_id, secret, token=token, token_file=file, token_url=url, scope=_scope(values, options)
    )


def _scope(values: Mapping[str, str], options: Mapping[str, str]) -> str | None:
    return values.get("sasl.oauthbearer.scope") or options.get("scope")


def fetch_token(url: str, client_id: str, secret: str, scope: str | None) -> str:
    """Return a bearer token that the issuer gives for the client's own credentials (RFC 6749, 4.4)."""
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
        with urllib.request.urlopen(request, timeout=TOKEN_SECONDS) as response:
            token = json.loads(response.read())["access_token"]
    except (OSError, ValueError, KeyError) as error:
        raise SaslError(f"no token from {url}: {type(error).__name__}") from None
    if not isinstance(token, str):
        raise SaslError(f"no token from {url}: access_token is not a string")
    return token


class SessionClock:
    """Decides when to re-authenticate (KIP-368): after 85% of the session's lifetime."""

    __slots__ = ("_monotonic", "_renew_at")

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._renew_at: float | None = None

    def logged_in(self, lifetime_ms: int) -> None:
        """Start the clock of a session that lasts this long; 0 means without end."""
        self._renew_at = self._monotonic() + 0.85 * lifetime_ms / 1000 if lifetime_ms else None

    @property
    def due(self) -> bool:
        """Return whether it is time to re-authenticate."""
        return self._renew_at is not None and self._monotonic() >= self._renew_at


def login_failure(error: SaslError, address: str) -> KafkaError:
    """Return a failed login as the client reports it."""
    return KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, f"{address}: {error}")
