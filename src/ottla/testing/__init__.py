"""The test kit: clusters, rules for requests, faults, virtual time, state without a client, and taps.

Names are imported on first use, so that `ottla.testing.history` works without the broker's dependencies.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.testing.cluster import Cluster
    from ottla.testing.control.requests import ReceivedRequest
    from ottla.testing.control.rules import Rule, RuleBuilder
    from ottla.testing.control.state import (
        ConnectionState,
        GroupState,
        MemberState,
        PartitionState,
        SessionState,
        StoredRecord,
        TransactionState,
    )
    from ottla.testing.security import User, allow, deny
    from ottla.testing.tap.tap import Tap
    from ottla.world.clock import VirtualClock

_MODULES = {
    "Cluster": "ottla.testing.cluster",
    "Rule": "ottla.testing.control.rules",
    "RuleBuilder": "ottla.testing.control.rules",
    "ReceivedRequest": "ottla.testing.control.requests",
    "ConnectionState": "ottla.testing.control.state",
    "GroupState": "ottla.testing.control.state",
    "MemberState": "ottla.testing.control.state",
    "PartitionState": "ottla.testing.control.state",
    "SessionState": "ottla.testing.control.state",
    "StoredRecord": "ottla.testing.control.state",
    "Tap": "ottla.testing.tap.tap",
    "TransactionState": "ottla.testing.control.state",
    "User": "ottla.testing.security",
    "VirtualClock": "ottla.world.clock",
    "allow": "ottla.testing.security",
    "deny": "ottla.testing.security",
}

__all__ = [
    "Cluster",
    "ConnectionState",
    "GroupState",
    "MemberState",
    "PartitionState",
    "ReceivedRequest",
    "Rule",
    "RuleBuilder",
    "SessionState",
    "StoredRecord",
    "Tap",
    "TransactionState",
    "User",
    "VirtualClock",
    "allow",
    "deny",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
