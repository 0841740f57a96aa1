"""Decode the values of records into columns: JSON with an inferred schema, text, bytes, Avro, Protocol Buffers.

A value that cannot be decoded is kept as text in `corrupt_value`, never dropped; a schema that contradicts that of
earlier runs fails the export before anything is written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.reasons import reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

VALUE_FORMATS: Final = ("string", "json", "binary", "avro", "protobuf", "registry")
CORRUPT: Final = "corrupt_value"
_PLAIN: Final = ("topic", "partition", "offset", "timestamp", "timestampType", "headers")


class SchemaError(RuntimeError):
    """Values and schema do not match; the message names the field."""


class SchemaFileError(SchemaError):
    """A schema file is missing or invalid; the message names it."""


@dataclass(frozen=True, slots=True)
class ValueDecoder:
    """How values are decoded."""

    format: str
    schema_file: str | None = None
    message: str | None = None

    @property
    def corrupt_column(self) -> str | None:
        """The column that is not null where a value could not be decoded, if there is one."""
        return None if self.format in ("string", "binary") else CORRUPT

    def check(self) -> None:
        """Raise `SchemaFileError` for an invalid schema file, as far as that can be checked without Spark."""
        if self.format in ("avro", "protobuf"):
            self._decoder()

    def decode(self, records: DataFrame, known: str | None) -> tuple[DataFrame, str | None]:
        """Return the records with decoded values, and the schema of values as JSON for the next run."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType, _parse_datatype_string

        key = f.col("key").cast("string").alias("key")
        if self.format in ("string", "binary"):
            value = f.col("value").cast(self.format).alias("value")
            return records.select(key, value, *_PLAIN), None
        if self.format == "registry":
            return _from_registry(records, key, known)
        if self.format == "json":
            text = records.withColumn("text", f.col("value").cast("string"))
            schema = _found_schema(text) if self.schema_file is None else _read_schema(self.schema_file)
        else:
            decode, columns = self._decoder()
            schema = _parse_datatype_string(columns)
            text = _with_text(records, decode)
        if known is not None:
            schema = _merge(StructType.fromJson(json.loads(known)), schema, "")
        elif self.schema_file is None and not schema.fields:
            raise SchemaError(
                "no value is a JSON object, so there is no schema to find: use --value string, or give --schema"
            )
        parsed = f.from_json(
            "text", _with_corrupt(schema), {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        )
        names = [field.name for field in schema.fields]
        decoded = text.withColumn("parsed", parsed)
        value = f.when(f.col("value").isNull() | f.col(f"parsed.{CORRUPT}").isNotNull(), None)
        value = value.otherwise(f.struct(*[f.col("parsed").getField(name).alias(name) for name in names]))
        corrupt = f.col(f"parsed.{CORRUPT}").alias(CORRUPT)
        return decoded.select(key, value.alias("value"), *_PLAIN, corrupt), schema.json()

    def _decoder(self) -> tuple[Callable[[bytes], Any], str]:
        assert self.schema_file is not None
        if self.format == "avro":
            from ottla.spark.export.avro import avro_decoder

            return avro_decoder(self.schema_file)
        from ottla.spark.export.protobuf import protobuf_decoder

        assert self.message is not None
        return protobuf_decoder(self.schema_file, self.message)


def _from_registry(records: DataFrame, key: Column, known: str | None) -> tuple[DataFrame, str]:
    """Return records whose values the reader has decoded, and the schema of values as JSON."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructField, StructType

    schema = StructType([StructField("value", records.schema["value"].dataType)])
    if known is not None:
        schema = _merge(StructType.fromJson(json.loads(known)), schema, "")
    error = f.col("valueError")
    kept = f.to_json(f.struct(error["reason"].alias("reason"), f.base64(error["bytes"]).alias("base64")))
    corrupt = f.when(error.isNotNull(), kept).alias(CORRUPT)
    return records.select(key, "value", *_PLAIN, corrupt), schema.json()


def _found_schema(text: DataFrame) -> StructType:
    """Return the schema that Spark infers from all texts."""
    from pyspark.sql.types import StructType

    spark = text.sparkSession
    lines: Any = text.where("text is not null").select("text")
    if spark.version.startswith("4.1."):  # 4.1 accepts no DataFrame here
        lines = lines.rdd.map(itemgetter(0))
    inferred = spark.read.json(lines, columnNameOfCorruptRecord=CORRUPT).schema
    return StructType([field for field in inferred.fields if field.name != CORRUPT])


def _read_schema(path: str) -> StructType:
    """Read a schema in Spark's JSON or as DDL (`id bigint, name string`)."""
    from pyspark.sql.types import StructType, _parse_datatype_string

    with open(path, encoding="utf-8") as file:
        text = file.read().strip()
    try:
        if text.startswith("{"):
            return StructType.fromJson(json.loads(text))
        schema = _parse_datatype_string(text)
    except Exception as error:
        raise SchemaFileError(
            f"{path} is no Spark schema, as JSON or such as `id bigint, name string`: {reason(error)}"
        ) from None
    if not isinstance(schema, StructType):
        raise SchemaFileError(f"{path} holds the type {schema.simpleString()}, not fields")
    return schema


def _with_corrupt(schema: StructType) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([*schema.fields, StructField(CORRUPT, StringType())])


def _merge(known: DataType, fresh: DataType, where: str) -> Any:
    """Return the known schema with new fields added; fields must not change."""
    from pyspark.sql.types import ArrayType, DoubleType, LongType, NullType, StructField, StructType

    if known == fresh or isinstance(fresh, NullType):
        return known
    if isinstance(known, StructType) and isinstance(fresh, StructType):
        new = {field.name: field for field in fresh.fields}
        merged = [
            StructField(field.name, _merge(field.dataType, new[field.name].dataType, f"{where}.{field.name}"))
            if field.name in new
            else field
            for field in known.fields
        ]
        there = {field.name for field in known.fields}
        return StructType(merged + [field for field in fresh.fields if field.name not in there])
    if isinstance(known, ArrayType) and isinstance(fresh, ArrayType):
        return ArrayType(_merge(known.elementType, fresh.elementType, f"{where}[]"), True)
    if (isinstance(known, DoubleType) and isinstance(fresh, LongType)) or known.simpleString() == "string":
        return known
    raise SchemaError(
        f"field {where.lstrip('.')} was {known.simpleString()} in earlier runs and is {fresh.simpleString()} now: "
        "export to a new folder, with a --schema whose type holds both"
    )


def _with_text(records: DataFrame, decode: Callable[[bytes], Any]) -> DataFrame:
    """Add the column `text`: the decoded value as JSON, or a text that is not JSON if it cannot be decoded."""
    from pyspark.sql.types import StringType, StructField, StructType

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            texts = [None if value is None else _text(decode, value) for value in batch.column("value").to_pylist()]
            fields = [*batch.schema, pa.field("text", pa.string())]
            yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(texts, pa.string())], schema=pa.schema(fields))

    schema = StructType([*records.schema.fields, StructField("text", StringType())])
    return records.mapInArrow(convert, schema)


def _text(decode: Callable[[bytes], Any], value: bytes) -> str:
    try:
        return json.dumps(decode(value), default=_plain)
    except Exception as error:
        # Deliberately not JSON, so that from_json keeps it as the corrupt value.
        return f"!{error}: {value.hex()}"


def _plain(value: object) -> Any:
    import base64
    from datetime import date, datetime

    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    return str(value)
