"""What the handlers of streams group APIs share: whether there are streams groups at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.features import STREAMS_VERSION
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.session import Call


def require_streams_groups(call: Call) -> None:
    """Refuse all about streams groups where `streams.version` or the broker's protocols leave them out."""
    enabled = call.broker.cluster.image.features.get(STREAMS_VERSION, 0) >= 1
    protocols = call.broker.config("group.coordinator.rebalance.protocols")
    if not enabled or (isinstance(protocols, tuple) and "streams" not in protocols):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
