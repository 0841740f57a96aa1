"""The test kit: a cluster in a fixture, faults, virtual time, its state without a client, and the check of histories.

Names load when first used: the history checker runs on a machine that has no broker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.testing.cluster import Cluster
    from ottla.testing.control.requests import SeenRequest
    from ottla.testing.control.rules import Control, Rule
    from ottla.testing.control.state import (
        ConnectionState,
        GroupState,
        MemberState,
        PartitionState,
        SessionState,
        StoredRecord,
        TransactionState,
    )
    from ottla.testing.tap.tap import Tap
    from ottla.world.clock import VirtualClock

_MODULES = {
    "Cluster": "ottla.testing.cluster",
    "Control": "ottla.testing.control.rules",
    "Rule": "ottla.testing.control.rules",
    "SeenRequest": "ottla.testing.control.requests",
    "ConnectionState": "ottla.testing.control.state",
    "GroupState": "ottla.testing.control.state",
    "MemberState": "ottla.testing.control.state",
    "PartitionState": "ottla.testing.control.state",
    "SessionState": "ottla.testing.control.state",
    "StoredRecord": "ottla.testing.control.state",
    "Tap": "ottla.testing.tap.tap",
    "TransactionState": "ottla.testing.control.state",
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
