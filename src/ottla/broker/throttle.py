"""Applies quotas to responses: throttle_time_ms is set and the connection is muted for that time.

The response is sent at once (KIP-219). A fetch over its quota gets an empty response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.protocol.messages.k01_fetch import FetchResponse
from ottla.protocol.messages.k78_share_fetch import PartitionData as SharePartitionData
from ottla.protocol.messages.k78_share_fetch import ShareFetchResponse
from ottla.security.quotas import FETCH, PRODUCE, REQUEST

if TYPE_CHECKING:
    from ottla.broker.session import Call

PRODUCE_API = 0
FETCH_APIS: Final = frozenset({1, 78})
LONGEST_MS: Final = 2**31 - 1
UNLIMITED: Final = 2**31 - 1


def throttle(call: Call, response: Any, handled: float | None = None) -> Any:
    """Record a request against its quotas and return the response with its throttle time."""
    if not call.session.authenticated:
        return response
    user, client_id = quota_names(call)
    broker = call.broker
    quotas = broker.quotas
    spent = broker.runtime.world.clock.monotonic() - call.began if handled is None else handled
    window = float(broker.config_int("quota.window.size.seconds"))
    wait = quotas.wait(REQUEST, user, client_id, spent * 100, most=window)
    fetched = 0
    if call.api_key == PRODUCE_API:
        wait = max(wait, quotas.wait(PRODUCE, user, client_id, call.size))
    elif call.api_key in FETCH_APIS:
        fetched = _count_record_bytes(response)
        wait = max(wait, quotas.wait(FETCH, user, client_id, fetched))
    milliseconds = min(round(wait * 1000), LONGEST_MS)
    if milliseconds <= 0:
        return response
    if call.api_key in FETCH_APIS:
        quotas.take_back(FETCH, user, client_id, fetched)
        response = _emptied(response)
    if response is not None and hasattr(response, "throttle_time_ms"):
        response.throttle_time_ms = max(milliseconds, response.throttle_time_ms)
    call.session.mute(milliseconds / 1000)
    return response


def most_to_fetch(call: Call) -> int:
    """Return the largest fetch size that the quota allows within its window."""
    most = call.broker.quotas.most_in_window(FETCH, *quota_names(call))
    return UNLIMITED if most is None else min(int(most), UNLIMITED)


def quota_names(call: Call) -> tuple[str, str]:
    """Return user and client id as quota entities name them."""
    return call.session.principal.partition(":")[2], call.client_id or ""


def _count_record_bytes(response: FetchResponse | ShareFetchResponse) -> int:
    return sum(len(data.records) for topic in response.responses for data in topic.partitions if data.records)


def _emptied(response: FetchResponse | ShareFetchResponse) -> FetchResponse | ShareFetchResponse:
    for topic in response.responses:
        for data in topic.partitions:
            release = getattr(data.records, "release", None)
            if release is not None:
                release()
            if isinstance(data, SharePartitionData):
                data.records, data.acquired_records = b"", []
    if isinstance(response, ShareFetchResponse):
        # The response also has results of acknowledgements; acquired records keep their acquisition locks, as in Kafka.
        return response
    return FetchResponse(session_id=response.session_id)
