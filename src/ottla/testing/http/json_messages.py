"""Messages and state as JSON, and messages from JSON: field names as in Kafka, bytes in base64."""

from __future__ import annotations

import base64
import binascii
import dataclasses
from typing import TYPE_CHECKING, Any

from ottla.protocol.inspect.secrets import HIDDEN, SECRET_FIELDS, is_secret_config
from ottla.protocol.schema import Struct, Uuid

if TYPE_CHECKING:
    from ottla.protocol.schema import Field


def to_json(value: Any) -> Any:
    """Return a value that JSON can represent: dataclasses and messages as objects, tuple keys as `topic-partition`."""
    if isinstance(value, Struct):
        return {
            field.name: HIDDEN if _is_secret(value, field.name) else to_json(getattr(value, field.name))
            for field in value.__schema__.fields
        }
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Uuid):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict):
        return {
            "-".join(map(str, key)) if isinstance(key, tuple) else str(key): to_json(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(item) for item in value]
    return value


def _is_secret(message: Struct, name: str) -> bool:
    return name in SECRET_FIELDS or (name == "value" and is_secret_config(getattr(message, "name", None)))


def read_message(cls: type[Struct], value: Any) -> Any:
    """Return the message of a JSON object, absent fields with their defaults; ValueError if a field is wrong."""
    if not isinstance(value, dict):
        raise ValueError(f"{cls.__name__} must be an object, not {value!r}")
    fields = {field.name: field for field in cls.__schema__.fields}
    unknown = sorted(set(value) - set(fields))
    if unknown:
        raise ValueError(f"{cls.__name__} has no field {', '.join(unknown)}; its fields are {', '.join(fields)}")
    return cls(**{name: _field_value(fields[name], fields[name].kind, item) for name, item in value.items()})


def _field_value(field: Field, kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind == "array":
        if not isinstance(value, list):
            raise ValueError(f"{field.name} must be a list, not {value!r}")
        return [
            read_message(field.of, item) if isinstance(field.of, type) else _field_value(field, str(field.of), item)
            for item in value
        ]
    if kind == "struct":
        assert isinstance(field.of, type)
        return read_message(field.of, value)
    if kind in ("bytes", "records"):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError) as error:
            raise ValueError(f"{field.name} must be base64, not {value!r}") from error
    if kind == "uuid":
        return Uuid.parse(value)
    return value
