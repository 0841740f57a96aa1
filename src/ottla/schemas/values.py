"""Encodes and decodes values by a schema, as the serializers of a registry's clients do."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from ottla.schemas.avro import AvroSchema
from ottla.schemas.framing import FramingError, frame, read_indexes, unframe, write_indexes
from ottla.schemas.json_schema import JsonSchema
from ottla.schemas.protobuf import ProtobufSchema
from ottla.schemas.types import parse_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ottla.schemas.registry_client import RegistryClient
    from ottla.schemas.schema import Schema


# Exceptions of fastavro for bytes that do not match the schema.
_AVRO_ERRORS = (EOFError, ValueError, IndexError, KeyError, TypeError, StopIteration, OverflowError, MemoryError)


class ValueMismatchError(ValueError):
    """Bytes or a value that a schema does not describe; the message has the location."""


class Codec:
    """Reads and writes values of one schema. Values are plain Python: dicts, lists, strings, numbers."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.decode, self.encode = _codec(schema)


class Decoder:
    """Decodes framed values with the schemas of a registry, each fetched once.

    >>> decoder = Decoder(RegistryClient("http://localhost:8081"))  # doctest: +SKIP
    >>> decoder.decode(record.value)  # doctest: +SKIP
    """

    def __init__(self, client: RegistryClient) -> None:
        self._client = client
        self._codecs: dict[int | str, Codec] = {}

    def decode(self, data: bytes, headers: Mapping[str, bytes | None] | None = None, *, is_key: bool = False) -> Any:
        """Return the value; FramingError or ValueMismatchError if it cannot be read."""
        codec, payload = self.find(data, headers, is_key=is_key)
        return codec.decode(payload)

    def find(
        self, data: bytes, headers: Mapping[str, bytes | None] | None = None, *, is_key: bool = False
    ) -> tuple[Codec, bytes]:
        """Return the codec of a framed value and the bytes that it reads; FramingError without a frame."""
        framed = unframe(data, headers, is_key=is_key)
        return self.codec(framed.guid if framed.schema_id is None else framed.schema_id), framed.data

    def codec(self, identifier: int | str | None) -> Codec:
        """Return the codec of a schema id or guid."""
        assert identifier is not None
        if identifier not in self._codecs:
            path = f"/schemas/ids/{identifier}" if isinstance(identifier, int) else f"/schemas/guids/{identifier}"
            self._codecs[identifier] = Codec(fetch_schema(self._client, self._client.call("GET", path)))
        return self._codecs[identifier]


class Encoder:
    """Encodes values under the latest schema of a subject."""

    def __init__(self, client: RegistryClient, subject: str) -> None:
        version = client.version(subject)
        self.schema_id: int = version["id"]
        self._codec = Codec(fetch_schema(client, version))

    @property
    def schema(self) -> Schema:
        """Return the schema that values are encoded under."""
        return self._codec.schema

    def encode(self, value: Any) -> bytes:
        """Return the framed bytes; ValueMismatchError if the schema does not describe the value."""
        return frame(self.schema_id, self._codec.encode(value))


def fetch_schema(client: RegistryClient, version: dict[str, Any]) -> Schema:
    """Parse a schema that a registry returned, with the references that it names."""
    return parse_schema(version.get("schemaType") or "AVRO", version["schema"], fetch_references(client, version))


def fetch_references(client: RegistryClient, version: dict[str, Any]) -> dict[str, str]:
    """Return the texts of the schemas that a schema refers to, by name, each after those that it refers to itself."""
    texts: dict[str, str] = {}
    _fetch_references(client, version, texts, 0)
    return texts


def _fetch_references(client: RegistryClient, version: dict[str, Any], texts: dict[str, str], depth: int) -> None:
    if depth > 50:
        raise ValueMismatchError("the schema's references nest deeper than 50 levels")
    for reference in version.get("references") or ():
        if reference["name"] not in texts:
            referenced = client.version(reference["subject"], str(reference["version"]))
            _fetch_references(client, referenced, texts, depth + 1)
            texts[reference["name"]] = referenced["schema"]


