"""The options of typed columns: formats, the registry, the reader's schema, undecodable records, evolution.

Parses only; `reader` asks the registry.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.schemas.registry_client import RegistryClient
from ottla.spark.options import OptionError

if TYPE_CHECKING:
    from ottla.spark.options import Options

FORMATS: Final = ("avro", "json-schema", "protobuf", "registry")
SCHEMA_TYPES: Final = {"avro": "AVRO", "json-schema": "JSON", "protobuf": "PROTOBUF"}
ERRORS: Final = ("fail", "null", "column")
EVOLUTIONS: Final = ("report", "stop", "widen")
ID_LOCATIONS: Final = ("prefix", "header")
REGISTRY_OPTIONS: Final = (
    "schemaRegistryUrl",
    "schemaRegistryUser",
    "schemaRegistryPassword",
    "schemaRegistryCa",
    "schemaRegistryCertificate",
    "schemaRegistryKey",
)
_PER_COLUMN: Final = ("Format", "Subject", "Schema", "Message", "Errors")
VALUE_OPTIONS: Final = (
    *REGISTRY_OPTIONS,
    *(f"{column}{name}" for column in ("value", "key") for name in _PER_COLUMN),
    "schemaEvolution",
    "schemaIdLocation",
)


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Where the registry is and how to log in; sent to executors."""

    url: str
    user: str | None = None
    password: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    @classmethod
    def parse(cls, options: Options) -> RegistrySettings:
        """Parse the options that begin with schemaRegistry."""
        settings = cls(
            options.required("schemaRegistryUrl", "http://localhost:8081"),
            *(options.text(name) for name in REGISTRY_OPTIONS[1:]),
        )
        if settings.key is not None and settings.certificate is None:
            raise OptionError("schemaRegistryKey requires schemaRegistryCertificate")
        if (settings.user is None) != (settings.password is None):
            raise OptionError("schemaRegistryUser and schemaRegistryPassword require each other")
        settings.client()
        return settings

    def client(self) -> RegistryClient:
        """Return a client; OptionError for a malformed URL or an unreadable certificate."""
        context = None
        try:
            if self.ca is not None or self.certificate is not None:
                context = ssl.create_default_context(cafile=self.ca)
                if self.certificate is not None:
                    context.load_cert_chain(self.certificate, self.key)
            login = None if self.user is None else (self.user, self.password or "")
            return RegistryClient(self.url, login=login, context=context)
        except ValueError as error:
            raise OptionError(f"schemaRegistryUrl: {error}") from None
        except OSError as error:
            raise OptionError(f"schemaRegistryCa, schemaRegistryCertificate or schemaRegistryKey: {error}") from None


@dataclass(frozen=True, slots=True)
class ReaderSchema:
    """The schema by which a column is read: its text with references, and its origin in the registry if it has one."""

    type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    schema_id: int | None = None
    subject: str | None = None
    version: int | None = None
    message: str | None = None
    """The full name of the Protobuf message; the first of the file if None."""


@dataclass(frozen=True, slots=True)
class ColumnFormat:
    """How the column `value` or `key` is decoded; `reader` is None until the registry was asked."""

    column: str
    format: str
    registry: RegistrySettings
    schema: str = "latest"
    subject: str | None = None
    message: str | None = None
    errors: str = "fail"
    evolution: str = "report"
    id_in_header: bool = False
    reader: ReaderSchema | None = None

    @property
    def columns(self) -> tuple[str, str | None, str | None]:
        """The columns that this format fills: the decoded one, errors, added fields."""
        return self.column, self.error_column, self.added_column

    @property
    def error_column(self) -> str | None:
        """The column for the reason and the bytes of undecodable records, if requested."""
        return f"{self.column}Error" if self.errors == "column" else None

    @property
    def added_column(self) -> str | None:
        """The column for fields that the reader's schema has not, as JSON, if requested."""
        return f"{self.column}Added" if self.evolution == "widen" else None


def parse_formats(options: Options) -> tuple[ColumnFormat, ...]:
    """Return the formats of `value` and `key`; options without a format are refused."""
    formats = tuple(
        _parse_format(options, column) for column in ("value", "key") if options.text(f"{column}Format") is not None
    )
    for column in ("value", "key"):
        for name in _PER_COLUMN[1:]:
            if f"{column}{name}" in options and f"{column}Format" not in options:
                raise OptionError(f"{column}{name} requires {column}Format")
    if not formats:
        for name in VALUE_OPTIONS:
            if name in options:
                raise OptionError(f'{name} requires a format, for example .option("valueFormat", "avro")')
    return formats


def _parse_format(options: Options, column: str) -> ColumnFormat:
    schema = options.text(f"{column}Schema") or "latest"
    if "schemaEvolution" in options and schema.strip() != "latest":
        raise OptionError(f"schemaEvolution requires {column}Schema=latest: any other schema leaves fields out")
    return ColumnFormat(
        column,
        options.choice(f"{column}Format", FORMATS, "registry"),
        RegistrySettings.parse(options),
        schema.strip(),
        options.text(f"{column}Subject"),
        options.text(f"{column}Message"),
        options.choice(f"{column}Errors", ERRORS, ERRORS[0]),
        options.choice("schemaEvolution", EVOLUTIONS, EVOLUTIONS[0]),
        options.choice("schemaIdLocation", ID_LOCATIONS, ID_LOCATIONS[0]) == "header",
    )
