"""Keys and values of `consume` and `produce` that were written with a schema registry: JSON on the command line."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ottla.cli.terminal.output import usage
from ottla.client.formats import Form
from ottla.client.reading import Read
from ottla.schemas.registry_client import RegistryClient, RegistryRefusedError, RegistryUnreachableError

SCHEMA_TYPES: Final = {Form.AVRO: "AVRO", Form.JSON_SCHEMA: "JSON", Form.PROTOBUF: "PROTOBUF"}
REGISTRY_FORMS: Final = frozenset({*SCHEMA_TYPES, Form.REGISTRY})
FORM_HELP: Final = "avro, json-schema and protobuf are JSON here and framed bytes in Kafka; registry is any of them"


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """The registry that has the schemas of keys and values: `add_command` expands it to one option per field."""

    url: Annotated[
        str | None,
        typer.Option(
            "--registry",
            envvar="OTTLA_REGISTRY",
            metavar="URL",
            help="Read schemas from this registry, such as http://localhost:8081 or https://user:password@host.",
            show_default=False,
        ),
    ] = None
    ca: Annotated[
        str | None,
        typer.Option(
            "--registry-ca",
            envvar="OTTLA_REGISTRY_CA",
            metavar="FILE",
            help="Trust the CA certificates of this PEM file for https.",
            show_default="the system's",
        ),
    ] = None

    def client(self) -> RegistryClient:
        """Return a client of the registry; a usage error without a URL."""
        if self.url is None:
            raise usage("the forms avro, json-schema, protobuf and registry require --registry URL")
        return RegistryClient(self.url, ca_file=self.ca)


class RegistryDecoder:
    """Decodes keys and values of records; the result has JSON in place of the framed bytes."""

    def __init__(self, options: RegistryOptions, *, key: Form | None, value: Form | None) -> None:
        from ottla.schemas.values import Decoder

        self._decoder = Decoder(options.client())
        self._key = key if key in REGISTRY_FORMS else None
        self._value = value if value in REGISTRY_FORMS else None

    def decode(self, read: Read) -> Read:
        """Return the record with decoded key and value; ValueError names the record that cannot be decoded."""
        record = read.record
        headers = dict(record.headers)
        key = record.key if self._key is None else self._json(read, record.key, headers, self._key, is_key=True)
        value = record.value
        if self._value is not None:
            value = self._json(read, value, headers, self._value, is_key=False)
        return read._replace(record=record._replace(key=key, value=value))

    def _json(
        self, read: Read, data: bytes | None, headers: dict[str, Any], form: Form, *, is_key: bool
    ) -> bytes | None:
        if data is None:
            return None
        try:
            codec, payload = self._decoder.find(data, headers, is_key=is_key)
            _check_type(codec.schema.type, form)
            value = codec.decode(payload)
        except (ValueError, RegistryRefusedError, RegistryUnreachableError) as error:
            part = "key" if is_key else "value"
            position = f"{read.topic}-{read.partition} offset {read.record.offset}"
            raise ValueError(f"{position}: cannot decode the {part}: {error}") from error
        return json.dumps(value, ensure_ascii=False, default=_plain).encode()


class RegistryEncoder:
    """Encodes JSON under the latest schema of a subject, or under one that it registers first."""

    def __init__(self, options: RegistryOptions, subject: str, form: Form, schema_file: str | None = None) -> None:
        from ottla.schemas.values import Encoder

        client = options.client()
        try:
            if schema_file is not None:
                text = Path(schema_file).read_text(encoding="utf-8")
                client.register(subject, {"schema": text, "schemaType": SCHEMA_TYPES[form]})
            self._encoder = Encoder(client, subject)
            _check_type(self._encoder.schema.type, form)
        except (RegistryRefusedError, RegistryUnreachableError, OSError, UnicodeDecodeError) as error:
            raise ValueError(f"subject {subject}: {error}") from error
        except ValueError as error:
            raise ValueError(f"subject {subject}: {error}") from error

    def encode(self, text: bytes) -> bytes:
        """Return the framed bytes of a JSON text; ValueError if it is not JSON or not of the schema."""
        return self.encode_value(json.loads(text))

    def encode_value(self, value: Any) -> bytes:
        """Return the framed bytes of a JSON value; ValueError if it is not of the schema."""
        return self._encoder.encode(value)


def _check_type(schema_type: str, form: Form) -> None:
    if form is not Form.REGISTRY and SCHEMA_TYPES[form] != schema_type:
        name = next(name for name, kind in SCHEMA_TYPES.items() if kind == schema_type)
        raise ValueError(f"the schema is {name}, not {form}")


def _plain(value: object) -> str:
    """Return what JSON has no type for: bytes as Latin-1 text, as Avro's JSON encoding does, the rest as text."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