def _codec(schema: Schema) -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    if isinstance(schema, AvroSchema):
        return _avro_codec(schema)
    if isinstance(schema, ProtobufSchema):
        return _protobuf_codec(schema)
    assert isinstance(schema, JsonSchema)
    return _json_codec(schema)


def _avro_codec(schema: AvroSchema) -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    import fastavro

    parsed = fastavro.parse_schema(json.loads(schema.resolved()))

    def decode(data: bytes) -> Any:
        stream = io.BytesIO(data)
        try:
            value = fastavro.schemaless_reader(stream, parsed, None)
        except (
            EOFError,
            ValueError,
            IndexError,
            KeyError,
            TypeError,
            StopIteration,
            OverflowError,
            MemoryError,
        ) as error:
            raise ValueMismatchError(f"not Avro data of this schema: {error or type(error).__name__}") from error
        if stream.tell() != len(data):
            raise ValueMismatchError(f"{len(data) - stream.tell()} bytes follow the Avro value")
        return value

    def encode(value: Any) -> bytes:
        stream = io.BytesIO()
        try:
            fastavro.schemaless_writer(stream, parsed, value, strict=True)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError) as error:
            raise ValueMismatchError(f"the schema does not describe the value: {error}") from error
        return stream.getvalue()

    return decode, encode


def _json_codec(schema: JsonSchema) -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    from jsonschema import ValidationError
    from jsonschema.validators import Draft7Validator, validator_for
    from referencing import Registry, Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT7

    resources = [(name, Resource.from_contents(value, DRAFT7)) for name, value in schema.documents.items()]
    registry: Registry[Any] = Registry().with_resources(resources)
    validator = validator_for(schema.value, default=Draft7Validator)(schema.value, registry=registry)

    def decode(data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ValueMismatchError(f"not JSON: {error}") from error

    def encode(value: Any) -> bytes:
        try:
            validator.validate(value)
        except (ValidationError, Unresolvable) as error:
            path = "/".join(map(str, getattr(error, "absolute_path", ())))
            message = getattr(error, "message", str(error))
            raise ValueMismatchError(f"the schema does not describe the value: #/{path}: {message}") from error
        return json.dumps(value, separators=(",", ":")).encode()

    return decode, encode


def _protobuf_codec(schema: ProtobufSchema) -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    from google.protobuf import json_format, message_factory
    from google.protobuf.message import DecodeError

    file = schema.pool.FindFileByName("schema.proto")
    messages = list(file.message_types_by_name.values())

    def find(indexes: tuple[int, ...]) -> Any:
        try:
            descriptor = messages[indexes[0]]
            for index in indexes[1:]:
                descriptor = [entry for entry in descriptor.nested_types if not entry.GetOptions().map_entry][index]
        except IndexError:
            raise FramingError(f"the schema has no message with the indexes {list(indexes)}") from None
        return message_factory.GetMessageClass(descriptor)

    def decode(data: bytes) -> Any:
        indexes, rest = read_indexes(data)
        message = find(indexes)()
        try:
            message.ParseFromString(rest)
        except DecodeError as error:
            raise ValueMismatchError(f"not a message of type {message.DESCRIPTOR.full_name}: {error}") from error
        return json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=schema.pool)

    def encode(value: Any) -> bytes:
        if not messages:
            raise ValueMismatchError("the schema has no message")
        message = find((0,))()
        try:
            json_format.ParseDict(value, message, descriptor_pool=schema.pool)
        except (json_format.ParseError, TypeError, AttributeError) as error:
            raise ValueMismatchError(f"the schema does not describe the value: {error}") from error
        data: bytes = message.SerializeToString(deterministic=True)
        return write_indexes((0,)) + data

    return decode, encode
