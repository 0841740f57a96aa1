"""AddRaftVoter (80) and RemoveRaftVoter (81): a quorum of one refuses as Apache Kafka does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k80_add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse, Listener
from ottla.protocol.messages.k81_remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from ottla.protocol.schema import ZERO_UUID, Uuid
from tests.conversations.local_talk import LocalTalk

if TYPE_CHECKING:
    from collections.abc import Iterator

SOMEBODY = Uuid(bytes(range(16)))
LISTENERS = [Listener(name="CONTROLLER", host="localhost", port=9093)]


@pytest.fixture
def local() -> Iterator[LocalTalk]:
    talk = LocalTalk({})
    yield talk
    talk.close()


def add(local: LocalTalk, **fields: object) -> tuple[ErrorCode, str | None]:
    request = AddRaftVoterRequest(
        **{"cluster_id": None, "voter_id": 9, "voter_directory_id": SOMEBODY, "listeners": LISTENERS} | fields  # type: ignore[arg-type]
    )
    response = local.quietly(request, AddRaftVoterResponse)
    return ErrorCode(response.error_code), response.error_message


def remove(local: LocalTalk, **fields: object) -> tuple[ErrorCode, str | None]:
    request = RemoveRaftVoterRequest(**{"cluster_id": None, "voter_id": 9, "voter_directory_id": SOMEBODY} | fields)  # type: ignore[arg-type]
    response = local.quietly(request, RemoveRaftVoterResponse)
    return ErrorCode(response.error_code), response.error_message


def test_add_voter_errors_have_kafkas_order(local: LocalTalk) -> None:
    assert add(local, cluster_id="another", voter_id=-1)[0] == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert add(local, voter_id=-1) == (ErrorCode.INVALID_REQUEST, "Add voter request didn't include a valid voter")
    assert add(local, voter_directory_id=ZERO_UUID)[0] == ErrorCode.INVALID_REQUEST
    assert add(local, listeners=[])[0] == ErrorCode.INVALID_REQUEST
    code, message = add(local, voter_id=1)
    assert code == ErrorCode.DUPLICATE_VOTER
    assert message is not None
    assert message.startswith(f"The voter id for ReplicaKey(id=1, directoryId={SOMEBODY}) is already part")
    assert add(local)[0] == ErrorCode.REQUEST_TIMED_OUT
    assert add(local, cluster_id=local.runtime.cluster_id)[0] == ErrorCode.REQUEST_TIMED_OUT


def test_last_voter_cannot_be_removed(local: LocalTalk) -> None:
    me = local.runtime.metadata.voters[0]
    assert remove(local, cluster_id="another")[0] == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert remove(local, voter_directory_id=ZERO_UUID)[0] == ErrorCode.INVALID_REQUEST
    assert remove(local)[0] == ErrorCode.VOTER_NOT_FOUND
    code, message = remove(local, voter_id=me.id, voter_directory_id=me.directory_id)
    key = f"ReplicaKey(id={me.id}, directoryId={me.directory_id})"
    assert (code, message) == (
        ErrorCode.VOTER_NOT_FOUND,
        f"Cannot remove voter {key} from the set of voters [{key}]",
    )


def test_static_voters_cannot_be_changed(local: LocalTalk) -> None:
    local.runtime.metadata.kraft_version = 0
    assert add(local) == (
        ErrorCode.UNSUPPORTED_VERSION,
        "Cluster doesn't support adding voter because the kraft.version feature is 0",
    )
    assert remove(local)[0] == ErrorCode.UNSUPPORTED_VERSION
