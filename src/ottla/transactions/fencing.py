"""Which of Kafka's two words for a stale epoch a client is told: the newer one only where it may know it (KIP-588)."""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode

# API key -> first version whose clients know PRODUCER_FENCED.
_KNOWS_PRODUCER_FENCED = {22: 4, 24: 2, 25: 2, 26: 2}


def fencing_error(error: ErrorCode, api_key: int, api_version: int) -> ErrorCode:
    """The error as a client of that version of an API understands it."""
    if error is ErrorCode.PRODUCER_FENCED and api_version < _KNOWS_PRODUCER_FENCED[api_key]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
