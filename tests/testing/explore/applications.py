"""Small applications with one well-known mistake each, and their corrected versions.

Each one takes a cluster and does what a test of the application does: run it, then assert on the outcome.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import aiokafka
import kafka as kafka_python
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka.errors import KafkaError as KafkaPythonError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ottla.testing.cluster import Cluster

ORDERS = ["book", "lamp", "desk"]
QUICK = {
    "linger.ms": 0,
    "log_level": 0,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
}
QUICK_CONSUMER = {
    "log_level": 0,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "heartbeat.interval.ms": 100,
}
PATIENCE_SECONDS = 10.0
MAX_RESTARTS = 4
POLLS_BEFORE_RESULT = 6


def seed_orders(cluster: Cluster) -> None:
    for order in ORDERS:
        cluster.produce("orders", order)


def values(cluster: Cluster, topic: str) -> list[str]:
    return [
        (record.value or b"").decode()
        for partition in cluster.partitions(topic)
        for record in cluster.records(topic, partition.partition)
    ]


def send_all(producer: Producer, topic: str, payloads: list[str]) -> None:
    """Send and wait; raise the first delivery error."""
    errors: list[Any] = []
    for payload in payloads:
        producer.produce(topic, payload, on_delivery=lambda error, _: errors.append(error) if error else None)
    if producer.flush(PATIENCE_SECONDS):
        raise TimeoutError("not all records were delivered")
    if errors:
        raise KafkaException(errors[0])


def poll_orders(consumer: Consumer) -> list[Any]:
    """Poll once; ignore errors that librdkafka reports for information only."""
    return [message for message in consumer.consume(10, 0.2) if message.error() is None]


def restart_on_errors(run: Callable[[], bool]) -> None:
    """Run until done as a supervisor does: start again after an error of the client library."""
    for _ in range(MAX_RESTARTS):
        try:
            if run():
                return
        except KafkaException:
            continue
    raise AssertionError("the application did not finish")


# 1. Commit before processing (aiokafka)


async def billing(cluster: Cluster, *, commit_first: bool) -> None:
    """Read orders, write one bill for each, and commit; start again after an error."""
    seed_orders(cluster)
    for _ in range(MAX_RESTARTS):
        consumer = aiokafka.AIOKafkaConsumer(
            "orders",
            bootstrap_servers=cluster.bootstrap,
            group_id="billing",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            retry_backoff_ms=20,
            request_timeout_ms=5000,
        )
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, enable_idempotence=True, retry_backoff_ms=20, request_timeout_ms=5000
        )
        try:
            await consumer.start()
            await producer.start()
            while cluster_position(cluster) < len(ORDERS):
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    for message in messages:
                        commit = {aiokafka.TopicPartition("orders", 0): message.offset + 1}
                        if commit_first:
                            await consumer.commit(commit)
                        await producer.send_and_wait("bills", b"bill for " + message.value)
                        if not commit_first:
                            await consumer.commit(commit)
            break
        except AiokafkaError:
            continue
        finally:
            await producer.stop()
            await consumer.stop()
    assert set(values(cluster, "bills")) == {f"bill for {order}" for order in ORDERS}


def cluster_position(cluster: Cluster, group: str = "billing") -> int:
    for state in cluster.groups():
        if state.group_id == group:
            return state.offsets.get(("orders", 0), 0)
    return 0


# 2. A producer that retries without idempotence


def plain_producer(cluster: Cluster, *, idempotent: bool) -> None:
    """Send orders."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": idempotent, **QUICK})
    send_all(producer, "orders", ORDERS)
    assert set(values(cluster, "orders")) == set(ORDERS)


# 3. Delivery errors are ignored


