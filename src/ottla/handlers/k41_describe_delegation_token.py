"""DescribeDelegationToken (41): list the tokens that the principal may see. v2 is flexible, v3 adds the requester."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.cluster.security.delegation_tokens import token_hmac
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.tokens import check_allowed, principal_parts, principal_text, token_rules
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k41_describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.cluster.security.delegation_tokens import DelegationToken


def on_error(
    request: DescribeDelegationTokenRequest, version: int, code: ErrorCode, message: str | None
) -> DescribeDelegationTokenResponse:
    """Return the error without tokens."""
    return DescribeDelegationTokenResponse(error_code=code)


@api(
    41,
    versions=(1, 3),
    acl=access.per_resource(
        access.Need(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN),
        access.Need(AclOperation.DESCRIBE_TOKENS, ResourceType.USER),
    ),
    on_error=on_error,
)
def describe_delegation_token(call: Call, request: DescribeDelegationTokenRequest) -> DescribeDelegationTokenResponse:
    """Describe the tokens of the given owners, or all, as far as the principal may see them."""
    check_allowed(call)
    rules = token_rules(call)
    if rules.secret_key is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    owners = request.owners
    if owners is not None and not owners:
        return DescribeDelegationTokenResponse()
    requested_owners = (
        None if owners is None else {principal_text(owner.principal_type, owner.principal_name) for owner in owners}
    )
    return DescribeDelegationTokenResponse(
        tokens=[
            _describe(token, token_hmac(rules.secret_key, token.token_id))
            for token in call.broker.runtime.image.delegation_tokens.values()
            if (requested_owners is None or token.owner in requested_owners) and _may_describe(call, token)
        ]
    )


def _may_describe(call: Call, token: DelegationToken) -> bool:
    if call.session.principal in (token.owner, token.requester, *token.renewers):
        return True
    return call.may(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id) or call.may(
        AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner
    )


def _describe(token: DelegationToken, hmac: bytes) -> DescribedDelegationToken:
    owner_type, owner = principal_parts(token.owner)
    requester_type, requester = principal_parts(token.requester)
    return DescribedDelegationToken(
        principal_type=owner_type,
        principal_name=owner,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester,
        issue_timestamp=token.issue_ms,
        expiry_timestamp=token.expiry_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=hmac,
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name)
            for kind, name in map(principal_parts, token.renewers)
        ],
    )
