"""Finds the classes of an API by its key; a message module is imported on first use.

The table is generated (`api_table`); the handlers decide which versions a broker advertises.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ottla.protocol.api_table import APIS, Api, ApiKey

if TYPE_CHECKING:
    from ottla.protocol.schema import Message

__all__ = [
    "APIS",
    "Api",
    "ApiKey",
    "find_api",
    "request_class",
    "request_header_version",
    "response_class",
    "response_header_version",
]

_by_key: dict[int, Api] = {api.key: api for api in APIS}
_requests: dict[int, type[Message]] = {}
_responses: dict[int, type[Message]] = {}


def find_api(key: int) -> Api | None:
    """Return the API with this key, or None if Kafka does not have it."""
    return _by_key.get(key)


def _load(key: int) -> None:
    api = _by_key.get(key)
    if api is None:
        raise KeyError(f"there is no API with key {key}")
    module = import_module(f"ottla.protocol.messages.{api.module}")
    _requests[key] = getattr(module, f"{api.name}Request")
    _responses[key] = getattr(module, f"{api.name}Response")


def request_class(key: int) -> type[Message]:
    """Return the request of an API; KeyError if there is no such API."""
    try:
        return _requests[key]
    except KeyError:
        _load(key)
        return _requests[key]


def response_class(key: int) -> type[Message]:
    """Return the response of an API; KeyError if there is no such API."""
    try:
        return _responses[key]
    except KeyError:
        _load(key)
        return _responses[key]


def request_header_version(key: int, version: int) -> int:
    """Return the version of the header before a request: 2 for flexible versions, else 1."""
    return 2 if version >= _by_key[key].first_flexible_version else 1


def response_header_version(key: int, version: int) -> int:
    """Return the version of the header before a response: 1 for flexible versions, else 0.

    For ApiVersions it is always 0: the client does not know the broker's versions yet (KIP-511).
    """
    if key == ApiKey.API_VERSIONS:
        return 0
    return 1 if version >= _by_key[key].first_flexible_version else 0
