"""SaslHandshake (17): choose the SASL mechanism. Bare tokens follow v0, SaslAuthenticate requests follow v1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.session import Disconnect
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k17_sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.security.sasl.conversation import IllegalStepError
from ottla.security.sasl.mechanism import SaslError

if TYPE_CHECKING:
    from ottla.broker.session import Call


def on_error(
    request: SaslHandshakeRequest, version: int, code: ErrorCode, message: str | None
) -> SaslHandshakeResponse:
    """Return the error without mechanisms."""
    return SaslHandshakeResponse(error_code=code)


@api(17, versions=(0, 1), acl=access.EVERYBODY, on_error=on_error)
def sasl_handshake(call: Call, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Choose the mechanism if the listener enables it; return the enabled mechanisms."""
    session = call.session
    conversation = session.conversation
    if conversation is None or (conversation.authenticated and not conversation.renewable):
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    try:
        offered = conversation.handshake(request.mechanism, call.version)
    except (IllegalStepError, SaslError) as error:
        raise Disconnect(str(error)) from error
    if not offered:
        session.closing = True
    return SaslHandshakeResponse(
        error_code=ErrorCode.NONE if offered else ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        mechanisms=list(conversation.mechanisms),
    )
