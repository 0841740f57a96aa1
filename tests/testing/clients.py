"""Real clients with short timeouts and retries, for tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Message, Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.testing import Cluster

PATIENCE = 300.0
QUIET = {"log_level": 0}
QUICK = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 10}


def producer(cluster: Cluster, **configs: Any) -> Producer:
    own = {name.replace("_", "."): value for name, value in configs.items()}
    return Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, **QUIET, **QUICK, **own})


def consumer(cluster: Cluster, *topics: str, **configs: Any) -> Consumer:
    own = {name.replace("_", "."): value for name, value in configs.items()}
    client = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
            **QUIET,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            **own,
        }
    )
    if topics:
        client.subscribe(list(topics))
    return client


def assigned(cluster: Cluster, reader: Consumer) -> None:
    """Poll and advance virtual time until a consumer has its assignment.

    The cluster's view is not enough: librdkafka's close() hangs if connections fail before it has read the assignment.
    """

    def has_partitions() -> bool:
        reader.poll(0.05)
        cluster.advance(0.1)
        return bool(reader.assignment())

    eventually(has_partitions, "the assignment")


class Delivery:
    """Sends one record, and keeps its delivery report."""

    def __init__(self, client: Producer, topic: str, value: str, partition: int = 0) -> None:
        self._client = client
        self.done = False
        self.error: Any = None
        client.produce(topic, value, partition=partition, on_delivery=self._delivered)
        client.poll(0)

    def _delivered(self, error: Any, _: Message) -> None:
        self.done, self.error = True, error

    def wait(self) -> Delivery:
        eventually(lambda: self.poll() and self.done, "the delivery report")
        return self

    def poll(self) -> bool:
        self._client.poll(0.02)
        return True

    @property
    def error_name(self) -> str | None:
        return None if self.error is None else str(self.error.name())


def send(client: Producer, topic: str, value: str, partition: int = 0) -> Delivery:
    return Delivery(client, topic, value, partition).wait()


def eventually(condition: Callable[[], Any], what: str = "the condition") -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.005)


def completed(cluster: Cluster, *transactional_ids: str) -> None:
    """Wait until the markers are written: EndTxn is answered before that."""
    for name in transactional_ids:
        eventually(lambda: cluster.transaction(name).state.startswith("Complete"), f"the end of {name}")  # noqa: B023


def read(client: Consumer, count: int) -> list[str]:
    records: list[str] = []

    def poll() -> bool:
        message = client.poll(0.05)
        if message is not None and message.error() is None:
            records.append((message.value() or b"").decode())
        return len(records) >= count

    eventually(poll, f"{count} records; received {len(records)}")
    return records


def values(cluster: Cluster, topic: str, partition: int = 0) -> list[str]:
    return [(record.value or b"").decode() for record in cluster.records(topic, partition)]
