"""Template `declarative`: a Spark Declarative Pipeline in Python."""

from typing import Final

_SPEC: Final = """# A Spark Declarative Pipeline; `ottla pipeline run` registers the formats `ottla` and `ottla-log`.
name: @NAME@
storage: file://@STORAGE@
database: default
libraries:
  - glob:
      include: transformations/**
"""

_TRANSFORMATIONS: Final = '''"""Orders as a streaming table, and what each customer spent as a materialized view."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    """Every committed order, once."""
    records = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", os.environ["OTTLA_BOOTSTRAP"])
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    order = f.from_json(f.col("value").cast("string"), "customer string, amount double")
    return records.select("partition", "offset", order.alias("order")).select("partition", "offset", "order.*")


@dp.materialized_view
def spending() -> DataFrame:
    """What each customer spent."""
    return spark.read.table("orders").groupBy("customer").agg(f.sum("amount").alias("spent"), f.count("*").alias("n"))
'''

_TOPICS: Final = """orders:3
"""

FILES: Final = {"spark-pipeline.yml": _SPEC, "transformations/orders.py": _TRANSFORMATIONS, "topics.txt": _TOPICS}
