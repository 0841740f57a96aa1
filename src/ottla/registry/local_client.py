"""Reads schemas from a registry of this process without HTTP, users and TLS."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from ottla.registry.errors import RegistryError
from ottla.registry.service import parse_version
from ottla.schemas.registry_client import RegistryClient, RegistryRefusedError, RegistryUnreachableError

if TYPE_CHECKING:
    from ottla.registry.records import SchemaVersion
    from ottla.registry.service import RegistryService

_ID: Final = re.compile(r"/schemas/ids/(\d+)")
_GUID: Final = re.compile(r"/schemas/guids/([0-9a-f-]+)")
_VERSION: Final = re.compile(r"/subjects/([^/]+)/versions/([^/]+)")
_SECONDS: Final = 60.0


class LocalRegistryClient(RegistryClient):
    """A client for decoding: it reads schemas by id, guid and version, and nothing else."""

    def __init__(self, service: RegistryService, loop: asyncio.AbstractEventLoop, url: str) -> None:
        super().__init__(url)
        self._service = service
        self._loop = loop

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return a schema; the registry's loop reads it, because only that loop changes the state."""

        async def read() -> SchemaVersion:
            return self._read(path)

        assert method == "GET"
        try:
            version = asyncio.run_coroutine_threadsafe(read(), self._loop).result(_SECONDS)
        except RegistryError as error:
            raise RegistryRefusedError(error.code, error.message) from None
        except (RuntimeError, TimeoutError) as error:
            raise RegistryUnreachableError("the schema registry of this process has stopped") from error
        references = [reference.as_json() for reference in version.references]
        return {
            "subject": version.subject,
            "version": version.version,
            "id": version.id,
            "schemaType": version.type,
            "schema": version.schema,
            "references": references,
        }

    def _read(self, path: str) -> SchemaVersion:
        if match := _ID.fullmatch(path):
            return self._service.by_id(int(match[1]))
        if match := _GUID.fullmatch(path):
            return self._service.by_guid(match[1])[0]
        match = _VERSION.fullmatch(path)
        assert match is not None, path
        return self._service.version(unquote(match[1]), parse_version(unquote(match[2])), deleted=True)
