"""Records with keys and values decoded by the schemas of a registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.schemas.framing import KEY_HEADER, VALUE_HEADER, schema_of
from ottla.schemas.registry_client import RegistryRefusedError, RegistryUnreachableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.schemas.registry_client import RegistryClient
    from ottla.schemas.values import Decoder
    from ottla.testing.control.state import StoredRecord


class UndecodableRecordError(ValueError):
    """A key or value with a schema that cannot be had, or that does not describe it; the message has the offset."""


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """A record whose framed key and value are plain Python values: dicts, lists, strings, numbers.

    `key_schema` and `value_schema` are the id (or guid) of the schema; None for a key or value without one, which stays
    bytes.
    """

    offset: int
    timestamp: int
    key: Any
    value: Any
    key_schema: int | str | None
    value_schema: int | str | None
    headers: tuple[tuple[str, bytes | None], ...]


def decode_records(records: Sequence[StoredRecord], client: RegistryClient, position: str) -> list[DecodedRecord]:
    """Decode all records; UndecodableRecordError names the first that cannot be decoded."""
    from ottla.schemas.values import Decoder

    decoder = Decoder(client)
    return [_decode(record, decoder, f"{position} offset {record.offset}") for record in records]


def _decode(record: StoredRecord, decoder: Decoder, position: str) -> DecodedRecord:
    headers = dict(record.headers)

    def decode(data: bytes | None, *, is_key: bool) -> tuple[Any, int | str | None]:
        schema = schema_of(data, headers.get(KEY_HEADER if is_key else VALUE_HEADER))
        if schema is None or data is None:
            return data, None
        try:
            return decoder.decode(data, headers, is_key=is_key), schema
        except (ValueError, RegistryRefusedError, RegistryUnreachableError) as error:
            part = "key" if is_key else "value"
            raise UndecodableRecordError(
                f"{position}: cannot decode the {part} with schema {schema}: {error}"
            ) from error

    key, key_schema = decode(record.key, is_key=True)
    value, value_schema = decode(record.value, is_key=False)
    return DecodedRecord(record.offset, record.timestamp, key, value, key_schema, value_schema, record.headers)
