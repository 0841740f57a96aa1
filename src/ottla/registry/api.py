"""The REST API of Confluent Schema Registry as Starlette routes over a `RegistryService`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from starlette.routing import Route

from ottla import __version__
from ottla.registry import errors, subjects
from ottla.registry.errors import RegistryError
from ottla.registry.records import Reference
from ottla.registry.service import SchemaRequest, parse_version
from ottla.schemas.types import SCHEMA_TYPES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from ottla.registry.records import SchemaVersion
    from ottla.registry.service import Change, RegistryService

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
ACCEPTED: Final = frozenset(
    {
        CONTENT_TYPE,
        "application/vnd.schemaregistry+json",
        "application/json",
        "application/octet-stream",
        "",
    }
)
DEFAULT_LIMIT: Final = 20_000


class RegistryApi:
    """Turns requests into calls of the service; `write` appends the records of a change and returns its result."""

    def __init__(
        self, service: RegistryService, write: Callable[[Callable[[], Change]], Awaitable[Any]], cluster_id: str
    ) -> None:
        self._service = service
        self._cluster = cluster_id
        self._write = write

    def routes(self) -> list[BaseRoute]:
        """Return all routes, those below `/contexts/CONTEXT` included."""
        table: list[tuple[str, str, Callable[[Request], Awaitable[Any]]]] = [
            ("GET", "/subjects", self._subjects),
            ("POST", "/subjects/{subject}", self._lookup),
            ("DELETE", "/subjects/{subject}", self._delete_subject),
            ("GET", "/subjects/{subject}/versions", self._versions),
            ("POST", "/subjects/{subject}/versions", self._register),
            ("GET", "/subjects/{subject}/versions/{version}", self._version),
            ("DELETE", "/subjects/{subject}/versions/{version}", self._delete_version),
            ("GET", "/subjects/{subject}/versions/{version}/schema", self._version_schema),
            ("GET", "/subjects/{subject}/versions/{version}/referencedby", self._referenced_by),
            ("GET", "/subjects/{subject}/metadata", self._latest_with_metadata),
            ("GET", "/schemas", self._schemas),
            ("GET", "/schemas/types", self._types),
            ("GET", "/schemas/ids/{id}", self._by_id),
            ("GET", "/schemas/ids/{id}/schema", self._by_id_schema),
            ("GET", "/schemas/ids/{id}/subjects", self._by_id_subjects),
            ("GET", "/schemas/ids/{id}/versions", self._by_id_versions),
            ("GET", "/schemas/guids/{guid}", self._by_guid),
            ("GET", "/schemas/guids/{guid}/ids", self._by_guid_ids),
            ("POST", "/compatibility/subjects/{subject}/versions", self._check_all),
            ("POST", "/compatibility/subjects/{subject}/versions/{version}", self._check_one),
            ("GET", "/config", self._config),
            ("PUT", "/config", self._set_config),
            ("DELETE", "/config", self._delete_config),
            ("GET", "/config/{subject}", self._config),
            ("PUT", "/config/{subject}", self._set_config),
            ("DELETE", "/config/{subject}", self._delete_config),
            ("GET", "/mode", self._mode),
            ("PUT", "/mode", self._set_mode),
            ("DELETE", "/mode", self._delete_mode),
            ("GET", "/mode/{subject}", self._mode),
            ("PUT", "/mode/{subject}", self._set_mode),
            ("DELETE", "/mode/{subject}", self._delete_mode),
        ]
        top = [("GET", "/", self._root), ("GET", "/contexts", self._contexts)]
        top += [("GET", "/v1/metadata/id", self._cluster_id), ("GET", "/v1/metadata/version", self._server_version)]
        by_path: dict[str, dict[str, Callable[[Request], Awaitable[Any]]]] = {}
        for prefix, entries in (("", top), ("", table), ("/contexts/{context}", table)):
            for method, path, handler in entries:
                by_path.setdefault(prefix + path, {})[method] = handler
        return [Route(path, _endpoint(handlers), methods=[*handlers]) for path, handlers in by_path.items()]

    # Subjects

    async def _subjects(self, request: Request) -> Any:
        prefix = request.query_params.get("subjectPrefix", subjects.WILDCARD)
        if "context" in request.path_params:
            prefix = subjects.in_context(request.path_params["context"], request.query_params.get("subjectPrefix", ""))
        names = self._service.subjects(
            prefix, deleted=_flag(request, "deleted"), deleted_only=_flag(request, "deletedOnly")
        )
        return _page(request, names)

    async def _versions(self, request: Request) -> Any:
        numbers = self._service.versions(
            _subject(request), deleted=_flag(request, "deleted"), deleted_only=_flag(request, "deletedOnly")
        )
        return _page(request, numbers)

    async def _lookup(self, request: Request) -> Any:
        body = await _schema_request(request)
        version = self._service.lookup(
            _subject(request), body, normalize=_flag(request, "normalize"), deleted=_flag(request, "deleted")
        )
        return self._shown(request, version)

    async def _register(self, request: Request) -> Any:
        subject, body, normalize = _subject(request), await _schema_request(request), _flag(request, "normalize")
        version = await self._write(lambda: self._service.register(subject, body, normalize=normalize))
        shown = self._shown(request, version)
        shown.pop("subject")
        return shown

    async def _delete_subject(self, request: Request) -> Any:
        subject, permanent = _subject(request), _flag(request, "permanent")
        return await self._write(lambda: self._service.delete_subject(subject, permanent=permanent))

    async def _delete_version(self, request: Request) -> Any:
        subject, permanent = _subject(request), _flag(request, "permanent")
        number = parse_version(request.path_params["version"])
        return await self._write(lambda: self._service.delete_version(subject, number, permanent=permanent))

    async def _version(self, request: Request) -> Any:
        return self._shown(request, self._requested_version(request))

    async def _version_schema(self, request: Request) -> Any:
        return self._text(request, self._requested_version(request))

    async def _referenced_by(self, request: Request) -> Any:
        return self._service.referenced_by(_subject(request), parse_version(request.path_params["version"]))

    async def _latest_with_metadata(self, request: Request) -> Any:
        names, values = request.query_params.getlist("key"), request.query_params.getlist("value")
        required = dict(zip(names, values, strict=False))
        for version in reversed(self._service.state.active(_subject(request), deleted=_flag(request, "deleted"))):
            properties = (version.metadata or {}).get("properties") or {}
            if all(properties.get(name) == value for name, value in required.items()):
                return self._shown(request, version)
        raise errors.subject_not_found(_subject(request))

    def _requested_version(self, request: Request) -> SchemaVersion:
        number = parse_version(request.path_params["version"])
        return self._service.version(_subject(request), number, deleted=_flag(request, "deleted"))

    # Schemas

    async def _schemas(self, request: Request) -> Any:
        prefix = request.query_params.get("subjectPrefix", subjects.WILDCARD)
        deleted, latest = _flag(request, "deleted"), _flag(request, "latestOnly")
        selected = []
        for subject in self._service.subjects(prefix, deleted=deleted):
            versions = self._service.state.active(subject, deleted=deleted)
            selected += versions[-1:] if latest else versions
        return [self._shown(request, version) for version in _page(request, selected)]

    async def _types(self, request: Request) -> Any:
        return list(SCHEMA_TYPES)

    async def _by_id(self, request: Request) -> Any:
        version = self._service.by_id(_id(request), _id_subject(request))
        shown = self._shown(request, version)
        for name in ("id", "subject", "version"):
            shown.pop(name)
        if request.query_params.get("subject") is not None:
            shown |= {"subject": version.subject, "version": version.version}
        if _flag(request, "fetchMaxId"):
            shown["maxId"] = self._service.state.next_id(_id_subject(request)) - 1
        return shown

    async def _by_id_schema(self, request: Request) -> Any:
        return self._text(request, self._service.by_id(_id(request), _id_subject(request)))

    async def _by_id_subjects(self, request: Request) -> Any:
        uses = self._service.versions_of_id(_id(request), _id_subject(request), deleted=_flag(request, "deleted"))
        return _page(request, sorted({entry["subject"] for entry in uses}))

    async def _by_id_versions(self, request: Request) -> Any:
        uses = self._service.versions_of_id(_id(request), _id_subject(request), deleted=_flag(request, "deleted"))
        return _page(request, uses)

    async def _by_guid(self, request: Request) -> Any:
        version, _ = self._service.by_guid(request.path_params["guid"])
        shown = self._shown(request, version)
        for name in ("id", "subject", "version"):
            shown.pop(name)
        return shown

    async def _by_guid_ids(self, request: Request) -> Any:
        return self._service.by_guid(request.path_params["guid"])[1]

    # Compatibility, configs, modes

    async def _check_all(self, request: Request) -> Any:
        return await self._check(request, None)

    async def _check_one(self, request: Request) -> Any:
        return await self._check(request, parse_version(request.path_params["version"]))

    async def _check(self, request: Request, number: int | None) -> Any:
        body, verbose = await _schema_request(request), _flag(request, "verbose")
        try:
            problems = self._service.check(_subject(request), body, number, normalize=_flag(request, "normalize"))
        except RegistryError as error:
            if error.code != 42201 or not verbose:
                raise
            problems = [error.message]
        return {"is_compatible": not problems, **({"messages": problems} if verbose else {})}

    async def _config(self, request: Request) -> Any:
        return self._service.config(_subject(request), default_to_global=_flag(request, "defaultToGlobal"))

    async def _set_config(self, request: Request) -> Any:
        subject, body = _subject(request), await _body(request)
        return await self._write(lambda: self._service.set_config(subject, body))

    async def _delete_config(self, request: Request) -> Any:
        subject = _subject(request)
        return await self._write(lambda: self._service.delete_config(subject))

    async def _mode(self, request: Request) -> Any:
        return {"mode": self._service.mode(_subject(request), default_to_global=_flag(request, "defaultToGlobal"))}

    async def _set_mode(self, request: Request) -> Any:
        subject, body, force = _subject(request), await _body(request), _flag(request, "force")
        return {"mode": await self._write(lambda: self._service.set_mode(subject, body.get("mode"), force=force))}

    async def _delete_mode(self, request: Request) -> Any:
        subject = _subject(request)
        return {"mode": await self._write(lambda: self._service.delete_mode(subject))}

    # The registry itself

    async def _root(self, request: Request) -> Any:
        return {}

    async def _contexts(self, request: Request) -> Any:
        return _page(request, self._service.state.contexts())

    async def _cluster_id(self, request: Request) -> Any:
        clusters = {"kafka-cluster": self._cluster, "schema-registry-cluster": "schema-registry"}
        return {"scope": {"path": [], "clusters": clusters}}

    async def _server_version(self, request: Request) -> Any:
        return {"version": "8.0.0", "commitId": f"ottla {__version__}"}

    def _text(self, request: Request, version: SchemaVersion) -> Response:
        text = self._service.formatted(version, request.query_params.get("format", ""))
        return Response(text, media_type=CONTENT_TYPE)

    def _shown(self, request: Request, version: SchemaVersion) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "subject": version.subject,
            "version": version.version,
            "id": version.id,
            "guid": version.guid,
            "schemaType": version.type,
        }
        if version.references:
            shown["references"] = [reference.as_json() for reference in version.references]
        if version.metadata:
            shown["metadata"] = version.metadata
        if version.rule_set:
            shown["ruleSet"] = version.rule_set
        shown["schema"] = self._service.formatted(version, request.query_params.get("format", ""))
        if version.timestamp > 0:
            shown["ts"] = version.timestamp
        if version.deleted:
            shown["deleted"] = True
        return shown


def _endpoint(handlers: dict[str, Callable[[Request], Awaitable[Any]]]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if request.method in ("POST", "PUT") and kind not in ACCEPTED:
                raise RegistryError(415, "HTTP 415 Unsupported Media Type")
            method = "GET" if request.method == "HEAD" else request.method
            answer = await handlers[method](request)
        except RegistryError as error:
            answer = _json({"error_code": error.code, "message": error.message}, error.status)
        return answer if isinstance(answer, Response) else _json(answer)

    return endpoint


def _json(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(value, separators=(",", ":")), status_code=status, media_type=CONTENT_TYPE)


def _subject(request: Request) -> str:
    subject = request.path_params.get("subject", "")
    context = request.path_params.get("context")
    if context is not None:
        return subjects.in_context(context, subject)
    return "" if subject in ("__GLOBAL", ":.:") else subjects.normalize(subject)


def _id_subject(request: Request) -> str:
    subject = request.query_params.get("subject", "")
    context = request.path_params.get("context")
    return subjects.in_context(context, subject) if context is not None else subjects.normalize(subject)


def _id(request: Request) -> int:
    text = request.path_params["id"]
    if not (text.isascii() and text.lstrip("-").isdigit() and len(text) < 12):
        raise RegistryError(404, "HTTP 404 Not Found")
    return int(text)


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() == "true"


def _page(request: Request, entries: list[Any]) -> list[Any]:
    def number(name: str, default: int) -> int:
        text = request.query_params.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.lstrip("-").isdigit()):
            raise RegistryError(404, "HTTP 404 Not Found")
        return int(text)

    offset, limit = max(0, number("offset", 0)), number("limit", -1)
    return entries[offset : offset + (limit if limit >= 0 else DEFAULT_LIMIT)]


async def _body(request: Request) -> dict[str, Any]:
    data = await request.body()
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RegistryError(400, f"Unexpected body: {error}" if data else "The request has no body") from None
    if not isinstance(tree, dict):
        raise RegistryError(400, "Cannot deserialize the body: it must be a JSON object")
    return tree


async def _schema_request(request: Request) -> SchemaRequest:
    tree = await _body(request)
    schema = tree.get("schema")
    if not isinstance(schema, str):
        raise errors.invalid_schema("Empty schema" if schema is None else '"schema" must be a string')
    for name, kinds in (("schemaType", str), ("metadata", dict), ("ruleSet", dict), ("version", int), ("id", int)):
        if tree.get(name) is not None and (not isinstance(tree[name], kinds) or isinstance(tree[name], bool)):
            raise RegistryError(400, f'Cannot deserialize the body: "{name}" has a wrong type')
    return SchemaRequest(
        (tree.get("schemaType") or "AVRO").upper(),
        schema,
        _references(tree.get("references")),
        tree.get("metadata"),
        tree.get("ruleSet"),
        tree.get("version") or 0,
        -1 if tree.get("id") is None else tree["id"],
    )


def _references(value: Any) -> tuple[Reference, ...]:
    if value is None:
        return ()
    try:
        references = tuple(Reference(entry["name"], entry["subject"], int(entry["version"])) for entry in value)
    except (TypeError, KeyError, ValueError):
        raise RegistryError(
            400, 'Cannot deserialize the body: "references" is a list of {"name", "subject", "version"}'
        ) from None
    if not all(isinstance(entry.name, str) and isinstance(entry.subject, str) for entry in references):
        raise RegistryError(400, 'Cannot deserialize the body: names and subjects of "references" are strings')
    return references
