"""Paid orders and dead letters against a plain Python computation, with a driver that dies in between."""

import json
import random

from pipeline import enriched

START = 1_767_225_600_000  # 2026-01-01T00:00:00Z
MINUTE = 60_000
CUSTOMERS = {"c0": "Ada", "c1": "Bo", "c2": "Cy"}


def traffic(seed: int, count: int = 60):
    """Orders (some of them broken), payments (some too late, some of nothing)."""
    dice = random.Random(seed)
    orders, payments = [], []
    for number in range(count):
        at = START + number * MINUTE
        order = {"order": f"o{number}", "customer": f"c{dice.randrange(4)}", "amount": dice.randrange(1, 90), "at": at}
        broken = dice.random()
        if broken < 0.1:
            orders.append("{ not json")
        elif broken < 0.2:
            orders.append(json.dumps({**order, "amount": -1}))
        else:
            orders.append(json.dumps(order))
        if dice.random() < 0.8:
            delay = dice.choice([1, 10, 59, 61, 90]) * MINUTE
            payments.append(
                json.dumps({"order": f"o{number}", "method": dice.choice(["card", "cash"]), "at": at + delay})
            )
    return orders, [*payments, json.dumps({"order": "o-none", "method": "card", "at": START})]


def plain(orders, payments):
    """What the pipeline should write: paid orders and dead letters."""
    paid = {payment["order"]: payment for payment in map(json.loads, payments)}
    good, dead = [], []
    for text in orders:
        try:
            order = json.loads(text)
        except ValueError:
            dead.append((text, "not JSON, or without an order"))
            continue
        if order["amount"] <= 0:
            dead.append((text, "customer, amount or time is wrong"))
            continue
        payment = paid.get(order["order"])
        if payment and 0 <= payment["at"] - order["at"] <= 60 * MINUTE:
            row = {
                "order": order["order"],
                "customer": order["customer"],
                "amount": order["amount"],
                "method": payment["method"],
            }
            if order["customer"] in CUSTOMERS:
                row["name"] = CUSTOMERS[order["customer"]]
            good.append(row)
    return good, dead


def test_paid_orders_and_dead_letters_are_those_of_plain_python_after_a_kill(spark_kafka):
    for topic, partitions in {"orders": 2, "payments": 2, "orders-paid": 2, "orders-dead": 1}.items():
        spark_kafka.create_topic(topic, partitions)
    spark_kafka.create_topic("customers", 1, {"cleanup.policy": "compact"})
    spark_kafka.produce_many(
        "customers", [("c0", json.dumps({"name": "was somebody else"})), ("c9", json.dumps({"name": "Gone"}))]
    )
    spark_kafka.produce_many("customers", [(key, json.dumps({"name": name})) for key, name in CUSTOMERS.items()])
    spark_kafka.produce("customers", key="c9", value=None)
    orders, payments = traffic(seed=3)

    def run(**how):
        frame = enriched(spark_kafka.stream("orders"), spark_kafka.stream("payments"), spark_kafka.read("customers"))
        spark_kafka.run(
            frame.writeStream.format("ottla").options(**spark_kafka.options).option("exactlyOnce", "true"), **how
        )

    spark_kafka.produce_many("orders", [(None, text) for text in orders[:30]])
    spark_kafka.produce_many("payments", [(None, text) for text in payments[:10]])
    run(killed=True)
    spark_kafka.produce_many("orders", [(None, text) for text in orders[30:]])
    spark_kafka.produce_many("payments", [(None, text) for text in payments[10:]])
    run(killed=True)
    run()

    good, dead = plain(orders, payments)
    written = [json.loads(row["value"]) for row in spark_kafka.read("orders-paid").collect()]
    assert sorted(written, key=lambda row: row["order"]) == sorted(good, key=lambda row: row["order"])
    letters = spark_kafka.read("orders-dead", includeHeaders="true").collect()
    reasons = [(row["value"].decode(), bytes(row["headers"][0]["value"]).decode()) for row in letters]
    assert sorted(reasons) == sorted(dead)
    assert len({bytes(row["headers"][1]["value"]) for row in letters}) == len(dead)
