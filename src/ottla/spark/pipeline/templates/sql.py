"""Template `sql`: tables and flows in .sql files, no Python."""

from typing import Final

_SPEC: Final = """# A Spark Declarative Pipeline; `ottla pipeline run` adds a view `topic_<name>` and a sink
# `to_<name>` for each topic of topics.txt (- and . become _).
name: @NAME@
storage: file://@STORAGE@
database: default
libraries:
  - glob:
      include: transformations/**
"""

_ORDERS: Final = """-- Orders as a streaming table: every committed order, once.
CREATE STREAMING TABLE orders
AS SELECT partition, offset, order.*
FROM (
  SELECT partition, offset, from_json(CAST(value AS STRING), 'customer STRING, amount DOUBLE') AS order
  FROM STREAM topic_orders
)
WHERE order.amount > 0;

-- What each customer spent.
CREATE MATERIALIZED VIEW spending
AS SELECT customer, sum(amount) AS spent, count(*) AS n FROM orders GROUP BY customer;
"""

_LARGE: Final = """-- Large orders go to the topic large-orders.
CREATE FLOW large_orders
AS INSERT INTO to_large_orders BY NAME
SELECT CAST(customer AS BINARY) AS key, CAST(to_json(struct(customer, amount)) AS BINARY) AS value
FROM STREAM orders
WHERE amount >= 100;
"""

_TOPICS: Final = """orders:3
large-orders:1
"""

FILES: Final = {
    "spark-pipeline.yml": _SPEC,
    "transformations/orders.sql": _ORDERS,
    "transformations/large_orders.sql": _LARGE,
    "topics.txt": _TOPICS,
}
