"""CreateAcls (30): add ACL entries. v2 is flexible, v3 adds user resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.cluster.security.acls import create_acls as plan
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k30_create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse

if TYPE_CHECKING:
    from ottla.broker.session import Call


def on_error(request: CreateAclsRequest, version: int, code: ErrorCode, message: str | None) -> CreateAclsResponse:
    """Return the error for every entry."""
    return CreateAclsResponse(
        results=[AclCreationResult(error_code=code, error_message=message) for _ in request.creations]
    )


@api(30, versions=(1, 3), acl=access.cluster(AclOperation.ALTER), on_error=on_error, split=divide_by("creations"))
def create_acls(call: Call, request: CreateAclsRequest) -> CreateAclsResponse:
    """Add the valid entries, each with its own error. They take effect with the next request."""
    runtime = call.broker.runtime
    if runtime.authorizer is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    results, records = plan(runtime.image, request.creations, random=runtime.world.random)
    runtime.change(records)
    return CreateAclsResponse(
        results=[
            AclCreationResult(error_message=None)
            if error is None
            else AclCreationResult(error_code=error.code, error_message=error.message)
            for error in results
        ]
    )
