"""Messages as JSON objects and back: the fields' own names, bytes in base64, ids as Kafka prints them."""

from __future__ import annotations

import base64
import binascii
import dataclasses
from typing import TYPE_CHECKING, Any

from ottla.protocol.schema import Struct, Uuid
from ottla.protocol.secrets import HIDDEN, SECRET_FIELDS, is_secret_config

if TYPE_CHECKING:
    from ottla.protocol.schema import Field


def plain(value: Any) -> Any:
    """What JSON can carry: messages and states as objects, pairs as `topic-partition`."""
    if isinstance(value, Struct):
        return {
            field.name: HIDDEN if _is_secret(value, field.name) else plain(getattr(value, field.name))
            for field in value.__schema__.fields
        }
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Uuid):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict):
        return {
            "-".join(map(str, key)) if isinstance(key, tuple) else str(key): plain(each) for key, each in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return value


def _is_secret(message: Struct, name: str) -> bool:
    return name in SECRET_FIELDS or (name == "value" and is_secret_config(getattr(message, "name", None)))


def message_of(cls: type[Struct], value: Any) -> Any:
    """The message that a JSON object describes; fields that it leaves out have their defaults. ValueError if none."""
    if not isinstance(value, dict):
        raise ValueError(f"{cls.__name__} is an object, not {value!r}")
    fields = {field.name: field for field in cls.__schema__.fields}
    unknown = sorted(set(value) - set(fields))
    if unknown:
        raise ValueError(f"{cls.__name__} has no {', '.join(unknown)}; it has {', '.join(fields)}")
    return cls(**{name: _field_value(fields[name], fields[name].kind, given) for name, given in value.items()})


def _field_value(field: Field, kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind == "array":
        if not isinstance(value, list):
            raise ValueError(f"{field.name} is a list, not {value!r}")
        return [
            message_of(field.of, each) if isinstance(field.of, type) else _field_value(field, str(field.of), each)
            for each in value
        ]
    if kind == "struct":
        assert isinstance(field.of, type)
        return message_of(field.of, value)
    if kind in ("bytes", "records"):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError) as error:
            raise ValueError(f"{field.name} is base64, not {value!r}") from error
    if kind == "uuid":
        return Uuid.parse(value)
    return value
