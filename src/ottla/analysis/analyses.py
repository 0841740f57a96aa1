"""The analyses that look at events key by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.analysis.rules import (
    anomalies,
    client_trace,
    dual_assign,
    hot_partitions,
    lag,
    rebalances,
    transaction_proof,
    txn_timeout,
)

if TYPE_CHECKING:
    from ottla.analysis.engine import Analysis

ANALYSES: Final[dict[str, Analysis]] = {
    analysis.name: analysis
    for analysis in (
        dual_assign.ANALYSIS,
        txn_timeout.ANALYSIS,
        client_trace.ANALYSIS,
        rebalances.ANALYSIS,
        lag.ANALYSIS,
        hot_partitions.ANALYSIS,
        anomalies.ANALYSIS,
        transaction_proof.ANALYSIS,
    )
}
