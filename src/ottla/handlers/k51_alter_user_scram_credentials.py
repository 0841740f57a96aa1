"""AlterUserScramCredentials (51): set and remove SCRAM credentials. Clients never send the password itself."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.cluster.security.scram import alter_scram_credentials
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.messages.k51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.protocol.errors import ErrorCode


def on_error(
    request: AlterUserScramCredentialsRequest, version: int, code: ErrorCode, message: str | None
) -> AlterUserScramCredentialsResponse:
    """Return the error for every user."""
    names = dict.fromkeys(
        [deletion.name for deletion in request.deletions] + [upsertion.name for upsertion in request.upsertions]
    )
    return AlterUserScramCredentialsResponse(
        results=[AlterUserScramCredentialsResult(user=name, error_code=code, error_message=message) for name in names]
    )


@api(
    51,
    versions=(0, 0),
    acl=access.cluster(AclOperation.ALTER),
    on_error=on_error,
    split=divide_by("deletions", "upsertions", key=attrgetter("name")),
)
def alter_user_scram_credentials(
    call: Call, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Change credentials; each user has its own error."""
    runtime = call.broker.runtime
    results, records = alter_scram_credentials(runtime.image, request)
    runtime.change(records)
    return AlterUserScramCredentialsResponse(results=results)
