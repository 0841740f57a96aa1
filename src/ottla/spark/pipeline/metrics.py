"""The metrics of a pipeline for Prometheus, from its status."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric

STATES: Final = ("starting", "running", "finished", "stopped", "failed", "died", "never run")


def render(pipeline: str, status: Mapping[str, Any]) -> bytes:
    """Return the metrics of a run in Prometheus' text format. Counters begin at 0 in each run."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(pipeline, status))
    return generate_latest(registry)


class _Collector:
    def __init__(self, pipeline: str, status: Mapping[str, Any]) -> None:
        self._pipeline = pipeline
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        state = GaugeMetricFamily(
            "ottla_pipeline_state", "1 for the state of the last run.", labels=["pipeline", "state"]
        )
        for name in STATES:
            state.add_metric([self._pipeline, name], float(name == self._status["state"]))
        yield state
        queries = self._status["queries"]
        labels = ["pipeline", "query"]
        active = GaugeMetricFamily("ottla_pipeline_query_active", "1 while the query runs.", labels=labels)
        rows = CounterMetricFamily("ottla_pipeline_query_rows", "Input rows of this run.", labels=labels)
        rate = GaugeMetricFamily(
            "ottla_pipeline_query_rows_per_second", "Rows per second of the last batch.", labels=labels
        )
        batch = GaugeMetricFamily("ottla_pipeline_query_batch", "Id of the last batch.", labels=labels)
        at = GaugeMetricFamily(
            "ottla_pipeline_query_progress_timestamp_seconds", "Time of the last progress.", labels=labels
        )
        for query in queries:
            label = [self._pipeline, query["name"]]
            active.add_metric(label, float(query["active"]))
            rows.add_metric(label, query.get("total_rows", query["rows"]))
            rate.add_metric(label, query["rows_per_second"])
            if query["batch"] is not None:
                batch.add_metric(label, query["batch"])
            if query.get("at"):
                at.add_metric(label, datetime.fromisoformat(query["at"]).timestamp())
        yield from (active, rows, rate, batch, at)
        yield self._lag(queries)
        yield from self._expectations(queries)

    def _lag(self, queries: list[dict[str, Any]]) -> Metric:
        lag = GaugeMetricFamily(
            "ottla_pipeline_source_lag", "Unread records of a source.", labels=["pipeline", "query", "source"]
        )
        for query in queries:
            for source in query["sources"]:
                if source["lag"] is not None:
                    lag.add_metric([self._pipeline, query["name"], source["source"]], source["lag"])
        return lag

    def _expectations(self, queries: list[dict[str, Any]]) -> Iterator[Metric]:
        labels = ["pipeline", "query", "check"]
        checked = CounterMetricFamily("ottla_pipeline_checked_rows", "Rows that a check has seen.", labels=labels)
        violated = CounterMetricFamily(
            "ottla_pipeline_violations", "Rows that violate an expectation.", labels=[*labels, "expectation"]
        )
        for query in queries:
            for check, counts in query.get("expectations", {}).items():
                label = [self._pipeline, query["name"], check]
                checked.add_metric(label, counts["rows"])
                for name, count in counts.items():
                    if name != "rows":
                        violated.add_metric([*label, name], count)
        yield from (checked, violated)
