"""Template `sql`: tables and flows in .sql files, no Python."""

from typing import Final

_SPEC: Final = """# A Spark Declarative Pipeline in SQL. For each topic of topics.txt `ottla pipeline run` adds a view
# topic_<name> that streams its committed records (- and . become _). If you create a view to_<name>
# with the columns key and value, a flow writes the rows of that view to the topic.
name: @NAME@
storage: file://@STORAGE@
database: default
libraries:
  - glob:
      include: transformations/**
"""

_ORDERS: Final = """-- Every committed order, once.
CREATE STREAMING TABLE orders;

CREATE FLOW parse_orders
AS INSERT INTO orders BY NAME
SELECT partition, offset, order.customer, order.amount
FROM (
  SELECT partition, offset, from_json(CAST(value AS STRING), 'customer STRING, amount DOUBLE') AS order
  FROM STREAM topic_orders
)
WHERE order.amount > 0;

-- What each customer spent.
CREATE MATERIALIZED VIEW spending
AS SELECT customer, sum(amount) AS spent, count(*) AS n FROM orders GROUP BY customer;
"""

_LARGE: Final = """-- The topic large-orders.
CREATE TEMPORARY VIEW to_large_orders
AS SELECT CAST(customer AS BINARY) AS key, CAST(to_json(struct(customer, amount)) AS BINARY) AS value
FROM STREAM orders
WHERE amount >= 200;
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
