import json
import time

import pytest
from billing import DEAD_LETTERS, INVOICES, ORDERS, Billing
from confluent_kafka import Producer

TOPICS = {name: {"partitions": 1, "replication_factor": 1} for name in (ORDERS, INVOICES, DEAD_LETTERS)}


class Shop:
    """The cluster with the application in front of it."""

    def __init__(self, kafka):
        self.kafka = kafka
        self.orders = 0
        for name in TOPICS:
            kafka.create_topic(name)

    def order(self, *values):
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "client.id": "shop"})
        for value in values:
            text = value if isinstance(value, str) else json.dumps(value)
            producer.produce(ORDERS, text)
            self.orders += 1
        assert producer.flush(60) == 0

    def bill_all(self, billing):
        """Let billing work until it has answered every order."""
        deadline = time.monotonic() + 300
        while len(self.invoices()) + len(self.dead_letters()) < self.orders:
            billing.run_once(0.2)
            assert time.monotonic() < deadline, self.kafka.report()

    def invoices(self):
        return [json.loads(value) for value in self._committed(INVOICES)]

    def dead_letters(self):
        return [value.decode() for value in self._committed(DEAD_LETTERS)]

    def _committed(self, topic):
        from confluent_kafka import Consumer, TopicPartition

        end = self.kafka.partition(topic).last_stable_offset
        if not end:
            return []
        reader = Consumer(
            {"bootstrap.servers": self.kafka.bootstrap, "group.id": "check", "isolation.level": "read_committed"}
        )
        reader.assign([TopicPartition(topic, 0, 0)])
        result = []
        while reader.position([TopicPartition(topic, 0)])[0].offset < end:
            message = reader.poll(0.2)
            if message is not None and message.error() is None:
                result.append(message.value())
        reader.close()
        return result


@pytest.fixture
def shop(kafka):
    return Shop(kafka)


@pytest.fixture
def billing(shop):
    app = Billing(shop.kafka.bootstrap)
    yield app
    app.close()
