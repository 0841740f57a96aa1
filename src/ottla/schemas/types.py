"""The types of schemas by name, and compatibility over several versions."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from ottla.schemas.avro import AvroSchema
from ottla.schemas.json_schema import JsonSchema
from ottla.schemas.protobuf import ProtobufSchema
from ottla.schemas.schema import InvalidSchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ottla.schemas.schema import Schema

SCHEMA_TYPES: Final[dict[str, type[AvroSchema | JsonSchema | ProtobufSchema]]] = {
    "JSON": JsonSchema,
    "PROTOBUF": ProtobufSchema,
    "AVRO": AvroSchema,
}
MAX_SHOWN: Final = 10 * 1024
"""The number of characters of an old schema that a message about incompatibility quotes."""


class Compatibility(Enum):
    """Confluent's compatibility levels."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


def parse_schema(type_: str, text: str, references: Mapping[str, str] | None = None) -> Schema:
    """Parse a schema of a type; raise InvalidSchemaError if it is invalid."""
    schema_class = SCHEMA_TYPES.get(type_)
    if schema_class is None:
        raise InvalidSchemaError(f"Invalid schema type {type_}; known are {', '.join(sorted(SCHEMA_TYPES))}")
    try:
        return schema_class.parse(text, references)
    except RecursionError:
        raise InvalidSchemaError("the schema nests too deeply") from None


def incompatibilities(
    schema: Schema, versions: Iterable[tuple[int, Schema]], level: Compatibility, *, lenient: bool = False
) -> list[str]:
    """Return the reasons why a new schema is incompatible with earlier versions, newest first, at a level.

    Levels that are not transitive look at the newest version only. `lenient` is Confluent's compatibility policy, which
    JSON Schema has.
    """
    if level is Compatibility.NONE:
        return []
    for version, existing in versions:
        if existing.type != schema.type:
            return ["Incompatible because of different schema type"]
        messages: list[str] = []
        if level.name.startswith(("FORWARD", "FULL")):
            quoted = level.name.startswith("FORWARD")
            reasons = existing.differences(schema, lenient=lenient)
            messages += _worded(reasons, version, existing, ("old", "new"), quoted=quoted)
        if level.name.startswith(("BACKWARD", "FULL")):
            reasons = schema.differences(existing, lenient=lenient)
            messages += _worded(reasons, version, existing, ("new", "old"), quoted=True)
        if messages or not level.name.endswith("TRANSITIVE"):
            return messages
    return []


def _worded(messages: list[str], version: int, existing: Schema, sides: tuple[str, str], *, quoted: bool) -> list[str]:
    if not messages:
        return []
    worded = [message % sides if message.count("%s") == 2 else message for message in messages]
    if quoted:
        text = existing.canonical()
        shown = f"'{text}'" if len(text) <= MAX_SHOWN else f"<truncated> '{text[:MAX_SHOWN]}...'"
        worded += [f"{{oldSchemaVersion: {version}}}", f"{{oldSchema: {shown}}}"]
    return worded
