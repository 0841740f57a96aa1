"""RenewDelegationToken (39): extend the lifetime of a token. v2 is flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.delegation_tokens import renew_token
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.tokens import check_allowed, token_rules
from ottla.protocol.messages.k39_renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.protocol.errors import ErrorCode


def on_error(
    request: RenewDelegationTokenRequest, version: int, code: ErrorCode, message: str | None
) -> RenewDelegationTokenResponse:
    """Return the error."""
    return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=-1)


@api(39, versions=(1, 2), acl=access.EVERYBODY, on_error=on_error)
def renew_delegation_token(call: Call, request: RenewDelegationTokenRequest) -> RenewDelegationTokenResponse:
    """Renew a token given by its HMAC; allowed to owner, requester and renewers."""
    check_allowed(call)
    runtime = call.broker.runtime
    expiry_ms, records = renew_token(
        runtime.image,
        token_rules(call),
        bytes(request.hmac),
        principal=call.session.principal,
        period_ms=request.renew_period_ms,
        now_ms=runtime.world.clock.now_ms(),
    )
    runtime.change(records)
    return RenewDelegationTokenResponse(expiry_timestamp_ms=expiry_ms)
