"""Is billing right, and is it still right when the broker is not at its best?"""

import pytest
from billing import INVOICES, Billing
from confluent_kafka import KafkaException

BOOKS = {"customer": "alice", "items": [{"price": 12, "count": 2}]}
PENS = {"customer": "bob", "items": [{"price": 1, "count": 10}, {"price": 3, "count": 1}]}


def test_every_order_has_an_invoice(shop, billing):
    shop.order(BOOKS, PENS)
    shop.bill_all(billing)
    assert shop.invoices() == [{"customer": "alice", "total": 24}, {"customer": "bob", "total": 13}]
    assert shop.kafka.group("billing").offsets == {("orders", 0): 2}


def test_what_is_no_order_is_kept_for_people(shop, billing):
    shop.order("not json", BOOKS)
    shop.bill_all(billing)
    assert shop.dead_letters() == ["not json"]
    assert len(shop.invoices()) == 1


def test_a_lost_answer_bills_nobody_twice(shop, billing):
    control = shop.kafka.on("Produce", topic=INVOICES).drop_connection(after_handling=True)
    shop.order(BOOKS)
    shop.bill_all(billing)
    assert control.hits == 1
    assert len(shop.invoices()) == 1


def test_a_commit_whose_answer_is_lost_is_asked_again(shop, billing):
    control = shop.kafka.on("EndTxn").drop_connection(after_handling=True)
    shop.order(BOOKS)
    shop.bill_all(billing)
    assert control.hits == 1
    assert len(shop.invoices()) == 1


def test_an_error_aborts_and_the_order_is_billed_later(shop, billing):
    shop.kafka.on("Produce", topic=INVOICES).error("INVALID_RECORD")
    shop.order(BOOKS)
    shop.bill_all(billing)
    assert len(shop.invoices()) == 1
    ends = [event["to"] for event in shop.kafka.events("transaction.state", transactional_id="billing")]
    assert "CompleteAbort" in ends


@pytest.mark.kafka(brokers=3)
def test_a_coordinator_that_moves_is_followed(shop, billing):
    shop.order(BOOKS)
    shop.bill_all(billing)
    shop.kafka.rehash_coordinators()
    shop.order(PENS)
    shop.bill_all(billing)
    assert [invoice["customer"] for invoice in shop.invoices()] == ["alice", "bob"]


def test_a_second_instance_takes_over_from_a_hanging_one(shop, billing):
    shop.order(BOOKS)
    shop.bill_all(billing)
    other = Billing(shop.kafka.bootstrap)  # the same transactional id: the first one is fenced
    shop.kafka.expire_member("billing")
    shop.order(PENS)
    shop.bill_all(other)
    assert [invoice["customer"] for invoice in shop.invoices()] == ["alice", "bob"]
    other.close()


def test_a_transaction_that_took_too_long_is_not_half_there(shop):
    slow = Billing(shop.kafka.bootstrap)
    # When it asks for its commit its time is up, just before the broker looks at the request.
    shop.kafka.on("EndTxn").observe(lambda seen: shop.kafka.expire_transaction("billing"))
    shop.order(BOOKS)
    with pytest.raises(KafkaException):
        shop.bill_all(slow)
    assert shop.invoices() == []
    slow.close()
    again = Billing(shop.kafka.bootstrap)
    shop.bill_all(again)
    assert len(shop.invoices()) == 1
    again.close()
