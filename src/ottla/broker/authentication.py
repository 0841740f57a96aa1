"""SASL of one listener: enabled mechanisms, and where their credentials come from.

`ottla.security.sasl` has the mechanisms and their order. This module finds passwords, SCRAM credentials, delegation
tokens and issuers' keys in the configuration and in the metadata.
"""

from __future__ import annotations

import base64
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from ottla.cluster.configs.effective import listener_value
from ottla.cluster.security.delegation_tokens import token_hmac
from ottla.cluster.security.scram import MIN_ITERATIONS, credential_from_password
from ottla.security.jaas import parse_jaas
from ottla.security.sasl.conversation import Conversation
from ottla.security.sasl.mechanism import MECHANISMS, OAUTHBEARER, PLAIN, SaslError
from ottla.security.sasl.oauthbearer import OAuthBearerServer
from ottla.security.sasl.plain import PlainServer
from ottla.security.sasl.scram import MECHANISM_IDS, Login, ScramServer, mock_credential, mock_iterations, stable_salt
from ottla.security.tokens import TokenRules, TokenValidator, read_key_set

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ottla.broker.broker import Broker
    from ottla.cluster.configs import Value
    from ottla.cluster.security.scram import ScramCredential
    from ottla.cluster.server_config import Endpoint
    from ottla.security.sasl.mechanism import ServerMechanism
    from ottla.world.clock import Timer

log = logging.getLogger(__name__)

NONCE_BYTES: Final = 24


class ListenerAuthentication:
    """The SASL settings of one listener of one node.

    Raise ValueError if the configuration cannot work.
    """

    def __init__(self, broker: Broker, endpoint: Endpoint) -> None:
        self._broker = broker
        self._listener = endpoint.listener
        world = broker.runtime.world
        self._clock = world.clock
        self._random = world.random.fork(f"nonces of {endpoint.listener} on node {broker.node_id}")
        self._iterations: dict[str, tuple[int, Counter[int]]] = {}
        self._token_credentials: dict[tuple[str, str], ScramCredential] = {}
        self._validator: TokenValidator | None = None
        self._keys: KeyRefresh | None = None
        enabled = self._config("sasl.enabled.mechanisms")
        assert isinstance(enabled, tuple)
        self.mechanisms = tuple(mechanism for mechanism in enabled if mechanism in MECHANISMS)
        if not self.mechanisms:
            raise ValueError(
                f"sasl.enabled.mechanisms of listener {endpoint.listener} are {', '.join(enabled) or 'none'}; "
                f"supported are {', '.join(MECHANISMS)}"
            )
        self._passwords = self._read_passwords() if PLAIN in self.mechanisms else {}
        if OAUTHBEARER in self.mechanisms:
            self._validator = self._token_validator()

    def conversation(self) -> Conversation:
        """Return the SASL exchange of a new connection."""
        return Conversation(self.mechanisms, self._start, self._lifetime_ms, self._clock.now_ms)

    def configs_changed(self) -> None:
        """Read the passwords of PLAIN again; keep the old ones if the new section is invalid."""
        if PLAIN in self.mechanisms:
            try:
                self._passwords = self._read_passwords()
            except ValueError as error:
                log.error("listener %s keeps its old passwords: %s", self._listener, error)

    def close(self) -> None:
        """Stop refreshing the issuer's keys."""
        if self._keys is not None:
            self._keys.stop()

    # Private parts

    def _config(self, name: str, mechanism: str | None = None) -> Value:
        return listener_value(self._broker.layers, self._listener, name, mechanism)

    def _lifetime_ms(self, mechanism: str) -> int:
        value = self._config("connections.max.reauth.ms", mechanism)
        return max(value, 0) if isinstance(value, int) else 0

    def _start(self, mechanism: str) -> ServerMechanism:
        if mechanism == PLAIN:
            return PlainServer(lambda name: self._passwords.get(name))
        if mechanism == OAUTHBEARER:
            assert self._validator is not None
            return OAuthBearerServer(self._validator)
        nonce = base64.b64encode(self._random.bytes(NONCE_BYTES)).decode()
        return ScramServer(
            mechanism,
            lambda name, is_token: self._find(mechanism, name, is_token),
            lambda name, is_token: self._mock(mechanism, name, is_token),
            nonce,
        )

    @property
    def _mock_secret(self) -> bytes:
        """Decides the salts of unknown users: the same on all nodes and after a restart.

        Clients that may see a directory id (DescribeQuorum) may list the users as well: both need DESCRIBE on CLUSTER.
        """
        runtime = self._broker.runtime
        path = runtime.metadata.directory.path
        return next(node.directory_ids[path] for node in runtime.nodes.values() if path in node.directory_ids)

    def _mock(self, mechanism: str, name: str, is_token: bool) -> ScramCredential:
        """Return a fake credential for an unknown user or delegation token, so that clients cannot tell which exist."""
        secret = self._mock_secret
        if is_token:
            return mock_credential(mechanism, secret, name)
        runtime = self._broker.runtime
        offset, counts = self._iterations.get(mechanism, (-1, Counter()))
        if offset != runtime.metadata_offset:
            users = runtime.image.scram.get(MECHANISM_IDS[mechanism], {})
            counts = Counter(credential.iterations for credential in users.values())
            self._iterations[mechanism] = runtime.metadata_offset, counts
        return mock_credential(mechanism, secret, name, mock_iterations(counts, mechanism, secret, name))

    def _read_passwords(self) -> dict[str, str]:
        text = self._config("sasl.jaas.config", PLAIN)
        if not isinstance(text, str):
            raise ValueError(
                f"listener.name.{self._listener.lower()}.plain.sasl.jaas.config is missing: it lists the users of "
                'PLAIN as PlainLoginModule required user_alice="..." ;'
            )
        return parse_jaas(text).users

    def _find(self, mechanism: str, name: str, is_token: bool) -> Login | None:
        image = self._broker.runtime.image
        if not is_token:
            credential = image.scram.get(MECHANISM_IDS[mechanism], {}).get(name)
            return None if credential is None else Login(credential, f"User:{name}")
        token = image.delegation_tokens.get(name)
        key = self._broker.config("delegation.token.secret.key")
        if token is None or not isinstance(key, str) or min(token.expiry_ms, token.max_ms) < self._clock.now_ms():
            return None
        known = self._token_credentials.get((mechanism, name))
        if known is None:
            # A token's password is its HMAC in base64. Its salt is made as that of an unknown token.
            password = base64.b64encode(token_hmac(key, name))
            if len(self._token_credentials) > 1000:
                self._token_credentials.clear()
            known = self._token_credentials[mechanism, name] = credential_from_password(
                MECHANISM_IDS[mechanism],
                password,
                stable_salt(mechanism, self._mock_secret, name),
                MIN_ITERATIONS,
            )
        return Login(known, token.owner, token.expiry_ms, by_delegation_token=True)

    def _token_validator(self) -> TokenValidator:
        def text(name: str) -> str | None:
            value = self._config(name)
            return value if isinstance(value, str) and value else None

        audiences = self._config("sasl.oauthbearer.expected.audience")
        skew = self._config("sasl.oauthbearer.clock.skew.seconds")
        allow_unsigned = self._broker.runtime.allow_unsigned_tokens
        rules = TokenRules(
            issuer=text("sasl.oauthbearer.expected.issuer"),
            audiences=audiences if isinstance(audiences, tuple) else (),
            principal_claim=text("sasl.oauthbearer.sub.claim.name") or "sub",
            clock_skew_seconds=skew if isinstance(skew, int) else 30,
            allow_unsigned=allow_unsigned,
        )
        url = text("sasl.oauthbearer.jwks.endpoint.url")
        if url is None:
            if not allow_unsigned:
                raise ValueError(
                    "sasl.oauthbearer.jwks.endpoint.url is missing: OAUTHBEARER needs the issuer's public keys, "
                    "from file:///... or https://..."
                )
            return TokenValidator(rules, now_ms=self._clock.now_ms)
        validator = TokenValidator(rules, self._first_keys(url), self._clock.now_ms)
        self._keys = KeyRefresh(self._broker, url, validator)
        validator.on_unknown_key = self._keys.refresh_soon
        return validator

    def _first_keys(self, url: str) -> Mapping[str, Any]:
        """Return the issuer's keys: those of another node if it has them, else read them (blocking, at start only)."""
        for node in self._broker.runtime.nodes.values():
            for other in node.authentication.values():
                if other._validator is not None and other._validator.keys is not None and other._keys_url == url:
                    return other._validator.keys
        return read_key_set(url)

    @property
    def _keys_url(self) -> str | None:
        return None if self._keys is None else self._keys.url


