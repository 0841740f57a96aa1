"""The form of one operation of the control API: method, path, fields and result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class OperationError(Exception):
    """A request that cannot be executed, with its HTTP status."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class Field(NamedTuple):
    """One field of a body or query, with its JSON type as OpenAPI names it."""

    type: str
    meaning: str
    required: bool = False
    items: str | None = None
    """The type of an array's items."""
    values: tuple[str, ...] = ()
    """The allowed values; empty allows any."""


class Operation(NamedTuple):
    """One method of one path. `run` takes the cluster (or tap), path and query parameters, and the body."""

    method: str
    path: str
    summary: str
    run: Callable[[Any, dict[str, str], Any], Any]
    body: Mapping[str, Field] = {}
    query: Mapping[str, Field] = {}
    returns: Any = None
    """The type of the result."""
