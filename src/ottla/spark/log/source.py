"""The data source "ottla-log": its options, and the order in which a scan is planned and read.

`plan` decides what tasks read, `read` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ottla.spark.columns import COLUMN_OPTIONS, Columns, choose_columns
from ottla.spark.log.files import READ_UP_TO, find_log_directories, find_logs
from ottla.spark.log.plan import DECIDED, ISOLATIONS, LARGEST_TASK, READ_UNCOMMITTED, Piece, choose_ranges, plan_tasks
from ottla.spark.log.read import ReadSettings, read_pieces
from ottla.spark.offsets import RANGE_OPTIONS, Bound, Selection, parse_end, parse_selection, parse_start
from ottla.spark.options import OptionError, Options
from ottla.spark.pushdown.filters import Limits, is_pushed
from ottla.spark.worker import settle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

KNOWN: Final = (
    *RANGE_OPTIONS,
    *COLUMN_OPTIONS,
    "includeBatch",
    "includeControl",
    "isolation.level",
    "kafka.isolation.level",
    "badRecords",
    "readUpTo",
    "failOnDataLoss",
    "minPartitions",
    "maxPartitionBytes",
    "filterPushdown",
)
REPLANS: Final = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """The parsed options."""

    path: str
    selection: Selection
    start: Bound
    end: Bound
    settings: ReadSettings
    isolation: str
    strict_times: bool
    read_up_to: str
    least_tasks: int
    largest_task: int
    pushdown: bool

    @classmethod
    def parse(cls, raw_options: Any, isolation: str = READ_UNCOMMITTED) -> Plan:
        """Parse and check all options before anything is read; `isolation` is the default isolation level."""
        options = Options("ottla-log", raw_options, KNOWN)
        path = options.text("path")
        if not path:
            raise OptionError(
                'ottla-log needs a log directory: spark.read.format("ottla-log").load("/path/to/log.dirs")'
            )
        bad = options.choice("badRecords", ("fail", "drop", "column"), "fail")
        control = options.boolean("includeControl", False)
        columns: Columns = choose_columns(
            options, batch=options.boolean("includeBatch", False) or control, bad=bad == "column"
        )
        levels = ISOLATIONS if isolation == DECIDED else ISOLATIONS[:2]
        name = "isolation.level" if "isolation.level" in options else "kafka.isolation.level"
        start = parse_start(options, streaming=False)
        strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        return cls(
            path,
            parse_selection(options, required=False),
            start,
            parse_end(options, start),
            ReadSettings(columns, bad, control, options.boolean("failOnDataLoss", True)),
            options.choice(name, levels, isolation),
            strategy == "error",
            options.choice("readUpTo", READ_UP_TO, READ_UP_TO[0]),
            options.integer("minPartitions", 0, least=1) or 0,
            options.size("maxPartitionBytes", LARGEST_TASK),
            is_pushed(options),
        )


class LogTask(InputPartition):
    """The pieces of one Spark task."""

    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__(None)
        self.pieces = pieces


class LogSource(DataSource):
    """`spark.read.format("ottla-log").load("/path/to/log.dirs")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ottla-log"

    def schema(self) -> StructType:
        """Return the columns; wrong options and a wrong path raise here, at load()."""
        plan = Plan.parse(self.options)
        find_log_directories(plan.path)
        return plan.settings.columns.typed(plan.selection.named).spark

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the selected columns."""
        plan = Plan.parse(self.options)
        columns = plan.settings.columns.typed(plan.selection.named, schema).narrowed(self.name(), schema)
        plan = replace(plan, settings=replace(plan.settings, columns=columns))
        return FilteringLogReader(plan) if plan.pushdown else LogReader(plan)


class LogReader(DataSourceReader):
    """Plan and read a scan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._limits = Limits()

    def partitions(self) -> list[InputPartition]:
        """Return the tasks; at least one, which may be empty."""
        for _ in range(REPLANS):
            try:
                return self._plan_tasks()
            except FileNotFoundError:
                continue  # retention deleted a segment, or compaction replaced it, since the folder was listed
        return self._plan_tasks()

    def _plan_tasks(self) -> list[InputPartition]:
        plan = self._plan
        logs = find_logs(find_log_directories(plan.path), plan.selection, plan.read_up_to)
        ranges = choose_ranges(
            logs,
            plan.start,
            plan.end,
            self._limits,
            isolation=plan.isolation,
            strict_times=plan.strict_times,
            fail_on_data_loss=plan.settings.fail_on_data_loss,
        )
        tasks = plan_tasks(ranges, largest=plan.largest_task, least_tasks=plan.least_tasks)
        return [LogTask(pieces) for pieces in tasks] or [LogTask([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        assert isinstance(partition, LogTask)
        settle()
        settings = replace(self._plan.settings, times=self._limits.times if self._limits.timed else None)
        yield from read_pieces(partition.pieces, settings)


class FilteringLogReader(LogReader):
    """A reader that opens only what filters on topic, partition, offset and timestamp leave."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the scan; Spark still applies every filter itself."""
        self._limits.take(filters)
        return filters