class KeyRefresh:
    """Refreshes the issuer's keys periodically, and when a token names an unknown key, in a worker."""

    def __init__(self, broker: Broker, url: str, validator: TokenValidator) -> None:
        self._broker = broker
        self.url = url
        self._validator = validator
        self._clock = broker.runtime.world.clock
        self._reading = False
        self._stopped = False
        self._not_before = 0.0
        self._timer: Timer | None = None
        self._schedule()

    def refresh_soon(self) -> None:
        """Refresh the keys because a token names an unknown one, at most once per backoff."""
        if not self._reading and not self._stopped and self._clock.monotonic() >= self._not_before:
            self._read()

    def stop(self) -> None:
        """Stop refreshing."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, name: str = "sasl.oauthbearer.jwks.endpoint.refresh.ms") -> None:
        self._timer = self._clock.call_later(self._broker.config_int(name) / 1000, self._read)

    def _read(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._reading = True
        self._broker.runtime.world.workers.submit_waiting(lambda: read_key_set(self.url), self._done)

    def _done(self, keys: dict[str, Any] | None, error: Exception | None) -> None:
        self._reading = False
        if self._stopped:
            return
        backoff = "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"
        self._not_before = self._clock.monotonic() + self._broker.config_int(backoff) / 1000
        if keys is not None:
            self._validator.keys = keys
            self._schedule()
        else:
            log.warning("the issuer's keys could not be refreshed, the old ones stay in use: %s", error)
            self._schedule(backoff)


__all__ = ["ListenerAuthentication", "SaslError"]
