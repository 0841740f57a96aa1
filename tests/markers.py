"""Waits until transaction markers are in the logs, on ottla and on Apache Kafka."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ottla.client.client import Client
from ottla.client.transactions import list_transactions
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence

PATIENCE = 600.0
UNDER_WAY = ("PrepareCommit", "PrepareAbort")
OPEN = ("Ongoing", *UNDER_WAY)


def markers_written(bootstrap: str, states: Sequence[str] = UNDER_WAY) -> None:
    """Return when no decided transaction is without its markers: its producer is answered before they are written.

    With the states `OPEN`: when no transaction hides from readers what was written after it began.
    """
    deadline = time.monotonic() + PATIENCE
    result: object = None
    with Client(bootstrap, timeout=PATIENCE) as client:
        while True:
            try:
                result = list_transactions(client, states)
                if not result:
                    return
            except KafkaError as error:  # a coordinator that is still reading its log
                result = error
            assert time.monotonic() < deadline, f"the markers of a transaction do not come: {result}"
            time.sleep(0.02)
