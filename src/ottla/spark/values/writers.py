"""The schemas that records were written with, fetched from the registry once per Python process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ottla.schemas.registry_client import RegistryRefusedError, RegistryUnreachableError
from ottla.schemas.schema import InvalidSchemaError
from ottla.schemas.values import ValueMismatchError, fetch_schema

if TYPE_CHECKING:
    from ottla.schemas.schema import Schema
    from ottla.spark.values.options import RegistrySettings

MAX_UNKNOWN: Final = 1000
"""Ids that a task looks up in vain: data with random ids must not cause a request for each record."""
ATTEMPTS: Final = 4
_schemas: dict[tuple[RegistrySettings, int | str], Schema] = {}


class UnknownSchemaError(ValueError):
    """A schema id or guid that the registry has not, or a schema that cannot be parsed."""


class WriterSchemas:
    """Looks up schemas for one task; ids that are unknown are asked for once."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._unknown: dict[int | str, str] = {}

    def get(self, identifier: int | str) -> Schema:
        """Return the schema of an id or guid; UnknownSchemaError if there is none."""
        known = _schemas.get((self._settings, identifier))
        if known is not None:
            return known
        reason = self._unknown.get(identifier)
        if reason is None and len(self._unknown) >= MAX_UNKNOWN:
            reason = f"schema id {identifier} was not looked up, after {MAX_UNKNOWN} unknown ids"
        if reason is not None:
            raise UnknownSchemaError(reason)
        try:
            schema = self._fetch(identifier)
        except (RegistryRefusedError, InvalidSchemaError, ValueMismatchError) as error:
            if isinstance(error, RegistryRefusedError) and not error.is_missing:
                raise  # the user may not read it, for example: that is no property of the record
            self._unknown[identifier] = f"schema id {identifier}: {error}"
            raise UnknownSchemaError(self._unknown[identifier]) from error
        _schemas[self._settings, identifier] = schema
        return schema

    def _fetch(self, identifier: int | str) -> Schema:
        """Fetch a schema; a registry that restarts is asked again."""
        kind = "ids" if isinstance(identifier, int) else "guids"
        attempt = 1
        while True:
            client = self._settings.client()
            try:
                return fetch_schema(client, client.call("GET", f"/schemas/{kind}/{identifier}"))
            except RegistryUnreachableError:
                if attempt == ATTEMPTS:
                    raise
                time.sleep(0.5 * attempt)
                attempt += 1
