"""UnregisterBroker (64): remove the registration of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.brokers import unregister_broker as plan
from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.messages.k64_unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.protocol.errors import ErrorCode


def on_error(
    request: UnregisterBrokerRequest, version: int, code: ErrorCode, message: str | None
) -> UnregisterBrokerResponse:
    """Return the error."""
    return UnregisterBrokerResponse(error_code=code, error_message=message)


@api(64, versions=(0, 0), acl=access.cluster(AclOperation.ALTER), on_error=on_error)
def unregister_broker(call: Call, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    """Remove a broker from the metadata and from every ISR."""
    runtime = call.broker.runtime
    runtime.change(plan(runtime.image, request.broker_id, layers=runtime.controller.layers))
    return UnregisterBrokerResponse(error_message=None)
