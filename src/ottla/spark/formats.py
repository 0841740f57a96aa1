"""The names of ottla's formats and the classes behind them, all of which `register` teaches a session."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ottla.spark.log.source import LogSource
from ottla.spark.network.source import NetworkSource
from ottla.spark.tables.lines import EventsTable, WireTable
from ottla.spark.tables.records import GroupsTable, MetadataTable, OffsetsTable, TransactionsTable

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

SOURCES: tuple[type[DataSource], ...] = (
    NetworkSource,
    LogSource,
    MetadataTable,
    OffsetsTable,
    GroupsTable,
    TransactionsTable,
    EventsTable,
    WireTable,
)


def sources() -> tuple[type[DataSource], ...]:
    """Return every format's class, "ottla-analysis" included.

    `ottla.analysis` lies above this package, so its class is imported by name when a session is set up.
    """
    return (*SOURCES, import_module("ottla.analysis.spark_source").AnalysisSource)