def unchecked_delivery(cluster: Cluster, *, check: bool) -> None:
    """Send orders and look at the delivery reports, or not."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, **QUICK})
    if check:
        send_all(producer, "orders", ORDERS)
    else:
        for order in ORDERS:
            producer.produce("orders", order)
        producer.flush(PATIENCE_SECONDS)
    assert values(cluster, "orders") == ORDERS


# 4. The application ends without flush


def early_exit(cluster: Cluster, *, flush: bool) -> None:
    """Send an order and an audit record; end after the first delivery report, or after both."""
    delivered: list[str] = []
    errors: list[Any] = []

    def note(error: Any, message: Any) -> None:
        delivered.append(message.topic())
        if error is not None:
            errors.append(error)

    settings = {**QUICK, "retry.backoff.ms": 1500, "retry.backoff.max.ms": 1500, "enable.idempotence": flush}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **settings})
    producer.produce("orders", "book", on_delivery=note)
    producer.produce("audit", "book was ordered", on_delivery=note)
    if flush:
        producer.flush(PATIENCE_SECONDS)
    else:
        while not delivered:
            producer.poll(0.1)
        producer.poll(0.2)
        producer.purge()
    del producer
    if errors:
        raise KafkaException(errors[0])
    cluster.wait_for_records("orders", 1, timeout=1)
    cluster.wait_for_records("audit", 1, timeout=1)


# 5. Offsets outside the transaction


def transactional_billing(cluster: Cluster, *, offsets_in_transaction: bool) -> None:
    """Read orders and write bills, exactly once."""
    seed_orders(cluster)

    def run() -> bool:
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "billing", **QUICK_CONSUMER})
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "billing", **QUICK})
        consumer.subscribe(["orders"])
        try:
            producer.init_transactions(PATIENCE_SECONDS)
            while cluster_position(cluster) < len(ORDERS):
                for message in poll_orders(consumer):
                    producer.begin_transaction()
                    producer.produce("bills", f"bill for {message.value().decode()}")
                    if offsets_in_transaction:
                        processed = TopicPartition("orders", 0, message.offset() + 1)
                        producer.send_offsets_to_transaction(
                            [processed], consumer.consumer_group_metadata(), PATIENCE_SECONDS
                        )
                    producer.commit_transaction(PATIENCE_SECONDS)
                    if not offsets_in_transaction:
                        consumer.commit(message, asynchronous=False)
            return True
        finally:
            consumer.close()

    restart_on_errors(run)
    assert set(values(cluster, "bills")) >= {f"bill for {order}" for order in ORDERS}


# 6. State of revoked partitions is kept


def counting(cluster: Cluster, *, reset_on_assignment: bool) -> None:
    """Count orders in memory, from the beginning of the topic."""
    seed_orders(cluster)
    counts: Counter[str] = Counter()
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "counting", **QUICK_CONSUMER})

    def assigned(_: Consumer, __: Any) -> None:
        if reset_on_assignment:
            counts.clear()

    consumer.subscribe(["orders"], on_assign=assigned)
    try:
        while len(counts) < len(ORDERS):
            for message in poll_orders(consumer):
                counts[message.value().decode()] += 1
        for _ in range(POLLS_BEFORE_RESULT):
            for message in poll_orders(consumer):
                counts[message.value().decode()] += 1
    finally:
        consumer.close()
    assert not counts or counts == Counter(ORDERS)


# 7. Work that takes longer than max.poll.interval.ms


def slow_work(cluster: Cluster, *, poll_interval_ms: int) -> None:
    """Write a bill for each order with a producer that waits for the broker."""
    seed_orders(cluster)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "billing",
            **QUICK_CONSUMER,
            "session.timeout.ms": 2000,
            "max.poll.interval.ms": poll_interval_ms,
        }
    )
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, **QUICK})
    consumer.subscribe(["orders"])
    try:
        while cluster_position(cluster) < len(ORDERS):
            for message in poll_orders(consumer):
                send_all(producer, "bills", [f"bill for {message.value().decode()}"])
                consumer.commit(message, asynchronous=False)
    finally:
        consumer.close()
    assert set(values(cluster, "bills")) == {f"bill for {order}" for order in ORDERS}


# 8. Order across partitions


def lifecycle(cluster: Cluster, *, same_partition: bool) -> None:
    """Send that an order was created and that it was paid, and read both in the order of the broker's times."""
    settings = {**QUICK, "retry.backoff.ms": 500, "retry.backoff.max.ms": 500}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": same_partition, **settings})
    errors: list[Any] = []

    def note(error: Any, _: Any) -> None:
        if error is not None:
            errors.append(error)

    producer.produce("states", "created", partition=0, on_delivery=note)
    producer.poll(0.2)
    producer.produce("states", "paid", partition=0 if same_partition else 1, on_delivery=note)
    producer.flush(PATIENCE_SECONDS)
    if errors:
        raise KafkaException(errors[0])
    records = [
        (record.timestamp, partition, record.offset, record.value)
        for partition in (0, 1)
        for record in cluster.records("states", partition)
    ]
    states = list(dict.fromkeys(value for *_, value in sorted(records)))
    assert states == [b"created", b"paid"]


# 9. A fatal error is caught and dropped (kafka-python)


def dropped_error(cluster: Cluster, *, drop: bool) -> None:
    """Send orders with kafka-python; log errors, or raise them."""
    producer = kafka_python.KafkaProducer(
        bootstrap_servers=cluster.bootstrap,
        retries=10,
        retry_backoff_ms=20,
        enable_idempotence=True,
        max_block_ms=10_000,
    )
    try:
        for order in ORDERS:
            try:
                producer.send("orders", order.encode(), partition=0).get(PATIENCE_SECONDS)
            except KafkaPythonError:
                if not drop:
                    raise
    finally:
        producer.close(timeout=1)
    assert values(cluster, "orders") == ORDERS


