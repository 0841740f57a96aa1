"""Run a data source as Spark does, without Spark, so that readers are tested in milliseconds."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ottla.spark.pushdown.filters import PUSHED

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource


class CaseInsensitive(dict[str, str]):
    """Options as Spark passes them: names in lower case."""

    def __init__(self, source_options: dict[str, str]) -> None:
        super().__init__({name.lower(): value for name, value in source_options.items()})


def make_source(kind: type[DataSource], options: dict[str, str]) -> tuple[DataSource, StructType]:
    source = kind(CaseInsensitive(options))
    schema = source.schema()
    return source, StructType.fromDDL(schema) if isinstance(schema, str) else schema


def plan(kind: type[DataSource], options: dict[str, str], filters: list[Any] | None = None) -> tuple[Any, list[Any]]:
    """Return a reader and its tasks, pickled and unpickled as in Spark."""
    source, schema = make_source(kind, options | {PUSHED: "true"} if filters else options)
    reader = pickle.loads(pickle.dumps(source)).reader(schema)
    if filters:
        list(reader.pushFilters(filters))
    return reader, [pickle.loads(pickle.dumps(task)) for task in reader.partitions()]


def table(kind: type[DataSource], options: dict[str, str], filters: list[Any] | None = None) -> pa.Table:
    """Return all rows; check that they have the schema that Spark requires."""
    _, schema = make_source(kind, options)
    expected = to_arrow_schema(schema, timezone="UTC")
    reader, tasks = plan(kind, options, filters)
    batches = [batch for task in tasks for batch in reader.read(task)]
    for batch in batches:
        assert batch.schema.equals(expected), f"{batch.schema} is not {expected}"
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema=expected)


def rows(kind: type[DataSource], options: dict[str, str], filters: list[Any] | None = None) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = table(kind, options, filters).to_pylist()
    return result
