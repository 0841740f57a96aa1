"""The embedded consumer protocol: subscriptions and assignments inside JoinGroup and SyncGroup (ConsumerProtocol).

Two bytes hold the version; a version newer than the broker's is decoded as the broker's newest.
"""

from __future__ import annotations

import struct
from typing import Final

from ottla.protocol.errors import ProtocolError
from ottla.protocol.record_schemas.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription

_VERSION: Final = struct.Struct(">h")


def read_version(data: bytes) -> int:
    """Return the version in the first two bytes."""
    if len(data) < _VERSION.size:
        raise ProtocolError("a version of 2 bytes", message="ConsumerProtocol")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise ProtocolError("a version of 0 or more", message="ConsumerProtocol", position=0)
    return version


def subscribed_topics(data: bytes) -> list[str]:
    """Return the topics of a subscription; all versions begin with them."""
    read_version(data)
    return ConsumerProtocolSubscription.decode_from(data, _VERSION.size, 0)[0].topics


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Decode the subscription of a JoinGroup request."""
    version = min(read_version(data), ConsumerProtocolSubscription.__schema__.versions[-1])
    return ConsumerProtocolSubscription.decode_from(data, _VERSION.size, version)[0]


def read_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """Decode the assignment of a member."""
    version = min(read_version(data), ConsumerProtocolAssignment.__schema__.versions[-1])
    return ConsumerProtocolAssignment.decode_from(data, _VERSION.size, version)[0]


def write_assignment(assignment: ConsumerProtocolAssignment, version: int) -> bytes:
    """Encode an assignment in the version that the member uses."""
    version = min(version, ConsumerProtocolAssignment.__schema__.versions[-1])
    return _VERSION.pack(version) + assignment.encode(version)
