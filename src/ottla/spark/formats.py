"""The formats that `ottla.spark.register` adds to a session: each is a Spark data source with its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.spark.log.source import LogSource
from ottla.spark.network.source import NetworkSource
from ottla.spark.tables.lines import EventsTable, WireTable
from ottla.spark.tables.records import GroupsTable, MetadataTable, OffsetsTable, TransactionsTable

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

SOURCES: Final[tuple[type[DataSource], ...]] = (
    NetworkSource,
    LogSource,
    MetadataTable,
    OffsetsTable,
    GroupsTable,
    TransactionsTable,
    EventsTable,
    WireTable,
)
"""Every format of this package; "ottla-analysis" is registered by `ottla.analysis.register`."""
