"""The test kit: a cluster in a fixture, its state without a client, and the check of what clients saw.

Names load when first used: the history checker runs on a machine that has no broker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.testing.cluster import Cluster, PartitionState, StoredRecord

__all__ = ["Cluster", "PartitionState", "StoredRecord"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("ottla.testing.cluster"), name)
