"""The progress of streaming queries from Spark's own reports: rows per second, and lag per source."""

from __future__ import annotations

import json
from typing import Any


def query_progress(progress: dict[str, Any] | None, name: str, active: bool) -> dict[str, Any]:
    """Return one query's progress."""
    if progress is None:
        return {"name": name, "active": active, "batch": None, "rows_per_second": 0.0, "rows": 0, "sources": []}
    return {
        "name": name,
        "active": active,
        "batch": progress.get("batchId"),
        "rows": progress.get("numInputRows", 0),
        "rows_per_second": round(float(progress.get("processedRowsPerSecond") or 0.0), 1),
        "at": progress.get("timestamp"),
        "sources": [source_progress(source) for source in progress.get("sources", [])],
    }


def source_progress(source: dict[str, Any]) -> dict[str, Any]:
    """Return one source's input rate and lag."""
    return {
        "source": _named(source),
        "rows": source.get("numInputRows", 0),
        "rows_per_second": round(float(source.get("inputRowsPerSecond") or 0.0), 1),
        "lag": lag(source.get("endOffset"), source.get("latestOffset")),
    }


def source_lags(progress: Any) -> dict[str, int]:
    """Return the unread records of each source from a query's `lastProgress`, by the topics that the source reads.

    Sources that are no topics, and a query without progress, have none.
    """
    if progress is None:
        return {}
    given = progress if isinstance(progress, dict) else json.loads(progress.json)
    sources = [source_progress(source) for source in given.get("sources", [])]
    return {source["source"]: source["lag"] for source in sources if source["lag"] is not None}


def lag(end: Any, latest: Any) -> int | None:
    """Return the number of unread offsets; None if the offsets are not a topic's.

    >>> lag('{"orders": {"0": 5, "1": 7}}', '{"orders": {"0": 9, "1": 7}}')
    4
    """
    read, there = _offsets(end), _offsets(latest)
    if there is None:
        return None
    return sum(max(0, offset - (read or {}).get(partition, 0)) for partition, offset in there.items())


def _named(source: dict[str, Any]) -> str:
    """Return the topics that a source reads, or Spark's description if it reads none."""
    topics = {topic for name in ("endOffset", "latestOffset") for topic, _ in _offsets(source.get(name)) or ()}
    return ", ".join(sorted(topics)) or str(source.get("description", "?"))


def _offsets(reported: Any) -> dict[tuple[str, str], int] | None:
    if isinstance(reported, str):
        try:
            reported = json.loads(reported)
        except ValueError:
            return None
    if not isinstance(reported, dict):
        return None
    offsets = {}
    for topic, partitions in reported.items():
        if not topic:  # topic ids of the format "ottla"
            continue
        if not isinstance(partitions, dict):
            return None
        for partition, offset in partitions.items():
            if not isinstance(offset, int):
                return None
            offsets[topic, partition] = offset
    return offsets
