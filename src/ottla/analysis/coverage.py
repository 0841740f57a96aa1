"""Which analysis can answer from which kind of input: one table, checked by the engine and shown in docs/debugging.md.

Only the table and its lookups; `inputs` recognises the kinds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

INPUT_KINDS: Final = {
    "ottla-events": "event log",
    "tap": "capture",
    "kafka-log": "log directory",
    "librdkafka": "librdkafka log",
    "java": "Java client log",
    "kgo": "franz-go log",
    "history": "history",
    "cluster": "running cluster",
}
"""The kinds of input by their name in the column `format`, with the name that people read."""

COVERAGE: Final[dict[str, dict[str, str]]] = {
    "dual-assign": {
        "ottla-events": "the coordinator's assignments",
        "tap": "assignments in requests and responses",
        "kafka-log": "assignments in `__consumer_offsets`",
        "librdkafka": "what each client owned",
        "java": "what each client owned",
        "kgo": "what each client owned",
    },
    "txn-timeout": {
        "ottla-events": "states, requests and markers",
        "tap": "requests and their errors",
        "kafka-log": "states and markers: what happened, not why",
        "librdkafka": "refused EndTxn (`debug=eos`)",
        "java": "refused EndTxn",
        "kgo": "refused EndTxn",
    },
    "client-trace": {
        "ottla-events": "Fetch and OffsetCommit requests",
        "tap": "Fetch and OffsetCommit requests",
        "librdkafka": "fetches, commits, errors",
        "java": "positions, commits, errors",
        "kgo": "fetches, commits, errors",
    },
    "rebalances": {
        "ottla-events": "causes and durations",
        "kafka-log": "causes; durations of consumer groups only",
    },
    "lag": {"kafka-log": "committed offsets and log end offsets"},
    "hot-partitions": {"kafka-log": "bytes and records per partition"},
    "exactly-once": {"kafka-log": "records and transactions", "cluster": "records only"},
    "anomalies": {"history": "operations"},
    "diff": {"kafka-log": "records", "cluster": "records"},
}
"""For each analysis, what it uses of an input kind; a kind that is missing cannot answer it."""


def kind_names(kinds: Iterable[str]) -> str:
    """Return the names of input kinds for a sentence, in the order of the table."""
    chosen = set(kinds)
    return ", ".join(name for kind, name in INPUT_KINDS.items() if kind in chosen)


def can_answer(analysis: str, kind: str) -> bool:
    """Return whether this kind of input can answer an analysis; internal analyses accept every kind."""
    return analysis not in COVERAGE or kind in COVERAGE[analysis]


def coverage_table() -> list[str]:
    """Return the table as lines of Markdown, one row per analysis."""
    lines = ["| analysis | " + " | ".join(INPUT_KINDS.values()) + " |", "|---" * (len(INPUT_KINDS) + 1) + "|"]
    for analysis, responses in COVERAGE.items():
        lines.append(f"| `{analysis}` | " + " | ".join(responses.get(kind, "-") for kind in INPUT_KINDS) + " |")
    return lines
