"""Billing: an invoice for every order, exactly once; what is no order goes to the dead-letter topic."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

ORDERS, INVOICES, DEAD_LETTERS = "orders", "invoices", "dead-letters"


class Billing:
    """Reads orders and writes invoices, with the offsets in the same transaction."""

    def __init__(self, bootstrap: str, name: str = "billing", **settings: Any) -> None:
        common = {"bootstrap.servers": bootstrap, "client.id": name, "log_level": 0, **settings}
        self._consumer = Consumer(
            {
                **common,
                "group.id": "billing",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self._producer = Producer({**common, "transactional.id": name})
        self._producer.init_transactions(60)
        self._consumer.subscribe([ORDERS])

    def run_once(self, timeout: float = 1.0) -> int:
        """Take what is there and bill it in one transaction; returns how many orders that were."""
        messages = [message for message in self._consumer.consume(100, timeout) if message.error() is None]
        if not messages:
            return 0
        self._producer.begin_transaction()
        try:
            for message in messages:
                topic, value = bill(message.value())
                self._producer.produce(topic, value, key=message.key())
            positions = self._consumer.position(self._consumer.assignment())
            self._producer.send_offsets_to_transaction(positions, self._consumer.consumer_group_metadata(), 60)
            self._commit()
        except KafkaException as error:
            if error.args[0].fatal():
                raise
            self._producer.abort_transaction(60)
            self._rewind()
            return 0
        return len(messages)

    def _commit(self) -> None:
        while True:
            try:
                self._producer.commit_transaction(60)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return

    def _rewind(self) -> None:
        """Read again what was not billed."""
        for committed in self._consumer.committed(self._consumer.assignment(), 60):
            committed.offset = max(committed.offset, 0)
            self._consumer.seek(committed)

    def close(self) -> None:
        self._consumer.close()


def bill(order: bytes | None) -> tuple[str, str]:
    """The invoice of an order, or the order itself for those who look at dead letters."""
    try:
        details = json.loads(order or b"")
        total = sum(item["price"] * item["count"] for item in details["items"])
        return INVOICES, json.dumps({"customer": details["customer"], "total": total})
    except (ValueError, KeyError, TypeError):
        return DEAD_LETTERS, (order or b"").decode("utf-8", "replace")
