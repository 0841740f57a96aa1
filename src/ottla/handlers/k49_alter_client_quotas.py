"""AlterClientQuotas (49): set and remove quotas of users, client ids and addresses. v1 is flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.cluster.security.client_quotas import alter_client_quotas as plan
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k49_alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    RequestEntryData,
    ResponseEntryData,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call


def on_error(
    request: AlterClientQuotasRequest, version: int, code: ErrorCode, message: str | None
) -> AlterClientQuotasResponse:
    """Return the error for every entity."""
    return AlterClientQuotasResponse(entries=[_answer(entry, code, message) for entry in request.entries])


@api(
    49,
    versions=(0, 1),
    acl=access.cluster(AclOperation.ALTER_CONFIGS),
    on_error=on_error,
    split=divide_by("entries"),
)
def alter_client_quotas(call: Call, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    """Change quotas, each entity with its own error. They take effect with the next request."""
    runtime = call.broker.runtime
    results, records = plan(runtime.image, request.entries)
    if not request.validate_only:
        runtime.change(records)
    return AlterClientQuotasResponse(
        entries=[
            _answer(entry, ErrorCode.NONE, None) if error is None else _answer(entry, error.code, error.message)
            for entry, error in zip(request.entries, results, strict=True)
        ]
    )


def _answer(entry: RequestEntryData, code: ErrorCode, message: str | None) -> ResponseEntryData:
    return ResponseEntryData(error_code=code, error_message=message, entity=entry.entity)
