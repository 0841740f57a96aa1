"""Choose the reader's schema of a column on the driver, and derive the column's type from it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from ottla.schemas.registry_client import RegistryRefusedError, RegistryUnreachableError
from ottla.schemas.schema import InvalidSchemaError
from ottla.schemas.types import parse_schema
from ottla.spark.options import OptionError
from ottla.spark.values.arrow import arrow_type
from ottla.spark.values.options import SCHEMA_TYPES, ColumnFormat, ReaderSchema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ottla.schemas.column_types import ColumnType
    from ottla.schemas.registry_client import RegistryClient
    from ottla.schemas.schema import Schema

SCHEMA_ID: Final = "ottla.schemaId"
"""The key in the metadata of a DataFrame's column: the id of the reader's schema, so that all reads of it agree."""
ERROR_TYPE: Final = pa.struct([pa.field("reason", pa.string()), pa.field("bytes", pa.binary())])


def resolve_format(format_: ColumnFormat, topics: list[str], schema: StructType | None) -> ColumnFormat:
    """Return the format with its reader's schema.

    `schema` has the columns that Spark was given earlier: the schema id in its metadata is used again, even if the
    subject has a newer version by now.
    """
    if format_.reader is not None:
        return format_
    chosen = format_.schema
    pinned = _pinned(schema, format_.column)
    try:
        if pinned is not None:
            reader = _by_id(format_.registry.client(), pinned)
        elif chosen == "latest" or chosen.isdigit():
            reader = _by_version(format_, topics, chosen)
        elif chosen.startswith("id:"):
            reader = _by_id(format_.registry.client(), _number(format_, chosen))
        else:
            reader = ReaderSchema(_given_type(format_), chosen)
    except RegistryRefusedError as error:
        raise OptionError(f"{format_.column}Schema={chosen}: the registry refuses it: {error}") from error
    except RegistryUnreachableError as error:
        raise OptionError(f"schemaRegistryUrl: {error}") from error
    if format_.format != "registry" and reader.type != SCHEMA_TYPES[format_.format]:
        where = f"subject {reader.subject}" if reader.subject else f"schema id {reader.schema_id}"
        raise OptionError(f"{format_.column}Format is {format_.format}, and {where} has a schema of type {reader.type}")
    resolved = replace(format_, reader=replace(reader, message=format_.message))
    column_type_of(resolved)
    return resolved


def parsed_reader(format_: ColumnFormat) -> Schema:
    """Return the parsed schema of a resolved format."""
    assert format_.reader is not None
    return parse_schema(format_.reader.type, format_.reader.text, dict(format_.reader.references))


def column_type_of(format_: ColumnFormat) -> ColumnType:
    """Return the type of the decoded column; OptionError if its schema has none."""
    from ottla.schemas.column_types import NoColumnsError
    from ottla.spark.values.schemas import type_of_schema

    assert format_.reader is not None
    try:
        return type_of_schema(parsed_reader(format_), format_.reader.message)
    except (NoColumnsError, InvalidSchemaError) as error:
        raise OptionError(f"{format_.column}Schema={format_.schema[:100]}: {error}") from error


def typed_fields(fields: tuple[pa.Field, ...], formats: tuple[ColumnFormat, ...]) -> tuple[pa.Field, ...]:
    """Return the columns with the types of resolved formats, and with their columns for errors and added fields."""
    by_name = {format_.column: format_ for format_ in formats}
    typed = [
        pa.field(field.name, arrow_type(column_type_of(by_name[field.name]))) if field.name in by_name else field
        for field in fields
    ]
    for format_ in formats:
        if format_.error_column is not None:
            typed.append(pa.field(format_.error_column, ERROR_TYPE))
        if format_.added_column is not None:
            typed.append(pa.field(format_.added_column, pa.string()))
    return tuple(typed)


def with_schema_ids(schema: StructType, formats: tuple[ColumnFormat, ...]) -> StructType:
    """Return Spark's schema with the ids of the readers' schemas in the metadata of their columns."""
    from pyspark.sql.types import StructField, StructType

    ids = {
        format_.column: format_.reader.schema_id
        for format_ in formats
        if format_.reader is not None and format_.reader.schema_id is not None
    }
    return StructType(
        [
            StructField(field.name, field.dataType, field.nullable, {SCHEMA_ID: ids[field.name]})
            if field.name in ids
            else field
            for field in schema.fields
        ]
    )


def _pinned(schema: StructType | None, column: str) -> int | None:
    for field in schema.fields if schema is not None else ():
        if field.name == column and SCHEMA_ID in (field.metadata or {}):
            return int(field.metadata[SCHEMA_ID])
    return None


def _by_version(format_: ColumnFormat, topics: list[str], version: str) -> ReaderSchema:
    subject = format_.subject
    if subject is None:
        if len(topics) != 1:
            raise OptionError(
                f"{format_.column}Subject is required unless exactly one topic is subscribed, for example "
                f'.option("{format_.column}Subject", "orders-{format_.column}")'
            )
        subject = f"{topics[0]}-{format_.column}"
    client = format_.registry.client()
    try:
        registered = client.version(subject, version)
    except RegistryRefusedError as error:
        if not error.is_missing:
            raise
        raise OptionError(
            f"the registry has no {'schema' if version == 'latest' else f'version {version}'} of subject {subject} "
            f"({error.message}); {format_.column}Subject names another subject"
        ) from error
    return replace(
        _read(client, registered), schema_id=registered["id"], subject=subject, version=registered["version"]
    )


def _by_id(client: RegistryClient, schema_id: int) -> ReaderSchema:
    return replace(_read(client, client.schema(schema_id)), schema_id=schema_id)


def _read(client: RegistryClient, version: dict[str, Any]) -> ReaderSchema:
    from ottla.schemas.values import fetch_references

    references = tuple(fetch_references(client, version).items())
    return ReaderSchema(version.get("schemaType") or "AVRO", version["schema"], references)


def _number(format_: ColumnFormat, chosen: str) -> int:
    digits = chosen.removeprefix("id:").strip()
    if not digits.isdigit():
        raise OptionError(
            f"{format_.column}Schema must be latest, a version such as 3, id:17 or the text of a schema, not {chosen!r}"
        )
    return int(digits)


def _given_type(format_: ColumnFormat) -> str:
    if format_.format == "registry":
        raise OptionError(
            f"{format_.column}Schema is the text of a schema: set {format_.column}Format to its type, such as avro"
        )
    type_ = SCHEMA_TYPES[format_.format]
    try:
        parse_schema(type_, format_.schema)
    except InvalidSchemaError as error:
        raise OptionError(
            f"{format_.column}Schema must be latest, a version such as 3, id:17 or the text of a schema: {error}"
        ) from error
    return type_
