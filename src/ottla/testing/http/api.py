"""The control API: all that the test kit does, over HTTP, for tests in any language.

`ottla serve --control PORT` and `Cluster(control=PORT)` serve it. `/openapi.json` describes it, derived from the same
table that answers requests. `server.web` decides who may send requests.
"""

from __future__ import annotations

import json
import logging
import math
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from ottla.protocol.errors import KafkaError
from ottla.testing.http.json_messages import to_json
from ottla.testing.http.operation import OperationError
from ottla.testing.http.operations import OPERATIONS, PATH_TYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import BaseRoute
    from starlette.types import Receive, Scope, Send

    from ottla.testing.control.controlled_cluster import ControlledCluster
    from ottla.testing.http.operation import Field, Operation
    from ottla.testing.tap.tap import Tap

    ControlTarget: TypeAlias = ControlledCluster | Tap

log = logging.getLogger(__name__)

TAP_PATHS = ("/rules", "/requests")
"""The paths that a tap serves: it has rules and requests, but no cluster state."""


def control_routes(target: ControlTarget, paths: Sequence[str] | None = None) -> list[BaseRoute]:
    """Return the routes of the control API of a cluster or a tap; `paths` limits it to operations under these."""
    from starlette.routing import Route

    operations = [
        operation
        for operation in OPERATIONS
        if paths is None or any(f"{operation.path}/".startswith(f"{path}/") for path in paths)
    ]
    return [Route("/{path:path}", ControlApi(target, operations))]


class ControlApi:
    """The control API as an ASGI application. Operations run on threads of their own, because some of them wait."""

    def __init__(self, target: ControlTarget, operations: Sequence[Operation] = OPERATIONS) -> None:
        self._target = target
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Paths are split before they are decoded, so that names may contain slashes."""
        from starlette.requests import Request
        from starlette.responses import Response

        from ottla.server.web import run_in_thread

        request = Request(scope, receive)
        path = scope["raw_path"].decode("ascii").removeprefix(scope.get("root_path", ""))
        query = scope["query_string"].decode("latin-1")
        body = await request.body()
        status, response = await run_in_thread(self.respond, request.method, path, query, body)
        await Response(json.dumps(response).encode(), status, media_type="application/json")(scope, receive, send)

    def respond(self, method: str, path: str, query: str, body: bytes) -> tuple[int, Any]:
        """Run the operation of a request, and return the status and the JSON value of the response."""
        if method == "GET" and path == "/openapi.json":
            from ottla.testing.http.openapi import openapi

            return 200, openapi(self._operations)
        matching = [
            (operation, parameters)
            for operation in self._operations
            if (parameters := _match_path(operation.path, path)) is not None
        ]
        if not matching:
            return 404, {"error": f"there is nothing at {path}; /openapi.json lists all paths"}
        for operation, parameters in matching:
            if operation.method == method:
                try:
                    arguments = _read_parameters(operation, parameters, query)
                    return 200, to_json(operation.run(self._target, arguments, _read_body(operation, body)))
                except OperationError as error:
                    return error.status, {"error": str(error)}
                except KeyError as error:
                    return 404, {"error": f"not found: {error.args[0] if error.args else error}"}
                except (KafkaError, OSError) as error:
                    return 409, {"error": str(error)}
                except (ValueError, TypeError, RuntimeError, OverflowError) as error:
                    return 400, {"error": str(error)}
                except Exception as error:
                    log.exception("%s %s failed", method, path)
                    return 500, {"error": f"{type(error).__name__}: {error}"}
        return 405, {"error": f"{path} supports {', '.join(operation.method for operation, _ in matching)}"}


def _match_path(pattern: str, path: str) -> dict[str, str] | None:
    """Return the path parameters, or None if the path does not match the pattern."""
    names, values = pattern.split("/"), path.rstrip("/").split("/")
    if len(names) != len(values):
        return None
    parameters = {}
    for name, value in zip(names, values, strict=True):
        if name.startswith("{"):
            parameters[name[1:-1]] = unquote(value)
        elif name != value:
            return None
    return parameters


def _read_parameters(operation: Operation, path: dict[str, str], query: str) -> dict[str, str]:
    """Return path and query parameters; OperationError if one is unknown or has the wrong type."""
    values = _parse_query(query)
    unknown = sorted(set(values) - set(operation.query))
    if unknown:
        raise OperationError(400, f"unknown: {', '.join(unknown)}; known: {', '.join(operation.query) or 'none'}")
    missing = sorted(name for name, field in operation.query.items() if field.required and name not in values)
    if missing:
        raise OperationError(400, f"missing: {', '.join(missing)}")
    types = {**PATH_TYPES, **{name: field.type for name, field in operation.query.items()}}
    parameters = {**path, **values}
    for name, value in parameters.items():
        try:
            if types.get(name) in ("integer", "number"):
                _ = int(value) if types[name] == "integer" else float(value)
        except ValueError:
            raise OperationError(400, f"{name}: must be of type {types[name]}, not {value[:100]!r}") from None
    return parameters


def _parse_query(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split("&") if part)
    return {unquote(name): unquote(value.replace("+", " ")) for name, _, value in pairs}


def _read_body(operation: Operation, body: bytes) -> Any:
    """Return the fields of a JSON body; OperationError if one is unknown, missing or has the wrong type."""
    if not body.strip():
        fields: Any = {}
    else:
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise OperationError(400, f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise OperationError(400, "the body must be a JSON object")
    fields = {name: value for name, value in fields.items() if value is not None}  # null means the default
    unknown = sorted(set(fields) - set(operation.body))
    missing = sorted(name for name, field in operation.body.items() if field.required and name not in fields)
    if unknown:
        raise OperationError(400, f"unknown: {', '.join(unknown)}; known: {', '.join(operation.body) or 'none'}")
    if missing:
        raise OperationError(400, f"missing: {', '.join(missing)}")
    for name, value in fields.items():
        field = operation.body[name]
        if not _has_type(value, field.type, field.items):
            raise OperationError(400, f"{name}: must be {_describe_type(field)}, not {json.dumps(value)[:100]}")
    return fields


def _has_type(value: Any, kind: str, items: str | None = None) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "number":
        return isinstance(value, int | float) and math.isfinite(value)
    if kind == "array":
        return isinstance(value, list) and (items is None or all(_has_type(item, items) for item in value))
    return isinstance(value, {"string": str, "integer": int, "object": dict, "boolean": bool}[kind])


def _describe_type(field: Field) -> str:
    return f"a list of {field.items}s" if field.items is not None else f"of type {field.type}"
