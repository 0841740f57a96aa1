"""The current state against a plain Python dict, with a driver that dies in between."""

import random

from pipeline import apply_to, current


def test_the_table_is_what_a_dict_would_be_after_a_kill(spark_kafka):
    spark_kafka.create_topic("customers", 2, {"cleanup.policy": "compact"})
    dice = random.Random(11)
    table = spark_kafka.path("table")
    expected = {}
    for round_ in range(2):
        changes = []
        for number in range(60):
            key = f"c{dice.randrange(25)}"
            value = None if dice.random() < 0.2 else f"{round_}-{number}"
            changes.append((key, value))
            expected[key] = value
        spark_kafka.produce_many("customers", changes)
        stream = spark_kafka.stream("customers", maxOffsetsPerTrigger="40")
        spark_kafka.run(stream.writeStream.foreachBatch(apply_to(table)), killed=round_ == 0)
    rows = current(spark_kafka.spark, table).collect()
    assert {row["key"]: row["value"] for row in rows} == {
        key: value for key, value in expected.items() if value is not None
    }
    assert len(rows) == len({row["key"] for row in rows})
