"""ExpireDelegationToken (40): expire a token at once or at a given time. v2 is flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.delegation_tokens import expire_token
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.tokens import check_allowed, token_rules
from ottla.protocol.messages.k40_expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.protocol.errors import ErrorCode


def on_error(
    request: ExpireDelegationTokenRequest, version: int, code: ErrorCode, message: str | None
) -> ExpireDelegationTokenResponse:
    """Return the error."""
    return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=-1)


@api(40, versions=(1, 2), acl=access.EVERYBODY, on_error=on_error)
def expire_delegation_token(call: Call, request: ExpireDelegationTokenRequest) -> ExpireDelegationTokenResponse:
    """Expire a token given by its HMAC; allowed to owner, requester and renewers."""
    check_allowed(call)
    runtime = call.broker.runtime
    expiry_ms, records = expire_token(
        runtime.image,
        token_rules(call),
        bytes(request.hmac),
        principal=call.session.principal,
        period_ms=request.expiry_time_period_ms,
        now_ms=runtime.world.clock.now_ms(),
    )
    runtime.change(records)
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=expiry_ms)
