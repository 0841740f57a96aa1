"""The current state against a plain Python dict, with a driver that dies in between."""

import random

from pipeline import apply_to, current


def customer_changes(seed: int, count: int = 120):
    """Keys with their new values, null where a customer goes."""
    dice = random.Random(seed)
    return [(f"c{dice.randrange(25)}", None if dice.random() < 0.2 else f"change {n}") for n in range(count)]


def plain(changes):
    """What the table should hold."""
    return {key: value for key, value in dict(changes).items() if value is not None}


def test_the_table_is_what_a_dict_would_be_after_a_kill(spark_kafka):
    spark_kafka.create_topic("customers", 2, {"cleanup.policy": "compact"})
    changes = customer_changes(seed=11)
    table = spark_kafka.path("table")
    for some, killed in ((changes[:60], True), (changes[60:], False)):
        spark_kafka.produce_many("customers", some)
        stream = spark_kafka.stream("customers", maxOffsetsPerTrigger="40")
        spark_kafka.run(stream.writeStream.foreachBatch(apply_to(table)), killed=killed)
    rows = current(spark_kafka.spark, table).collect()
    assert sorted((row["key"], row["value"]) for row in rows) == sorted(plain(changes).items())
