"""What the handlers of streams group APIs share: whether there are streams groups at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.features import STREAMS_VERSION
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.session import Call


def require_streams_groups(call: Call) -> None:
    """Refuse everything about streams groups where the cluster's `streams.version` does not let them be."""
    if call.broker.cluster.image.features.get(STREAMS_VERSION, 0) < 1:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
