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
from ottla.testing.http.json_messages import plain
from ottla.testing.http.operations import OPERATIONS, PATH_TYPES, Refused

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from starlette.types import Receive, Scope, Send

    from ottla.testing.control.controlled_cluster import Kit
    from ottla.testing.http.operations import Field, Operation
    from ottla.testing.tap.tap import TapKit

    ControlTarget: TypeAlias = Kit | TapKit

log = logging.getLogger(__name__)


def control_routes(kit: ControlTarget) -> list[BaseRoute]:
    """Return the routes of the control API of a cluster or a tap."""
    from starlette.routing import Route

    return [Route("/{path:path}", ControlApi(kit))]


class ControlApi:
    """The control API as an ASGI application. Operations run on threads of their own, because some of them wait."""

    def __init__(self, kit: ControlTarget) -> None:
        self._kit = kit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; paths are split before they are decoded, so that names may contain slashes."""
        from starlette.requests import Request
        from starlette.responses import Response

        from ottla.server.web import run_in_thread

        request = Request(scope, receive)
        path = scope["raw_path"].decode("ascii").removeprefix(scope.get("root_path", ""))
        query = scope["query_string"].decode("latin-1")
        status, answer = await run_in_thread(
            respond, self._kit, request.method, f"{path}?{query}", await request.body()
        )
        content = json.dumps(answer).encode()
        await Response(content, status, media_type="application/json")(scope, receive, send)


def respond(kit: Any, method: str, target: str, body: bytes) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    path, _, query = target.partition("?")
    offered = [each for each in OPERATIONS if kit.operations is None or f"/{each.path.split('/')[1]}" in kit.operations]
    if method == "GET" and path == "/openapi.json":
        from ottla.testing.http.openapi import openapi

        return 200, openapi(offered)
    fits = [(operation, found) for operation in offered if (found := _fit(operation.path, path)) is not None]
    if not fits:
        return 404, {"error": f"there is nothing at {path}; /openapi.json lists what there is"}
    for operation, found in fits:
        if operation.method == method:
            try:
                given = _parameters(operation, found, query)
                return 200, plain(operation.run(kit, given, _body(operation, body)))
            except Refused as error:
                return error.status, {"error": str(error)}
            except KeyError as error:
                return 404, {"error": f"not found: {error.args[0] if error.args else error}"}
            except KafkaError as error:
                return 409, {"error": str(error)}
            except (ValueError, TypeError, RuntimeError, OverflowError) as error:
                return 400, {"error": str(error)}
            except OSError as error:
                return 409, {"error": str(error)}
            except Exception as error:
                log.exception("%s %s failed", method, path)
                return 500, {"error": f"{type(error).__name__}: {error}"}
    return 405, {"error": f"{path} takes {', '.join(operation.method for operation, _ in fits)}"}


def _fit(pattern: str, path: str) -> dict[str, str] | None:
    wanted, given = pattern.split("/"), path.rstrip("/").split("/")
    if len(wanted) != len(given):
        return None
    found = {}
    for name, value in zip(wanted, given, strict=True):
        if name.startswith("{"):
            found[name[1:-1]] = unquote(value)
        elif name != value:
            return None
    return found


def _parameters(operation: Operation, path: dict[str, str], query: str) -> dict[str, str]:
    """The parts of the path and the query, once they are known to be what they should be."""
    given = _query(query)
    unknown = sorted(set(given) - set(operation.query))
    if unknown:
        raise Refused(400, f"unknown: {', '.join(unknown)}; there are {', '.join(operation.query) or 'none'}")
    kinds = {**PATH_TYPES, **{name: field.type for name, field in operation.query.items()}}
    for name, value in (found := {**path, **given}).items():
        try:
            if kinds.get(name) in ("integer", "number"):
                _ = int(value) if kinds[name] == "integer" else float(value)
        except ValueError:
            raise Refused(400, f"{name}: of type {kinds[name]} is wanted, not {value[:100]!r}") from None
    return found


def _query(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split("&") if part)
    return {unquote(name): unquote(value.replace("+", " ")) for name, _, value in pairs}


def _body(operation: Operation, body: bytes) -> Any:
    if not body.strip():
        given: Any = {}
    else:
        try:
            given = json.loads(body)
        except ValueError as error:
            raise Refused(400, f"the body is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise Refused(400, "the body is a JSON object")
    given = {name: value for name, value in given.items() if value is not None}  # null is as if it were not there
    unknown = sorted(set(given) - set(operation.body))
    missing = sorted(name for name, field in operation.body.items() if field.required and name not in given)
    if unknown:
        raise Refused(400, f"unknown: {', '.join(unknown)}; there are {', '.join(operation.body) or 'no fields'}")
    if missing:
        raise Refused(400, f"missing: {', '.join(missing)}")
    for name, value in given.items():
        if not _is_a(value, operation.body[name].type, operation.body[name].items):
            raise Refused(400, f"{name}: {_described(operation.body[name])} is wanted, not {json.dumps(value)[:100]}")
    return given


def _is_a(value: Any, kind: str, items: str | None = None) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "number":
        return isinstance(value, int | float) and math.isfinite(value)
    if kind == "array":
        return isinstance(value, list) and (items is None or all(_is_a(each, items) for each in value))
    wanted = {"string": str, "integer": int, "object": dict, "boolean": bool}[kind]
    return isinstance(value, wanted)


def _described(field: Field) -> str:
    return f"a list of {field.items}s" if field.items is not None else f"of type {field.type}"
