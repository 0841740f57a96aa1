"""The table of APIs: key, versions, ACL check, handler. Dispatch, ApiVersions and docs/apis.md derive from it."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.handlers.access import Access
    from ottla.handlers.splitting import Split
    from ottla.protocol.releases import Release

Handler = Callable[..., Any]
OnError = Callable[[Any, int, ErrorCode, str | None], Any]


@dataclass(slots=True, frozen=True)
class Api:
    """One API as ottla serves it."""

    key: int
    versions: range
    handler: Handler
    on_error: OnError
    advertised: range
    acl: Access
    split: Split | None = None

    @property
    def name(self) -> str:
        """Return the handler's name."""
        return self.handler.__name__


_apis: dict[int, Api] = {}


def api(
    key: int,
    *,
    versions: tuple[int, int],
    acl: Access,
    on_error: OnError,
    advertised: tuple[int, int] | None = None,
    split: Split | None = None,
) -> Callable[[Handler], Handler]:
    """Register a handler for all of `versions`.

    `acl` declares the required operations; Dispatch checks those of the whole request before it calls the handler.
    `on_error(request, version, code, message)` returns the response for an error of the whole request. `advertised`
    differs from `versions` only where Kafka advertises versions that it rejects. `split` tells how Dispatch divides a
    large request: the handler is then called for parts of it.
    """

    def register(handler: Handler) -> Handler:
        assert key not in _apis, f"two handlers for API {key}"
        served = range(versions[0], versions[1] + 1)
        shown = range(advertised[0], advertised[1] + 1) if advertised else served
        _apis[key] = Api(key, served, handler, on_error, shown, acl, split)
        return handler

    return register


@functools.cache
def _import_handlers() -> None:
    package = importlib.import_module("ottla.handlers")
    for module in sorted(name for _, name, _ in pkgutil.iter_modules(package.__path__)):
        if module[0] == "k" and module[1:3].isdigit():
            importlib.import_module(f"ottla.handlers.{module}")


def apis(release: Release | None = None) -> dict[int, Api]:
    """Return every API by key, in order; with a release only those that its brokers had."""
    _import_handlers()
    registered = dict(sorted(_apis.items()))
    if release is None:
        return registered
    narrowed = (
        replace(
            entry,
            versions=release.restrict(entry.key, entry.versions),
            advertised=release.restrict(entry.key, entry.advertised),
        )
        for entry in registered.values()
    )
    return {entry.key: entry for entry in narrowed if entry.versions}


def kafka_error(error: BaseException) -> tuple[ErrorCode, str | None]:
    """Return the error code and message that a client gets for an exception."""
    if isinstance(error, KafkaError):
        return error.code, error.message
    return ErrorCode.UNKNOWN_SERVER_ERROR, None
