"""The data source "ottla": topics over the network, of ottla or any other Kafka, with its batch reader.

Streams are in `stream`, writers in `ottla.spark.sink`.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from ottla.spark.connect import reachable
from ottla.spark.network.offsets import NetworkTask, batch_ranges, find_topics, plan_tasks
from ottla.spark.network.options import NO_STREAM, NetworkPlan
from ottla.spark.network.read import read_ranges
from ottla.spark.options import OptionError
from ottla.spark.pushdown.filters import Limits
from ottla.spark.worker import settle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, Filter
    from pyspark.sql.types import StructType


class NetworkSource(DataSource):
    """`spark.read.format("ottla")`, `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ottla"

    def schema(self) -> StructType:
        """Return the columns; wrong options, unreachable brokers and missing topics raise here, at load()."""
        # Spark does not tell here whether this is a stream: readers check what only one of the two may have.
        plan = NetworkPlan.parse(self.options, streaming=None)
        plan.warn_ignored()
        with reachable(plan.settings.bootstrap), plan.settings.client() as client:
            topics = find_topics(client, plan.selection)
        return plan.settings.columns.typed(sorted(topics)).spark

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for `spark.read`."""
        network_plan = NetworkPlan.parse(self.options, streaming=False)
        if not network_plan.pushdown:
            # Spark does not call schema() if the user gives one.
            network_plan.warn_ignored(NO_STREAM if schema == network_plan.settings.columns.spark else None)
        plan = _with_columns(network_plan, schema)
        return FilteringNetworkReader(plan) if plan.pushdown else NetworkReader(plan)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader for `spark.readStream`."""
        if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
            import pyspark

            return RefusedStream(
                f"streams from ottla need pyspark 4.2 or newer: {pyspark.__version__} has neither rate limits nor "
                "availableNow for Python sources; spark.read works"
            )
        from ottla.spark.network.stream import NetworkStreamReader

        try:
            return NetworkStreamReader(_with_columns(NetworkPlan.parse(self.options, streaming=True), schema))
        except OptionError as error:
            return RefusedStream(str(error))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer."""
        from ottla.spark.sink.writer import make_writer
        from ottla.spark.values.encode import encoded_writer, split_encodings

        encodings, options, schema = split_encodings(self.options, schema)
        return encoded_writer(make_writer(options, schema, overwrite), encodings)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Return a writer of micro-batches."""
        from ottla.spark.sink.writer import make_stream_writer
        from ottla.spark.values.encode import encoded_stream_writer, split_encodings

        encodings, options, schema = split_encodings(self.options, schema)
        return encoded_stream_writer(make_stream_writer(options, schema, overwrite), encodings)


class RefusedStream(DataSourceStreamReader):
    """A stream reader that raises the reason: Spark hides an error of `streamReader` behind its own."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def initialOffset(self) -> NoReturn:  # noqa: N802 - Spark's name; called first for a new query
        """Raise the reason."""
        raise OptionError(self._reason)

    def latestOffset(self, *_: object) -> NoReturn:  # noqa: N802 - Spark's name; called first for a restarted query
        """Raise the reason."""
        raise OptionError(self._reason)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return nothing: Spark never gets this far."""
        return iter(())


def _with_columns(plan: NetworkPlan, schema: StructType) -> NetworkPlan:
    columns = plan.settings.columns.typed(plan.selection.named, schema).narrowed("ottla", schema)
    return replace(plan, settings=replace(plan.settings, columns=columns))


class NetworkReader(DataSourceReader):
    """Plan and read a batch."""

    def __init__(self, plan: NetworkPlan) -> None:
        self._plan = plan
        self._limits = Limits()

    def partitions(self) -> list[InputPartition]:
        """Return the tasks in order of topic, partition and offset; at least one, which may be empty."""
        plan = self._plan
        with reachable(plan.settings.bootstrap), plan.settings.client() as client:
            ranges = batch_ranges(client, plan, self._limits)
        return [*plan_tasks(ranges, least_tasks=plan.least_tasks, largest=plan.largest_task)] or [NetworkTask(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        assert isinstance(partition, NetworkTask)
        settle()
        if partition.ranges:
            limits = self._limits
            settings = replace(self._plan.settings, times=limits.times if limits.timed else None)
            yield from read_ranges(partition.ranges, settings)


class FilteringNetworkReader(NetworkReader):
    """A reader that fetches only what filters on topic, partition, offset and timestamp leave."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the read; Spark still applies every filter itself."""
        self._limits.take(filters)
        return filters
