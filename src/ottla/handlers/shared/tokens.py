"""Shared by the delegation token APIs: the authentication they require, their settings, and principals as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.session import ANONYMOUS
from ottla.cluster.security.delegation_tokens import TokenRules
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.session import Call


def check_allowed(call: Call) -> None:
    """Raise unless the client authenticated, and not with a token: a token must not create or renew tokens."""
    if call.session.principal == ANONYMOUS or call.session.by_delegation_token:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def token_rules(call: Call) -> TokenRules:
    """Return the settings of delegation tokens."""
    broker = call.broker
    key = broker.config("delegation.token.secret.key")
    return TokenRules(
        key if isinstance(key, str) else None,
        broker.config_int("delegation.token.max.lifetime.ms"),
        broker.config_int("delegation.token.expiry.time.ms"),
    )


def principal_parts(principal: str) -> tuple[str, str]:
    """Return type and name of a principal such as `User:alice`."""
    kind, _, name = principal.partition(":")
    return kind, name


def principal_text(kind: str, name: str) -> str:
    """Return a principal's type and name as one text."""
    return f"{kind}:{name}"
