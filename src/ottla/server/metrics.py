"""Metrics of a cluster for Prometheus: one registry per cluster, collected on the loop that owns the state.

Names, labels and meanings are declared in `METRICS`; docs/metrics.md is made from it. Without --metrics nothing is
counted.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from ottla.protocol.api import find_api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.core import Metric

    from ottla.broker.runtime import BrokerRuntime
    from ottla.broker.share.partitions import SharePartitions
    from ottla.server.run import RunningCluster
    from ottla.server.server import NodeServer

    Add = Callable[[str, Sequence[object], float], None]

LATENCY_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

ACKNOWLEDGEMENTS: Final = ("gap", "accept", "release", "reject", "renew")
"""Acknowledgement types, as the protocol numbers them."""


class Declared(NamedTuple):
    """One metric: kind, labels and meaning."""

    kind: str
    labels: tuple[str, ...]
    help: str


METRICS: Final[dict[str, Declared]] = {
    "ottla_requests_total": Declared("counter", ("node", "api"), "Requests read, by API."),
    "ottla_request_bytes_total": Declared("counter", ("node", "api"), "Bytes of requests, by API."),
    "ottla_response_bytes_total": Declared("counter", ("node", "api"), "Bytes of responses, by API."),
    "ottla_request_seconds": Declared(
        "histogram",
        ("node", "api"),
        "Time from reading a request to its response, with delayed operations (long polls, joins, acks).",
    ),
    "ottla_received_bytes_total": Declared("counter", ("node",), "Bytes of all requests."),
    "ottla_sent_bytes_total": Declared("counter", ("node",), "Bytes of all responses."),
    "ottla_connections": Declared("gauge", ("node", "listener"), "Open connections."),
    "ottla_connections_accepted_total": Declared("counter", ("node",), "Accepted connections."),
    "ottla_requests_in_progress": Declared("gauge", ("node",), "Requests in progress."),
    "ottla_fetch_sessions": Declared("gauge", ("node",), "Incremental fetch sessions (KIP-227)."),
    "ottla_fetch_session_evictions_total": Declared("counter", ("node",), "Evicted fetch sessions."),
    "ottla_groups": Declared(
        "gauge", ("node", "type", "state"), "Groups that the node coordinates (Kafka: group-count)."
    ),
    "ottla_share_sessions": Declared(
        "gauge", ("node",), "Sessions of members of share groups (Kafka: ShareSessionsCount)."
    ),
    "ottla_share_partitions": Declared("gauge", ("node",), "Share partitions: partitions times share groups."),
    "ottla_share_records_in_flight": Declared(
        "gauge",
        ("group", "topic", "partition"),
        "Records between a share group's start offset and the last acquired record (Kafka: InFlightMessageCount).",
    ),
    "ottla_share_batches_in_flight": Declared(
        "gauge", ("group", "topic", "partition"), "Batches of in-flight records (Kafka: InFlightBatchCount)."
    ),
    "ottla_share_acknowledgements_total": Declared(
        "counter",
        ("node", "type"),
        "Acknowledged records of share groups (Kafka: RecordAcknowledgementsPerSec).",
    ),
    "ottla_share_lock_timeouts_total": Declared(
        "counter",
        ("node",),
        "Records whose acquisition lock expired (Kafka: AcquisitionLockTimeoutPerSec).",
    ),
    "ottla_topics": Declared("gauge", (), "Topics, internal ones included."),
    "ottla_partitions": Declared("gauge", ("node",), "Partitions that the node leads."),
    "ottla_offline_partitions": Declared("gauge", (), "Partitions without a leader."),
    "ottla_under_replicated_partitions": Declared("gauge", (), "Partitions with replicas outside the ISR."),
    "ottla_waiting_fetches": Declared("gauge", (), "Delayed fetches in purgatory."),
    "ottla_partition_start_offset": Declared(
        "gauge", ("topic", "partition"), "Log start offset, of partitions used since the start."
    ),
    "ottla_partition_high_watermark": Declared(
        "gauge", ("topic", "partition"), "High watermark, of partitions used since the start."
    ),
    "ottla_logs": Declared("gauge", ("node", "directory"), "Partition logs in a log directory."),
    "ottla_log_bytes": Declared("gauge", ("node", "directory"), "Bytes of the logs used since the start."),
    "ottla_log_segments": Declared("gauge", ("node", "directory"), "Segments of the logs used since the start."),
    "ottla_log_directory_online": Declared("gauge", ("node", "directory"), "1 while the directory is online."),
    "ottla_metadata_offset": Declared("gauge", (), "Offset of the last metadata record."),
}


@dataclass(slots=True)
class ApiCounts:
    """Counters of one API on one node."""

    requests: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS) + 1))


class RequestMetrics:
    """Counts the requests of one node."""

    __slots__ = ("apis",)

    def __init__(self) -> None:
        self.apis: dict[int, ApiCounts] = {}

    def received(self, key: int, size: int) -> None:
        """Count a request."""
        counts = self.apis.get(key)
        if counts is None:
            counts = self.apis[key] = ApiCounts()
        counts.requests += 1
        counts.request_bytes += size

    def responded(self, key: int, size: int, seconds: float) -> None:
        """Count a response."""
        counts = self.apis[key]
        counts.response_bytes += size
        counts.seconds += seconds
        counts.buckets[bisect_left(LATENCY_BUCKETS, seconds)] += 1


class ClusterMetrics(Collector):
    """All metrics of a running cluster; creating it makes the nodes count."""

    def __init__(self, running: RunningCluster, *, process: bool = False) -> None:
        assert running.runtime is not None
        self._runtime: BrokerRuntime = running.runtime
        self._servers = running.servers
        for server in running.servers.values():
            assert server.dispatch is not None
            server.dispatch.metrics = server.dispatch.metrics or RequestMetrics()
        self.registry = CollectorRegistry()
        self.registry.register(self)
        if process:
            ProcessCollector(registry=self.registry)

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return bytes(generate_latest(self.registry))

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registration needs no samples."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family with its current samples."""
        samples: dict[str, list[tuple[Sequence[str], float]]] = {name: [] for name in METRICS}

        def add(name: str, labels: Sequence[object], value: float) -> None:
            samples[name].append(([str(label) for label in labels], value))

        latencies = HistogramMetricFamily(
            "ottla_request_seconds",
            METRICS["ottla_request_seconds"].help,
            labels=METRICS["ottla_request_seconds"].labels,
        )
        for node, server in self._servers.items():
            self._collect_requests(node, server, add, latencies)
            self._collect_node(node, server, add)
        self._collect_cluster(add)
        for name, declared in METRICS.items():
            if declared.kind == "histogram":
                yield latencies
                continue
            family: CounterMetricFamily | GaugeMetricFamily
            if declared.kind == "counter":
                family = CounterMetricFamily(name, declared.help, labels=declared.labels)
            else:
                family = GaugeMetricFamily(name, declared.help, labels=declared.labels)
            for labels, value in samples[name]:
                family.add_metric(labels, value)
            yield family

    def _collect_requests(self, node: int, server: NodeServer, add: Add, latencies: HistogramMetricFamily) -> None:
        assert server.dispatch is not None
        counted = server.dispatch.metrics
        assert counted is not None
        received = sent = 0
        for key, counts in sorted(counted.apis.items()):
            api = find_api(key)
            labels = (node, api.name if api is not None else key)
            add("ottla_requests_total", labels, counts.requests)
            add("ottla_request_bytes_total", labels, counts.request_bytes)
            add("ottla_response_bytes_total", labels, counts.response_bytes)
            bounds = [*(str(bound) for bound in LATENCY_BUCKETS), "+Inf"]
            latencies.add_metric(
                [str(label) for label in labels],
                buckets=list(zip(bounds, accumulate(counts.buckets), strict=True)),
                sum_value=counts.seconds,
            )
            received += counts.request_bytes
            sent += counts.response_bytes
        add("ottla_received_bytes_total", (node,), received)
        add("ottla_sent_bytes_total", (node,), sent)

    def _collect_node(self, node: int, server: NodeServer, add: Add) -> None:
        open_: dict[str, int] = dict.fromkeys(server.broker.endpoints, 0)
        in_progress = 0
        for connection in server.connections:
            in_progress += connection.unanswered
            if connection.session is not None:
                open_[connection.session.listener] = open_.get(connection.session.listener, 0) + 1
        for listener, count in open_.items():
            add("ottla_connections", (node, listener), count)
        add("ottla_connections_accepted_total", (node,), server.accepted)
        add("ottla_requests_in_progress", (node,), in_progress)
        add("ottla_fetch_sessions", (node,), len(server.broker.fetch_sessions))
        add("ottla_fetch_session_evictions_total", (node,), server.broker.fetch_sessions.evictions)
        for (kind, state), count in sorted(server.broker.groups.count_groups().items()):
            add("ottla_groups", (node, kind, state), count)
        self._collect_shares(node, server.broker.share_partitions, add)
        for directory in server.broker.directories:
            used = [log for log in directory.logs.values() if log.loaded]
            labels = (node, directory.path)
            add("ottla_logs", labels, len(directory.logs))
            add("ottla_log_bytes", labels, sum(log.size for log in used))
            add("ottla_log_segments", labels, sum(len(log.bases) for log in used))
            add("ottla_log_directory_online", labels, int(directory.online))

    def _collect_shares(self, node: int, shares: SharePartitions, add: Add) -> None:
        add("ottla_share_sessions", (node,), len(shares.sessions))
        add("ottla_share_partitions", (node,), len(shares))
        for shared in shares:
            topic = self._runtime.image.topics.get(shared.key.topic_id)
            if topic is not None:
                labels = (shared.key.group_id, topic.name, shared.key.partition)
                add("ottla_share_records_in_flight", labels, shared.records_in_flight)
                add("ottla_share_batches_in_flight", labels, len(shared.in_flight))
        for number, kind in enumerate(ACKNOWLEDGEMENTS):
            add("ottla_share_acknowledgements_total", (node, kind), shares.counts.acknowledged[number])
        add("ottla_share_lock_timeouts_total", (node,), shares.counts.locks_expired)

    def _collect_cluster(self, add: Add) -> None:
        runtime = self._runtime
        led = dict.fromkeys(runtime.nodes, 0)
        offline = behind = waiting = 0
        for (topic, index), partition in runtime.partitions.items():
            state, log = partition.state, partition.log
            if state.leader in led:
                led[state.leader] += 1
            else:
                offline += 1
            behind += len(state.isr) < len(state.replicas)
            waiting += len(partition.delayed)
            if log.loaded:
                add("ottla_partition_start_offset", (topic, index), log.log_start_offset)
                add("ottla_partition_high_watermark", (topic, index), log.high_watermark)
        add("ottla_topics", (), len(runtime.image.topics))
        add("ottla_offline_partitions", (), offline)
        add("ottla_under_replicated_partitions", (), behind)
        add("ottla_waiting_fetches", (), waiting)
        add("ottla_metadata_offset", (), runtime.metadata_offset)
        for node, count in led.items():
            add("ottla_partitions", (node,), count)
