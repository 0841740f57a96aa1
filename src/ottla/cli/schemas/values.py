"""Keys and values of `consume` and `produce` that were written with a schema registry: JSON on the command line."""

import json
from typing import Annotated, Any

import typer

from ottla.cli.terminal.output import usage
from ottla.client.reading import Read
from ottla.schemas.registry_client import RegistryClient, RegistryRefusedError, RegistryUnreachableError

RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--registry",
        envvar="OTTLA_REGISTRY",
        metavar="URL",
        help="Read schemas from this registry; for the form `registry`.",
        show_default=False,
    ),
]


class RegistryDecoder:
    """Decodes keys and values of records; the result has JSON in place of the framed bytes."""

    def __init__(self, url: str | None, *, key: bool, value: bool) -> None:
        from ottla.schemas.values import Decoder

        self._decoder = Decoder(RegistryClient(_required(url)))
        self._key = key
        self._value = value

    def decode(self, read: Read) -> Read:
        """Return the record with decoded key and value; ValueError names the record that cannot be decoded."""
        record = read.record
        headers = dict(record.headers)
        key = self._json(read, record.key, headers, is_key=True) if self._key else record.key
        value = self._json(read, record.value, headers, is_key=False) if self._value else record.value
        return read._replace(record=record._replace(key=key, value=value))

    def _json(self, read: Read, data: bytes | None, headers: dict[str, Any], *, is_key: bool) -> bytes | None:
        if data is None:
            return None
        try:
            value = self._decoder.decode(data, headers, is_key=is_key)
        except (ValueError, RegistryRefusedError, RegistryUnreachableError) as error:
            part = "key" if is_key else "value"
            place = f"{read.topic}-{read.partition} offset {read.record.offset}"
            raise ValueError(f"{place}: cannot decode the {part}: {error}") from error
        return json.dumps(value, ensure_ascii=False, default=_plain).encode()


class RegistryEncoder:
    """Encodes JSON under the latest schema of a subject."""

    def __init__(self, url: str | None, subject: str) -> None:
        from ottla.schemas.values import Encoder

        try:
            self._encoder = Encoder(RegistryClient(_required(url)), subject)
        except (RegistryRefusedError, RegistryUnreachableError) as error:
            raise ValueError(str(error)) from error

    def encode(self, text: bytes) -> bytes:
        """Return the framed bytes of a JSON text; ValueError if it is not JSON or not of the schema."""
        return self._encoder.encode(json.loads(text))


def _required(url: str | None) -> str:
    if url is None:
        raise usage("the form `registry` requires --registry URL")
    return url


def _plain(value: object) -> str:
    """Return what JSON has no type for: bytes as Latin-1 text, as Avro's JSON encoding does, the rest as text."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
