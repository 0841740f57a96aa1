"""A job of its own, because its session has Spark's from_avro: the columns of both decoders as JSON lines.

python -m tests.interop.spark_from_avro JARS BOOTSTRAP REGISTRY SCHEMA
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import functions
from pyspark.sql.avro.functions import from_avro

from ottla.spark import session


def main() -> None:
    jars, bootstrap, registry, schema = sys.argv[1:]
    spark = session("from_avro", master="local[2]", config={"spark.jars": jars})
    spark.sparkContext.setLogLevel("ERROR")
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "orders"}
    plain = spark.read.format("ottla").options(**options).load()
    theirs = plain.select("offset", from_avro(functions.expr("substring(value, 6)"), schema).alias("value"))
    more = {"valueFormat": "avro", "schemaRegistryUrl": registry}
    ours = spark.read.format("ottla").options(**options, **more).load().select("offset", "value")
    print(
        json.dumps(
            {
                name: {
                    "type": frame.schema["value"].dataType.simpleString(),
                    "rows": frame.orderBy("offset").select(functions.to_json("value")).toPandas().iloc[:, 0].tolist(),
                }
                for name, frame in (("from_avro", theirs), ("ottla", ours))
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
