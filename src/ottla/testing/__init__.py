"""The test kit: a cluster in a fixture, faults, virtual time, its state without a client, and the check of histories.

Names load when first used: the history checker runs on a machine that has no broker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.testing.cluster import Cluster
    from ottla.testing.control import Control, Rule
    from ottla.testing.requests_seen import SeenRequest
    from ottla.testing.state import (
        ConnectionState,
        GroupState,
        MemberState,
        PartitionState,
        SessionState,
        StoredRecord,
        TransactionState,
    )
    from ottla.testing.tapping import Tap
    from ottla.world.clock import VirtualClock

_MODULES = {
    "Cluster": "ottla.testing.cluster",
    "Control": "ottla.testing.control",
    "Rule": "ottla.testing.control",
    "SeenRequest": "ottla.testing.requests_seen",
    "ConnectionState": "ottla.testing.state",
    "GroupState": "ottla.testing.state",
    "MemberState": "ottla.testing.state",
    "PartitionState": "ottla.testing.state",
    "SessionState": "ottla.testing.state",
    "StoredRecord": "ottla.testing.state",
    "Tap": "ottla.testing.tapping",
    "TransactionState": "ottla.testing.state",
    "VirtualClock": "ottla.world.clock",
}

__all__ = [
    "Cluster",
    "ConnectionState",
    "Control",
    "GroupState",
    "MemberState",
    "PartitionState",
    "Rule",
    "SeenRequest",
    "SessionState",
    "StoredRecord",
    "Tap",
    "TransactionState",
    "VirtualClock",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
