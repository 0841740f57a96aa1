"""RemoveRaftVoter (81): remove a voter from the metadata quorum. The last voter cannot be removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.nodes.voters import check_can_change_voters, check_quorum_id, replica_key, voter_keys
from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k81_remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from ottla.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.session import Call


def on_error(
    request: RemoveRaftVoterRequest, version: int, code: ErrorCode, message: str | None
) -> RemoveRaftVoterResponse:
    """Return the error."""
    return RemoveRaftVoterResponse(error_code=code, error_message=message)


@api(81, versions=(0, 0), acl=access.cluster(AclOperation.ALTER), on_error=on_error)
def remove_raft_voter(call: Call, request: RemoveRaftVoterRequest) -> RemoveRaftVoterResponse:
    """Check the request in Kafka's order and keep the last voter."""
    runtime = call.broker.runtime
    check_quorum_id(runtime, request.cluster_id)
    if request.voter_id < 0 or request.voter_directory_id == ZERO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Remove voter request didn't include a valid voter")
    check_can_change_voters(runtime, "removing")
    key = replica_key(request.voter_id, request.voter_directory_id)
    raise KafkaError(
        ErrorCode.VOTER_NOT_FOUND, f"Cannot remove voter {key} from the set of voters {voter_keys(runtime)}"
    )