# 10. A new transactional id for each producer (aiokafka)


async def random_transactional_id(cluster: Cluster, *, random: bool) -> None:
    """Send orders in a transaction; after an error start again with another producer."""
    for _ in range(MAX_RESTARTS):
        name = f"shop-{uuid.uuid4()}" if random else "shop"
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, transactional_id=name, retry_backoff_ms=20, request_timeout_ms=5000
        )
        try:
            await asyncio.wait_for(producer.start(), PATIENCE_SECONDS)
            await producer.begin_transaction()
            for order in ORDERS:
                await producer.send_and_wait("orders", order.encode(), partition=0)
            await producer.commit_transaction()
            await producer.stop()
            break
        except (AiokafkaError, TimeoutError):
            producer._closed = True  # the process would have ended here
            producer._sender.sender_task and producer._sender.sender_task.cancel()
            await producer.client.close()
    else:
        raise AssertionError("the application did not finish")
    cluster.wait_for_records("orders", len(ORDERS))


class Application(NamedTuple):
    """An application with a mistake: how to run it wrong and right, and the cluster that it needs."""

    run: Callable[..., Any]
    wrong: Mapping[str, Any]
    right: Mapping[str, Any]
    topics: tuple[str, ...] = ("orders", "bills")
    options: Mapping[str, Any] = {}
    configs: Mapping[str, Any] = {}
    schedule: str = ""
    """A schedule that breaks the wrong version and not the right one."""

    def version(self, *, correct: bool) -> Callable[[Cluster], Any]:
        """Return the function to explore."""
        keywords = dict(self.right if correct else self.wrong)
        if asyncio.iscoroutinefunction(self.run):

            async def run_async(cluster: Cluster) -> None:
                await self.run(cluster, **keywords)

            return run_async
        return lambda cluster: self.run(cluster, **keywords)


APPLICATIONS = {
    "commit before processing": Application(
        billing,
        {"commit_first": True},
        {"commit_first": False},
        options={"apis": ["Produce", "OffsetCommit"], "checks": ["lost-acknowledged-record"]},
        schedule="error:TOPIC_AUTHORIZATION_FAILED at Produce[bills-0]#1",
    ),
    "retries without idempotence": Application(
        plain_producer, {"idempotent": False}, {"idempotent": True}, schedule="response-lost at Produce[orders-0]#1"
    ),
    "ignored delivery errors": Application(
        unchecked_delivery,
        {"check": False},
        {"check": True},
        schedule="error:TOPIC_AUTHORIZATION_FAILED at Produce[orders-0]#1",
    ),
    "exit without flush": Application(
        early_exit,
        {"flush": False},
        {"flush": True},
        ("orders", "audit"),
        schedule="error:NOT_LEADER_OR_FOLLOWER at Produce[audit-0]#1",
    ),
    "offsets outside the transaction": Application(
        transactional_billing,
        {"offsets_in_transaction": False},
        {"offsets_in_transaction": True},
        options={"apis": ["Produce", "OffsetCommit", "TxnOffsetCommit", "EndTxn"], "faults": ["fatal-error"]},
        schedule="error:UNKNOWN_MEMBER_ID at OffsetCommit#1",
    ),
    "state of revoked partitions": Application(
        counting,
        {"reset_on_assignment": False},
        {"reset_on_assignment": True},
        options={"apis": ["Fetch", "Heartbeat"], "faults": ["member-evicted", "rebalance", "disconnect"]},
        schedule="rebalance at Fetch#1",
    ),
    "slow work": Application(
        slow_work,
        {"poll_interval_ms": 2000},
        {"poll_interval_ms": 60_000},
        options={"late": "3s", "apis": ["Produce"], "faults": ["response-late", "throttled"]},
        configs={"group.min.session.timeout.ms": 1000},
        schedule="response-late at Produce[bills-0]#1",
    ),
    "order across partitions": Application(
        lifecycle,
        {"same_partition": False},
        {"same_partition": True},
        ("states:2",),
        configs={"log.message.timestamp.type": "LogAppendTime"},
        schedule="error:NOT_LEADER_OR_FOLLOWER at Produce[states-0]#1",
    ),
    "dropped fatal error": Application(
        dropped_error,
        {"drop": True},
        {"drop": False},
        options={"apis": ["Produce"], "faults": ["fatal-error", "disconnect"]},
        schedule="error:TOPIC_AUTHORIZATION_FAILED at Produce[orders-0]#1",
    ),
    "random transactional id": Application(
        random_transactional_id,
        {"random": True},
        {"random": False},
        options={"apis": ["Produce", "AddPartitionsToTxn", "EndTxn"]},
        schedule="error:INVALID_PRODUCER_ID_MAPPING at EndTxn#1",
    ),
}
