"""DescribeClientQuotas (48): list the quotas of entities that match a filter. v1 is flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.cluster.security.client_quotas import matching_quotas
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.messages.k48_describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.protocol.errors import ErrorCode


def on_error(
    request: DescribeClientQuotasRequest, version: int, code: ErrorCode, message: str | None
) -> DescribeClientQuotasResponse:
    """Return the error without quotas."""
    return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)


@api(48, versions=(0, 1), acl=access.cluster(AclOperation.DESCRIBE_CONFIGS), on_error=on_error)
def describe_client_quotas(call: Call, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    """Return the matching quotas."""
    matches = matching_quotas(call.broker.runtime.image, request.components, strict=request.strict)
    return DescribeClientQuotasResponse(
        error_message=None,
        entries=[
            EntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[ValueData(key=key, value=value) for key, value in quotas.items()],
            )
            for entity, quotas in matches
        ],
    )
