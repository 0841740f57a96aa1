"""What the APIs of delegation tokens share: who may use them, under which rules, and how principals are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.session import ANONYMOUS
from ottla.cluster.delegation_tokens import TokenRules
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.session import Call


def check_allowed(call: Call) -> None:
    """Tokens are for those who proved who they are, and not by a token: that would let a token outlive itself."""
    if call.session.principal == ANONYMOUS or call.session.by_delegation_token:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def token_rules(call: Call) -> TokenRules:
    """How tokens live in this cluster."""
    broker = call.broker
    key = broker.config("delegation.token.secret.key")
    return TokenRules(
        key if isinstance(key, str) else None,
        broker.config_int("delegation.token.max.lifetime.ms"),
        broker.config_int("delegation.token.expiry.time.ms"),
    )


def principal_parts(principal: str) -> tuple[str, str]:
    """`User:alice` as type and name."""
    kind, _, name = principal.partition(":")
    return kind, name


def principal_text(kind: str, name: str) -> str:
    """Type and name as they are written in one word."""
    return f"{kind}:{name}"
