"""The format `ottla`: topics over the network, from and to ottla or any other Kafka, with no jars.

Here are the format's doors; reading is in `network_read` and `network_stream`, writing in `sink`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class NetworkSource(DataSource):
    """`spark.read.format("ottla")`, `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "ottla"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch writer."""
        from ottla.spark.sink import make_writer  # type: ignore[import-not-found, unused-ignore]

        return make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """A writer of micro-batches."""
        from ottla.spark.sink import make_stream_writer  # type: ignore[import-not-found, unused-ignore]

        return make_stream_writer(self.options, schema, overwrite)
