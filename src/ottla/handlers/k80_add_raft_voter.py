"""AddRaftVoter (80): add a voter to the metadata quorum. v1 can be answered before the change is committed.

ottla stays a quorum of one: a new voter is never ready, which is Kafka's response for one that it cannot reach.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.nodes.voters import check_can_change_voters, check_quorum_id, replica_key, voter_keys
from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k80_add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from ottla.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.session import Call

CONTROLLER_LISTENER = "CONTROLLER"


def on_error(request: AddRaftVoterRequest, version: int, code: ErrorCode, message: str | None) -> AddRaftVoterResponse:
    """Return the error."""
    return AddRaftVoterResponse(error_code=code, error_message=message)


@api(80, versions=(0, 1), acl=access.cluster(AclOperation.ALTER), on_error=on_error)
def add_raft_voter(call: Call, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
    """Check the request in Kafka's order, then raise REQUEST_TIMED_OUT."""
    runtime = call.broker.runtime
    check_quorum_id(runtime, request.cluster_id)
    if request.voter_id < 0 or request.voter_directory_id == ZERO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Add voter request didn't include a valid voter")
    if all(listener.name != CONTROLLER_LISTENER for listener in request.listeners):
        listed = ", ".join(f"{listener.name}={listener.host}:{listener.port}" for listener in request.listeners)
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Add voter request didn't include the endpoint ({{{listed}}}) for the default listener "
            f"ListenerName({CONTROLLER_LISTENER})",
        )
    check_can_change_voters(runtime, "adding")
    key = replica_key(request.voter_id, request.voter_directory_id)
    if request.voter_id in {voter.id for voter in runtime.metadata.voters}:
        raise KafkaError(
            ErrorCode.DUPLICATE_VOTER,
            f"The voter id for {key} is already part of the set of voters {voter_keys(runtime)}.",
        )
    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"New voter {key} is not ready to receive requests")
