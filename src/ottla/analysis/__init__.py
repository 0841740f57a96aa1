"""Analyses of event logs, captures, client logs and Kafka's internal topics: what went wrong, and why.

Parsers read every input into one table (`event`), rules check the events of one key in order, and `engine` runs a rule
in this process or in Spark. docs/debugging.md shows each analysis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register the format "ottla-analysis" with a Spark session."""
    from ottla.analysis.spark_source import AnalysisSource

    spark.dataSource.register(AnalysisSource)
