"""Runs a data source as Spark does, without Spark: the readers' own behaviour is tested in milliseconds."""

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
    """Options as Spark hands them over: names in lower case."""

    def __init__(self, given: dict[str, str]) -> None:
        super().__init__({name.lower(): value for name, value in given.items()})


def make_source(kind: type[DataSource], options: dict[str, str]) -> tuple[DataSource, StructType]:
    source = kind(CaseInsensitive(options))
    schema = source.schema()
    return source, StructType.fromDDL(schema) if isinstance(schema, str) else schema


def plan(kind: type[DataSource], options: dict[str, str], filters: list[Any] | None = None) -> tuple[Any, list[Any]]:
    """A reader and its tasks, each having been pickled on the way as they are in Spark."""
    source, schema = make_source(kind, options | {PUSHED: "true"} if filters else options)
    reader = pickle.loads(pickle.dumps(source)).reader(schema)
    if filters:
        list(reader.pushFilters(filters))
    return reader, [pickle.loads(pickle.dumps(each)) for each in reader.partitions()]


def table(kind: type[DataSource], options: dict[str, str], filters: list[Any] | None = None) -> pa.Table:
    """All rows, with the very schema that Spark would insist on."""
    _, schema = make_source(kind, options)
    expected = to_arrow_schema(schema, timezone="UTC")
    reader, tasks = plan(kind, options, filters)
    batches = [batch for task in tasks for batch in reader.read(task)]
    for batch in batches:
        assert batch.schema.equals(expected), f"{batch.schema} is not {expected}"
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema=expected)


def rows(kind: type[DataSource], options: dict[str, str], filters: list[Any] | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table(kind, options, filters).to_pylist()
    return found
