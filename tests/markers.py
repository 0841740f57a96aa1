"""Waits for the ends of transactions to be in the logs, on ottla and on Apache Kafka."""

from __future__ import annotations

import time

from ottla.client.client import Client
from ottla.client.transactions import list_transactions
from ottla.protocol.errors import KafkaError

PATIENCE = 60.0
UNDER_WAY = ("PrepareCommit", "PrepareAbort")


def markers_written(bootstrap: str) -> None:
    """Return when no decided transaction is without its markers: its producer is answered before they are written."""
    deadline = time.monotonic() + PATIENCE
    with Client(bootstrap, timeout=PATIENCE) as client:
        while True:
            try:
                if not list_transactions(client, UNDER_WAY):
                    return
            except KafkaError:  # a coordinator that is still reading its log
                if time.monotonic() > deadline:
                    raise
            assert time.monotonic() < deadline, "the markers of a transaction do not come"
            time.sleep(0.02)
