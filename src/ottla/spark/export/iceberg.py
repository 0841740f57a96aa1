"""Export to an Iceberg table in the target folder, with a file catalog and without a server.

Iceberg releases its runtime for a version of Spark later than Spark: without one, the export fails with one sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.spark.export.files import ExportError, loadable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CATALOG: Final = "ottla_export"
NEWEST: Final = (4, 1)  # the newest Spark with a runtime: iceberg-spark-runtime-4.1_2.13, 1.12.0
_RUN: Final = "ottla-export-run"


def iceberg_settings(target: str) -> dict[str, str]:
    """Return the session settings that make the target's parent folder an Iceberg catalog."""
    name = f"spark.sql.catalog.{CATALOG}"
    warehouse = target.rstrip("/").rpartition("/")[0] or ("/" if target.startswith("/") else ".")
    return {name: "org.apache.iceberg.spark.SparkCatalog", f"{name}.type": "hadoop", f"{name}.warehouse": warehouse}


def check_iceberg(spark: SparkSession) -> None:
    """Raise `ExportError` unless Iceberg can run here."""
    version = tuple(int(part) for part in spark.version.split(".")[:2])
    if version > NEWEST:
        raise ExportError(
            f"Iceberg has no runtime for Spark {spark.version} (its newest is for 4.1): pip install 'pyspark==4.1.3', "
            "or export to Parquet or Delta"
        )
    if not loadable(spark, "org.apache.iceberg.spark.SparkCatalog"):
        raise ExportError(
            "Iceberg is not on Spark's class path: give --packages "
            "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0, or its jar by --conf spark.jars=..."
        )


def append_to_iceberg(staged: DataFrame, root: str, partitioned: tuple[str, ...], run: int) -> None:
    """Append one snapshot that holds the run's number; skip a run that already has its snapshot."""
    from pyspark.sql import functions as f

    spark = staged.sparkSession
    table = f"{CATALOG}.`{root.rpartition('/')[2]}`"
    if not spark.catalog.tableExists(table):
        writer = staged.limit(0).writeTo(table).using("iceberg").tableProperty("write.spark.accept-any-schema", "true")
        if partitioned:
            writer = writer.partitionedBy(*[f.col(name) for name in partitioned])
        writer.create()
    done = spark.table(f"{table}.snapshots").where(f.col("summary").getItem(_RUN) == str(run))
    if done.isEmpty():
        appended = staged.writeTo(table).option("mergeSchema", "true").option(f"snapshot-property.{_RUN}", str(run))
        appended.append()
