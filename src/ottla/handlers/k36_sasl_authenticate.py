"""SaslAuthenticate (36): one token of a SASL exchange. v1 adds the session lifetime (KIP-368), v2 is flexible."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.broker.session import Disconnect
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k36_sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.security.sasl.conversation import IllegalStepError
from ottla.security.sasl.mechanism import SaslError

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending

log = logging.getLogger(__name__)


def on_error(
    request: SaslAuthenticateRequest, version: int, code: ErrorCode, message: str | None
) -> SaslAuthenticateResponse:
    """Return the error."""
    return SaslAuthenticateResponse(error_code=code, error_message=message)


@api(36, versions=(0, 2), acl=access.EVERYBODY, on_error=on_error)
def sasl_authenticate(
    call: Call, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse | Pending[SaslAuthenticateResponse]:
    """Pass the token to the mechanism; a failure is answered after a delay and closes the connection."""
    session = call.session
    conversation = session.conversation
    if conversation is None or conversation.authenticated:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate request received after successful authentication",
        )
    try:
        response, lifetime_ms = conversation.token(bytes(request.auth_bytes))
    except IllegalStepError as error:
        raise Disconnect(str(error)) from error
    except SaslError as error:
        log.info("%s:%d failed to authenticate: %s", session.host, session.port, error)
        refusal = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(error))
        return call.broker.after_failed_authentication(session, refusal)
    if conversation.authenticated:
        session.authenticated_by(conversation)
    return SaslAuthenticateResponse(auth_bytes=response, error_message=None, session_lifetime_ms=lifetime_ms)
