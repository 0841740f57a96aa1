"""DescribeUserScramCredentials (50): list users with SCRAM credentials; never the credentials themselves."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k50_describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call


def on_error(
    request: DescribeUserScramCredentialsRequest, version: int, code: ErrorCode, message: str | None
) -> DescribeUserScramCredentialsResponse:
    """Return the error without users."""
    return DescribeUserScramCredentialsResponse(error_code=code, error_message=message)


@api(
    50,
    versions=(0, 0),
    acl=access.cluster(AclOperation.DESCRIBE),
    on_error=on_error,
    split=divide_by("users", key=attrgetter("name")),
)
def describe_user_scram_credentials(
    call: Call, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Describe the given users, or all."""
    scram = call.broker.runtime.image.scram
    if request.users:
        counts = Counter(user.name for user in request.users)
    else:
        counts = Counter({name: 1 for users in scram.values() for name in users})
    return DescribeUserScramCredentialsResponse(
        error_message=None, results=[_describe(call, name, count) for name, count in counts.items()]
    )


def _describe(call: Call, name: str, count: int) -> DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResult(user=name, error_message=None)
    if count > 1:
        result.error_code = ErrorCode.DUPLICATE_RESOURCE
        result.error_message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        return result
    result.credential_infos = [
        CredentialInfo(mechanism=mechanism, iterations=users[name].iterations)
        for mechanism, users in sorted(call.broker.runtime.image.scram.items())
        if name in users
    ]
    if not result.credential_infos:
        result.error_code = ErrorCode.RESOURCE_NOT_FOUND
        result.error_message = f"Attempt to describe a user credential that does not exist: {name}"
    return result
