"""The names of ottla's formats and the classes behind them, all of which `register` teaches a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.spark.analysis.source import AnalysisSource
from ottla.spark.log_source import LogSource
from ottla.spark.network_source import NetworkSource
from ottla.spark.tables_lines import EventsTable, WireTable
from ottla.spark.tables_records import GroupsTable, MetadataTable, OffsetsTable, TransactionsTable

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
    AnalysisSource,
)
