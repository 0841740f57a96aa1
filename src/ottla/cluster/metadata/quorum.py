"""The controller quorum on disk: `quorum-state`, voters, and the control records of leader and voters.

ottla is always a quorum of one and holds no elections.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.protocol.record_schemas.control import (
    Endpoint,
    KRaftVersionFeature,
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
    VotersRecord,
    VotersRecordVoter,
)
from ottla.protocol.record_values import ControlRecordType, encode_control_key, encode_control_value
from ottla.protocol.schema import ZERO_UUID, Uuid
from ottla.records.builder import BatchBuilder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.protocol.schema import Message

QUORUM_STATE_FILE: Final = "quorum-state"
_MAX_SUPPORTED_KRAFT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter and the endpoints of its controller."""

    id: int
    directory_id: Uuid
    endpoints: tuple[tuple[str, str, int], ...] = ()
    """Listener name, host and port of each."""


@dataclass(frozen=True, slots=True)
class QuorumState:
    """Contents of `quorum-state`: leader epoch, leader and vote (Kafka's ElectionState)."""

    leader_id: int = -1
    leader_epoch: int = 0
    voted_id: int = -1
    voted_directory_id: Uuid = ZERO_UUID


def encode_quorum_state(state: QuorumState, kraft_version: int, voters: Iterable[int]) -> bytes:
    """Encode `quorum-state` as Kafka does: version 1 with dynamic voters, version 0 with static ones."""
    if kraft_version >= 1:
        values: dict[str, object] = {
            "leaderId": state.leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": state.voted_id,
            "votedDirectoryId": str(state.voted_directory_id),
            "data_version": 1,
        }
    else:
        values = {
            "clusterId": "",
            "leaderId": state.leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": state.voted_id,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": voter} for voter in voters],
            "data_version": 0,
        }
    return json.dumps(values, separators=(",", ":")).encode()


def is_quorum_state(data: bytes) -> bool:
    """Return whether the bytes are a JSON object."""
    try:
        return isinstance(json.loads(data), dict)
    except ValueError:
        return False


def decode_quorum_state(data: bytes) -> QuorumState:
    """Decode either version; missing or unreadable fields mean that no election took place."""
    try:
        values = json.loads(data)
    except ValueError:
        return QuorumState()
    if not isinstance(values, dict):
        return QuorumState()

    def number(name: str, default: int) -> int:
        value = values.get(name)
        return value if isinstance(value, int) and -1 <= value < 2**31 else default

    try:
        voted_directory = Uuid.parse(str(values.get("votedDirectoryId") or ZERO_UUID))
    except ValueError:
        voted_directory = ZERO_UUID
    return QuorumState(number("leaderId", -1), max(number("leaderEpoch", 0), 0), number("votedId", -1), voted_directory)


def leader_change(leader_id: int) -> Message:
    """Return the LeaderChange record that begins an epoch, granted by the only voter."""
    voters = [LeaderChangeMessageVoter(voter_id=leader_id)]
    return LeaderChangeMessage(leader_id=leader_id, voters=voters, granting_voters=voters)


def kraft_version_record(version: int) -> Message:
    """Return the record that finalizes kraft.version."""
    return KRaftVersionRecord(kraft_version=version)


def voters_record(voters: Iterable[Voter]) -> Message:
    """Return the record with the voters of a dynamic quorum."""
    return VotersRecord(
        voters=[
            VotersRecordVoter(
                voter_id=voter.id,
                voter_directory_id=voter.directory_id,
                endpoints=[Endpoint(name=name, host=host, port=port) for name, host, port in voter.endpoints],
                kraft_version_feature=KRaftVersionFeature(max_supported_version=_MAX_SUPPORTED_KRAFT_VERSION),
            )
            for voter in voters
        ]
    )


def voters_of(record: VotersRecord) -> tuple[Voter, ...]:
    """Return the voters in a record."""
    return tuple(
        Voter(
            voter.voter_id,
            voter.voter_directory_id,
            tuple((endpoint.name, endpoint.host, endpoint.port) for endpoint in voter.endpoints),
        )
        for voter in record.voters
    )


_CONTROL_TYPES: Final = {
    "LeaderChangeMessage": ControlRecordType.LEADER_CHANGE,
    "SnapshotHeaderRecord": ControlRecordType.SNAPSHOT_HEADER,
    "SnapshotFooterRecord": ControlRecordType.SNAPSHOT_FOOTER,
    "KRaftVersionRecord": ControlRecordType.KRAFT_VERSION,
    "VotersRecord": ControlRecordType.KRAFT_VOTERS,
}


def control_batch(records: Iterable[Message], base_offset: int, epoch: int, timestamp: int) -> bytearray:
    """Build one batch of control records."""
    builder = BatchBuilder(base_offset, partition_leader_epoch=epoch, control=True)
    for record in records:
        kind = _CONTROL_TYPES[record.__schema__.name]
        builder.append(encode_control_key(kind), encode_control_value(record), (), timestamp)
    return builder.build()
