"""The record of classic groups in `__consumer_offsets`: type 2, with all members of a generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.groups.records import GroupRecord
from ottla.protocol.record_schemas.group import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.groups.classic.group import ClassicGroup

_GROUP_METADATA_VERSION: Final = 3


def classic_group(group: ClassicGroup, assignments: Mapping[str, bytes]) -> GroupRecord:
    """Return the record of a classic group's current generation."""
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(group.protocol_name),
            assignment=assignments[member.member_id],
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol=group.protocol_name,
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        leader=group.leader_id,
        current_state_timestamp=group.state_timestamp_ms,
        members=members,
    )
    return GroupRecord(GroupMetadataKey(group=group.group_id), value, _GROUP_METADATA_VERSION)


def new_classic_group(group: ClassicGroup) -> GroupRecord:
    """Return the record of a classic group that has no generation yet."""
    value = GroupMetadataValue(
        protocol=None,
        protocol_type="",
        generation=0,
        leader=None,
        current_state_timestamp=group.state_timestamp_ms,
        members=[],
    )
    return GroupRecord(GroupMetadataKey(group=group.group_id), value, _GROUP_METADATA_VERSION)


def classic_group_tombstone(group_id: str) -> GroupRecord:
    """Return the tombstone of a classic group."""
    return GroupRecord(GroupMetadataKey(group=group_id), None)
