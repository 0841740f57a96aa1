"""The REST API of Confluent Schema Registry as Starlette routes over a `RegistryService`."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from ottla import __version__
from ottla.registry import errors, subjects
from ottla.registry.access import Right
from ottla.registry.errors import RegistryError
from ottla.registry.requests import body_of, flag, id_of, id_subject_of, page, schema_request_of, subject_of
from ottla.registry.service import parse_version
from ottla.schemas.types import SCHEMA_TYPES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from ottla.registry.access import RegistryAccess
    from ottla.registry.change import Change
    from ottla.registry.records import SchemaVersion
    from ottla.registry.service import Readable, RegistryService, SchemaRequest

    Handler = Callable[[Request], Awaitable[Any]]

log = logging.getLogger(__name__)

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
REFUSAL_SECONDS: Final = 0.1
"""The delay of a refused login, which slows down guessing of passwords."""
CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="schema registry"'}


class RegistryApi:
    """Turns requests into calls of the service.

    `write` appends the records of a change and returns its result. `access` has the users and their rights; None admits
    everyone.
    """

    def __init__(
        self,
        service: RegistryService,
        write: Callable[[Callable[[], Change]], Awaitable[Any]],
        cluster_id: str,
        access: RegistryAccess | None = None,
    ) -> None:
        self._service = service
        self._cluster = cluster_id
        self._write = write
        self._access = access

    def routes(self) -> list[BaseRoute]:
        """Return all routes, those below `/contexts/CONTEXT` included."""
        read, write, admin = Right.READ, Right.WRITE, Right.ADMIN
        # Routes without a right, and those that list, check rights themselves or are open to every user.
        table: list[tuple[str, str, Handler, Right | None]] = [
            ("GET", "/subjects", self._subjects, None),
            ("POST", "/subjects/{subject}", self._lookup, read),
            ("DELETE", "/subjects/{subject}", self._delete_subject, admin),
            ("GET", "/subjects/{subject}/versions", self._versions, read),
            ("POST", "/subjects/{subject}/versions", self._register, write),
            ("GET", "/subjects/{subject}/versions/{version}", self._version, read),
            ("DELETE", "/subjects/{subject}/versions/{version}", self._delete_version, admin),
            ("GET", "/subjects/{subject}/versions/{version}/schema", self._version_schema, read),
            ("GET", "/subjects/{subject}/versions/{version}/referencedby", self._referenced_by, read),
            ("GET", "/subjects/{subject}/metadata", self._latest_with_metadata, read),
            ("GET", "/schemas", self._schemas, None),
            ("GET", "/schemas/types", self._types, None),
            ("GET", "/schemas/ids/{id}", self._by_id, None),
            ("GET", "/schemas/ids/{id}/schema", self._by_id_schema, None),
            ("GET", "/schemas/ids/{id}/subjects", self._by_id_subjects, None),
            ("GET", "/schemas/ids/{id}/versions", self._by_id_versions, None),
            ("GET", "/schemas/guids/{guid}", self._by_guid, None),
            ("GET", "/schemas/guids/{guid}/ids", self._by_guid_ids, None),
            ("POST", "/compatibility/subjects/{subject}/versions", self._check_all, read),
            ("POST", "/compatibility/subjects/{subject}/versions/{version}", self._check_one, read),
            ("GET", "/config", self._config, None),
            ("PUT", "/config", self._set_config, admin),
            ("DELETE", "/config", self._delete_config, admin),
            ("GET", "/config/{subject}", self._config, read),
            ("PUT", "/config/{subject}", self._set_config, admin),
            ("DELETE", "/config/{subject}", self._delete_config, admin),
            ("GET", "/mode", self._mode, None),
            ("PUT", "/mode", self._set_mode, admin),
            ("DELETE", "/mode", self._delete_mode, admin),
            ("GET", "/mode/{subject}", self._mode, read),
            ("PUT", "/mode/{subject}", self._set_mode, admin),
            ("DELETE", "/mode/{subject}", self._delete_mode, admin),
        ]
        top: list[tuple[str, str, Handler, Right | None]] = [
            ("GET", "/", self._root, None),
            ("POST", "/", self._root, None),
            ("GET", "/contexts", self._contexts, None),
            ("DELETE", "/contexts/{context}", self._delete_context, admin),
            ("GET", "/v1/metadata/id", self._cluster_id, None),
            ("GET", "/v1/metadata/version", self._server_version, None),
            ("GET", "/v1/metadata/deployment", self._deployment, None),
        ]
        by_path: dict[str, dict[str, tuple[Handler, Right | None]]] = {}
        for prefix, entries in (("", top), ("", table), ("/contexts/{context}", table)):
            for method, path, handler, right in entries:
                by_path.setdefault(prefix + path, {})[method] = handler, right
        return [Route(path, self._endpoint(handlers), methods=[*handlers]) for path, handlers in by_path.items()]

    def _endpoint(self, handlers: dict[str, tuple[Handler, Right | None]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            handler, right = handlers["GET" if request.method == "HEAD" else request.method]
            try:
                self._authorize(request, right)
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if request.method in ("POST", "PUT") and kind not in ACCEPTED:
                    raise RegistryError(415, "HTTP 415 Unsupported Media Type")
                answer = await handler(request)
            except RegistryError as error:
                if error.status == 401:
                    await asyncio.sleep(REFUSAL_SECONDS)
                return refusal(error)
            except HTTPException:
                raise
            except Exception:
                # Starlette would answer with plain text, which clients of a registry cannot read.
                log.exception("%s %s failed", request.method, request.url.path)
                return refusal(RegistryError(500, "Internal Server Error"))
            return answer if isinstance(answer, Response) else _json(answer)

        return endpoint

    # Rights

    def _authorize(self, request: Request, right: Right | None) -> None:
        """Authenticate the user and check the right that the route requires."""
        if self._access is None:
            return
        user = self._access.user_of(request.headers.get("authorization", ""))
        if user is None:
            raise errors.unauthorized()
        request.state.user = user
        if right is not None:
            self._require(request, right, self._subject(request))

    def _require(self, request: Request, right: Right, subject: str) -> None:
        if self._access is not None and not self._access.may(request.state.user, right, subject):
            raise errors.denied(right.name, subject)

    def _readable(self, request: Request) -> Readable:
        """Return a function that tells whether the user may read a subject."""
        access = self._access
        if access is None:
            return lambda subject: True
        user = request.state.user
        return lambda subject: access.may(user, Right.READ, subject)

    def _subject(self, request: Request) -> str:
        """Return the subject of a path; below `/subjects` the one that an alias leads to."""
        subject = subject_of(request)
        return self._service.resolve_alias(subject) if "/subjects/" in request.url.path else subject

    async def _schema_request(self, request: Request) -> SchemaRequest:
        body = await schema_request_of(request)
        context = subjects.split(self._subject(request))[0]
        for reference in body.references:
            self._require(request, Right.READ, subjects.in_context(context, reference.subject))
        return body

    # Subjects

    async def _subjects(self, request: Request) -> Any:
        prefix = request.query_params.get("subjectPrefix", subjects.WILDCARD)
        if "context" in request.path_params:
            prefix = subjects.in_context(request.path_params["context"], request.query_params.get("subjectPrefix", ""))
        names = self._service.subjects(
            prefix, deleted=flag(request, "deleted"), deleted_only=flag(request, "deletedOnly")
        )
        return page(request, list(filter(self._readable(request), names)))

    async def _versions(self, request: Request) -> Any:
        numbers = self._service.versions(
            self._subject(request), deleted=flag(request, "deleted"), deleted_only=flag(request, "deletedOnly")
        )
        return page(request, numbers)

    async def _lookup(self, request: Request) -> Any:
        body = await self._schema_request(request)
        version = self._service.lookup(
            self._subject(request), body, normalize=flag(request, "normalize"), deleted=flag(request, "deleted")
        )
        return self._shown(request, version)

    async def _register(self, request: Request) -> Any:
        subject, body, normalize = (
            self._subject(request),
            await self._schema_request(request),
            flag(request, "normalize"),
        )
        version = await self._write(lambda: self._service.register(subject, body, normalize=normalize))
        shown = self._shown(request, version)
        shown.pop("subject")
        return shown

    async def _delete_subject(self, request: Request) -> Any:
        subject, permanent = self._subject(request), flag(request, "permanent")
        return await self._write(lambda: self._service.delete_subject(subject, permanent=permanent))

    async def _delete_version(self, request: Request) -> Any:
        subject, permanent = self._subject(request), flag(request, "permanent")
        number = parse_version(request.path_params["version"])
        return await self._write(lambda: self._service.delete_version(subject, number, permanent=permanent))

    async def _version(self, request: Request) -> Any:
        return self._shown(request, self._requested_version(request))

    async def _version_schema(self, request: Request) -> Any:
        return self._text(request, self._requested_version(request))

    async def _referenced_by(self, request: Request) -> Any:
        ids = self._service.referenced_by(
            self._subject(request),
            parse_version(request.path_params["version"]),
            deleted=flag(request, "deleted"),
            readable=self._readable(request),
        )
        return page(request, ids)

    async def _latest_with_metadata(self, request: Request) -> Any:
        names, values = request.query_params.getlist("key"), request.query_params.getlist("value")
        required = dict(zip(names, values, strict=False))
        subject = self._subject(request)
        versions = self._service.state.active(subject, deleted=flag(request, "deleted"))
        if not versions:
            raise errors.subject_not_found(subject)
        for version in reversed(versions):
            properties = (version.metadata or {}).get("properties") or {}
            if all(properties.get(name) == value for name, value in required.items()):
                return self._shown(request, version)
        raise errors.schema_not_found()

    def _requested_version(self, request: Request) -> SchemaVersion:
        number = parse_version(request.path_params["version"])
        return self._service.version(self._subject(request), number, deleted=flag(request, "deleted"))

    # Schemas

    async def _schemas(self, request: Request) -> Any:
        prefix = request.query_params.get("subjectPrefix", subjects.WILDCARD)
        if "context" in request.path_params:
            prefix = subjects.in_context(request.path_params["context"], request.query_params.get("subjectPrefix", ""))
        deleted, latest = flag(request, "deleted"), flag(request, "latestOnly")
        selected: list[SchemaVersion] = []
        for subject in filter(self._readable(request), self._service.subjects(prefix, deleted=deleted)):
            versions = self._service.state.active(subject, deleted=deleted)
            selected += versions[-1:] if latest else versions
        return [self._shown(request, version) for version in page(request, selected)]

    async def _types(self, request: Request) -> Any:
        return list(SCHEMA_TYPES)

    def _version_of_id(self, request: Request) -> SchemaVersion:
        subject = self._service.resolve_alias(id_subject_of(request))
        return self._service.by_id(id_of(request), subject, self._readable(request))

    async def _by_id(self, request: Request) -> Any:
        version = self._version_of_id(request)
        shown = self._shown(request, version)
        for name in ("id", "subject", "version"):
            shown.pop(name)
        if request.query_params.get("subject") is not None:
            shown |= {"subject": version.subject, "version": version.version}
        if flag(request, "fetchMaxId"):
            shown["maxId"] = self._service.state.next_id(id_subject_of(request)) - 1
        return shown

    async def _by_id_schema(self, request: Request) -> Any:
        return self._text(request, self._version_of_id(request))

    def _uses_of_id(self, request: Request) -> list[dict[str, Any]]:
        return self._service.versions_of_id(
            id_of(request),
            self._service.resolve_alias(id_subject_of(request)),
            deleted=flag(request, "deleted"),
            readable=self._readable(request),
        )

    async def _by_id_subjects(self, request: Request) -> Any:
        return page(request, sorted({entry["subject"] for entry in self._uses_of_id(request)}))

    async def _by_id_versions(self, request: Request) -> Any:
        return page(request, self._uses_of_id(request))

    async def _by_guid(self, request: Request) -> Any:
        version, _ = self._service.by_guid(request.path_params["guid"], self._readable(request))
        shown = self._shown(request, version)
        for name in ("id", "subject", "version"):
            shown.pop(name)
        return shown

    async def _by_guid_ids(self, request: Request) -> Any:
        return self._service.by_guid(request.path_params["guid"], self._readable(request))[1]

    # Compatibility, configs, modes

    async def _check_all(self, request: Request) -> Any:
        return await self._check(request, None)

    async def _check_one(self, request: Request) -> Any:
        return await self._check(request, parse_version(request.path_params["version"]))

    async def _check(self, request: Request, number: int | None) -> Any:
        body, verbose = await self._schema_request(request), flag(request, "verbose")
        try:
            problems = self._service.check(self._subject(request), body, number, normalize=flag(request, "normalize"))
        except RegistryError as error:
            if error.code != 42201 or not verbose:
                raise
            problems = [error.message]
        return {"is_compatible": not problems, **({"messages": problems} if verbose else {})}

    async def _config(self, request: Request) -> Any:
        return self._service.settings.config(self._subject(request), default_to_global=flag(request, "defaultToGlobal"))

    async def _set_config(self, request: Request) -> Any:
        subject, body = self._subject(request), await body_of(request)
        return await self._write(lambda: self._service.settings.set_config(subject, body))

    async def _delete_config(self, request: Request) -> Any:
        subject = self._subject(request)
        return await self._write(lambda: self._service.settings.delete_config(subject))

    async def _mode(self, request: Request) -> Any:
        subject = self._subject(request)
        return {"mode": self._service.settings.mode(subject, default_to_global=flag(request, "defaultToGlobal"))}

    async def _set_mode(self, request: Request) -> Any:
        subject, body, force = self._subject(request), await body_of(request), flag(request, "force")
        return {
            "mode": await self._write(lambda: self._service.settings.set_mode(subject, body.get("mode"), force=force))
        }

    async def _delete_mode(self, request: Request) -> Any:
        subject, recursive = self._subject(request), flag(request, "recursive")
        return {"mode": await self._write(lambda: self._service.settings.delete_mode(subject, recursive=recursive))}

    # The registry itself

    async def _root(self, request: Request) -> Any:
        return {}

    async def _contexts(self, request: Request) -> Any:
        prefix, readable = request.query_params.get("contextPrefix", ""), self._readable(request)
        names = [name for name in self._service.state.contexts() if name.startswith(prefix)]
        if self._access is not None:
            seen = {subjects.split(subject)[0] for subject in filter(readable, self._service.state.versions)}
            names = [name for name in names if name in seen or name == subjects.DEFAULT_CONTEXT]
        return page(request, names)

    async def _delete_context(self, request: Request) -> Any:
        context = request.path_params["context"]
        await self._write(lambda: self._service.delete_context(context))
        return Response(status_code=204)

    async def _cluster_id(self, request: Request) -> Any:
        clusters = {"kafka-cluster": self._cluster, "schema-registry-cluster": "schema-registry"}
        return {"scope": {"path": [], "clusters": clusters}}

    async def _server_version(self, request: Request) -> Any:
        return {"version": "8.0.0", "commitId": f"ottla {__version__}"}

    async def _deployment(self, request: Request) -> Any:
        return {"attributes": []}

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


def refusal(error: RegistryError) -> Response:
    """Return the response of a refused request."""
    body = {"error_code": error.code, "message": error.message}
    return _json(body, error.status, CHALLENGE if error.status == 401 else None)


def refuse(problem: HTTPException) -> Response:
    """Return the response of a request that no route accepts: an unknown path, a wrong Host, a body too large."""
    standard = problem.status_code in (404, 405)
    message = f"HTTP {problem.status_code} {problem.detail}" if standard else problem.detail
    return _json({"error_code": problem.status_code, "message": message}, problem.status_code, problem.headers)


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    content = json.dumps(value, separators=(",", ":"))
    return Response(content, status_code=status, headers=dict(headers or {}), media_type=CONTENT_TYPE)
