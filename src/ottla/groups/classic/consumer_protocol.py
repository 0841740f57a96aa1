"""What consumers of the classic protocol tell each other inside JoinGroup and SyncGroup, as far as the broker reads it.

A number of two bytes says the version; a later version than the broker's is read as the latest it knows.
"""

from __future__ import annotations

import struct
from typing import Final

from ottla.protocol.errors import ProtocolError
from ottla.protocol.record_schemas.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription

_VERSION: Final = struct.Struct(">h")


def version_of(data: bytes) -> int:
    """The version that the bytes say they have."""
    if len(data) < _VERSION.size:
        raise ProtocolError("a version of 2 bytes", message="ConsumerProtocol")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise ProtocolError("a version of 0 or more", message="ConsumerProtocol", position=0)
    return version


def subscribed_topics(data: bytes) -> list[str]:
    """The topics that a member subscribes to; all versions begin with them."""
    version_of(data)
    return ConsumerProtocolSubscription.decode_from(data, _VERSION.size, 0)[0].topics


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """All that a member says when it joins."""
    version = min(version_of(data), ConsumerProtocolSubscription.__schema__.versions[-1])
    return ConsumerProtocolSubscription.decode_from(data, _VERSION.size, version)[0]


def read_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """What the leader assigned to a member."""
    version = min(version_of(data), ConsumerProtocolAssignment.__schema__.versions[-1])
    return ConsumerProtocolAssignment.decode_from(data, _VERSION.size, version)[0]


def write_assignment(assignment: ConsumerProtocolAssignment, version: int) -> bytes:
    """An assignment for a member that speaks that version."""
    version = min(version, ConsumerProtocolAssignment.__schema__.versions[-1])
    return _VERSION.pack(version) + assignment.encode(version)
