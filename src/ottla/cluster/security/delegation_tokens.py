"""Delegation tokens in the metadata: create, renew, expire (Kafka's DelegationTokenControlManager).

The secret is not stored: it is the HMAC of the token id under the cluster's key. SASL authenticates with it.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ottla.cluster.features import DELEGATION_TOKENS_FROM
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas.metadata import DelegationTokenRecord, RemoveDelegationTokenRecord
from ottla.protocol.schema import Uuid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.cluster.image import ClusterImage
    from ottla.protocol.schema import Message
    from ottla.world.random import Random


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A delegation token without its secret, which is derived from the token id and the cluster's key."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_ms: int
    max_ms: int
    expiry_ms: int

    @classmethod
    def from_record(cls, record: DelegationTokenRecord) -> DelegationToken:
        """Create the token from its record."""
        return cls(
            record.token_id,
            record.owner,
            record.requester,
            tuple(record.renewers),
            record.issue_timestamp,
            record.max_timestamp,
            record.expiration_timestamp,
        )

    def to_record(self) -> DelegationTokenRecord:
        """Return the record that stores this token."""
        return DelegationTokenRecord(
            owner=self.owner,
            requester=self.requester,
            renewers=list(self.renewers),
            issue_timestamp=self.issue_ms,
            max_timestamp=self.max_ms,
            expiration_timestamp=self.expiry_ms,
            token_id=self.token_id,
        )


_LONG_MAX: Final = 2**63 - 1
_SWEPT_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Lifetimes of tokens and the key that signs them; without a key tokens are disabled."""

    secret_key: str | None
    max_lifetime_ms: int
    renew_lifetime_ms: int


def token_hmac(secret_key: str, token_id: str) -> bytes:
    """Return the HMAC of a token id."""
    return hmac.digest(secret_key.encode(), token_id.encode(), "sha512")


def find_token(image: ClusterImage, rules: TokenRules, secret: bytes) -> DelegationToken | None:
    """Return the token with this HMAC."""
    if rules.secret_key is None:
        return None
    for token in image.delegation_tokens.values():
        if hmac.compare_digest(token_hmac(rules.secret_key, token.token_id), secret):
            return token
    return None


def create_token(
    image: ClusterImage,
    rules: TokenRules,
    *,
    requester: str,
    owner: str | None,
    renewers: Sequence[str],
    max_lifetime_ms: int,
    now_ms: int,
    random: Random,
) -> tuple[DelegationToken, list[Message]]:
    """Create a token; principals have the form `User:name`, and only users may renew."""
    _check_enabled(image, rules)
    lifetime = rules.max_lifetime_ms
    if max_lifetime_ms > 0:
        lifetime = min(lifetime, max_lifetime_ms)
    max_ms = _later(now_ms, lifetime)
    for renewer in renewers:
        if not renewer.startswith("User:"):
            raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    token = DelegationToken(
        token_id=str(Uuid(random.uuid())),
        owner=owner if owner is not None else requester,
        requester=requester,
        renewers=tuple(renewers),
        issue_ms=now_ms,
        max_ms=max_ms,
        expiry_ms=min(max_ms, _later(now_ms, rules.renew_lifetime_ms)),
    )
    return token, [token.to_record()]


def renew_token(
    image: ClusterImage, rules: TokenRules, secret: bytes, *, principal: str, period_ms: int, now_ms: int
) -> tuple[int, list[Message]]:
    """Renew a token; return its new expiry time."""
    token = _usable(image, rules, secret)
    if _over(token, now_ms):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    _check_allowed(token, principal)
    lifetime = rules.renew_lifetime_ms
    if period_ms > 0:
        lifetime = min(lifetime, period_ms)
    expiry = min(token.max_ms, _later(now_ms, lifetime))
    return expiry, [replace(token, expiry_ms=expiry).to_record()]


def expire_token(
    image: ClusterImage, rules: TokenRules, secret: bytes, *, principal: str, period_ms: int, now_ms: int
) -> tuple[int, list[Message]]:
    """Expire a token after a period, or at once if it is negative; return the expiry time."""
    token = _usable(image, rules, secret)
    _check_allowed(token, principal)
    if period_ms < 0:
        return now_ms, [RemoveDelegationTokenRecord(token_id=token.token_id)]
    if _over(token, now_ms):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    expiry = min(token.max_ms, _later(now_ms, period_ms))
    return expiry, [replace(token, expiry_ms=expiry).to_record()]


def sweep_expired_tokens(image: ClusterImage, now_ms: int) -> list[Message]:
    """Remove expired tokens, a limited number at a time."""
    gone = [token.token_id for token in image.delegation_tokens.values() if _over(token, now_ms)]
    return [RemoveDelegationTokenRecord(token_id=token_id) for token_id in gone[:_SWEPT_AT_ONCE]]


def _check_enabled(image: ClusterImage, rules: TokenRules) -> None:
    if rules.secret_key is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    if image.metadata_version < DELEGATION_TOKENS_FROM:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


def _usable(image: ClusterImage, rules: TokenRules, secret: bytes) -> DelegationToken:
    _check_enabled(image, rules)
    token = find_token(image, rules, secret)
    if token is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return token


def _check_allowed(token: DelegationToken, principal: str) -> None:
    if principal not in (token.owner, token.requester, *token.renewers):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _over(token: DelegationToken, now_ms: int) -> bool:
    return token.max_ms < now_ms or token.expiry_ms < now_ms


def _later(now_ms: int, duration_ms: int) -> int:
    return min(now_ms + duration_ms, _LONG_MAX)
