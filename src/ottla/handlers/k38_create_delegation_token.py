"""CreateDelegationToken (38): issue a token that authenticates its owner. v2 is flexible, v3 allows other owners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.cluster.security.delegation_tokens import create_token, token_hmac
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.tokens import check_allowed, principal_parts, principal_text, token_rules
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k38_create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call


def on_error(
    request: CreateDelegationTokenRequest, version: int, code: ErrorCode, message: str | None
) -> CreateDelegationTokenResponse:
    """Return the error without a token."""
    return CreateDelegationTokenResponse(
        error_code=code, issue_timestamp_ms=-1, expiry_timestamp_ms=-1, max_timestamp_ms=-1
    )


@api(
    38,
    versions=(1, 3),
    acl=access.per_resource(access.Need(AclOperation.CREATE_TOKENS, ResourceType.USER)),
    on_error=on_error,
)
def create_delegation_token(call: Call, request: CreateDelegationTokenRequest) -> CreateDelegationTokenResponse:
    """Issue a token for the principal, or for a user that the principal may issue tokens for."""
    requester = call.session.principal
    owner = requester
    if request.owner_principal_name:
        owner = principal_text(request.owner_principal_type or "", request.owner_principal_name)
    response = on_error(request, call.version, ErrorCode.NONE, None)
    response.principal_type, response.principal_name = principal_parts(owner)
    if call.version >= 3:
        response.token_requester_principal_type, response.token_requester_principal_name = principal_parts(requester)
    runtime = call.broker.runtime
    try:
        check_allowed(call)
        if owner != requester and not call.may(AclOperation.CREATE_TOKENS, ResourceType.USER, owner):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
        rules = token_rules(call)
        token, records = create_token(
            runtime.image,
            rules,
            requester=requester,
            owner=owner,
            renewers=[principal_text(renewer.principal_type, renewer.principal_name) for renewer in request.renewers],
            max_lifetime_ms=request.max_lifetime_ms,
            now_ms=runtime.world.clock.now_ms(),
            random=runtime.world.random,
        )
    except KafkaError as error:
        response.error_code = error.code
        return response
    runtime.change(records)
    assert rules.secret_key is not None
    response.issue_timestamp_ms = token.issue_ms
    response.expiry_timestamp_ms = token.expiry_ms
    response.max_timestamp_ms = token.max_ms
    response.token_id = token.token_id
    response.hmac = token_hmac(rules.secret_key, token.token_id)
    return response
