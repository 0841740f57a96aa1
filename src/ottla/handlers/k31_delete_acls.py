"""DeleteAcls (31): remove ACL entries that match filters. v2 is flexible, v3 adds user resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.cluster.security.acls import delete_acls as plan
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k31_delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.cluster.security.acls import Acl


def on_error(request: DeleteAclsRequest, version: int, code: ErrorCode, message: str | None) -> DeleteAclsResponse:
    """Return the error for every filter."""
    return DeleteAclsResponse(
        filter_results=[DeleteAclsFilterResult(error_code=code, error_message=message) for _ in request.filters]
    )


@api(
    31, versions=(1, 3), acl=access.cluster(AclOperation.ALTER), on_error=on_error, split=divide_by("filters", size=20)
)
def delete_acls(call: Call, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Remove the matching entries; return those of each filter."""
    runtime = call.broker.runtime
    if runtime.authorizer is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    results, records = plan(runtime.image, request.filters)
    runtime.change(records)
    return DeleteAclsResponse(filter_results=[_result(result) for result in results])


def _result(removed: list[Acl] | KafkaError) -> DeleteAclsFilterResult:
    if isinstance(removed, KafkaError):
        return DeleteAclsFilterResult(error_code=removed.code, error_message=removed.message)
    return DeleteAclsFilterResult(
        error_message=None,
        matching_acls=[
            DeleteAclsMatchingAcl(
                error_message=None,
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission_type,
            )
            for acl in removed
        ],
    )
