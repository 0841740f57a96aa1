"""Reads the parts of requests: subjects, ids, flags, pages and bodies, with Confluent's errors for malformed ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.registry import errors, subjects
from ottla.registry.errors import RegistryError
from ottla.registry.metadata import check_metadata, check_rule_set
from ottla.registry.records import Reference
from ottla.registry.service import SchemaRequest

if TYPE_CHECKING:
    from starlette.requests import Request

T = TypeVar("T")
DEFAULT_LIMIT: Final = 20_000
MAX_ID: Final = 2**31 - 1
MAX_REFERENCES: Final = 1000


def subject_of(request: Request) -> str:
    """Return the subject that a path names; empty for the global config and mode."""
    subject = request.path_params.get("subject", "")
    context = request.path_params.get("context")
    if context is not None:
        return subjects.in_context(context, subject)
    return "" if subject in ("__GLOBAL", ":.:") else subjects.normalize(subject)


def id_subject_of(request: Request) -> str:
    """Return the subject whose context an id belongs to."""
    subject = request.query_params.get("subject", "")
    context = request.path_params.get("context")
    return subjects.in_context(context, subject) if context is not None else subjects.normalize(subject)


def id_of(request: Request) -> int:
    """Return the id of a path; 404 if it is not an integer, as for a path that does not exist."""
    return _integer(request.path_params["id"])


def flag(request: Request, name: str) -> bool:
    """Return whether a query parameter is true."""
    return request.query_params.get(name, "").lower() == "true"


def page(request: Request, entries: list[T]) -> list[T]:
    """Return the entries that `offset` and `limit` select."""
    offset, limit = (
        _integer(request.query_params.get(name) or default) for name, default in (("offset", "0"), ("limit", "-1"))
    )
    start = max(0, offset)
    return entries[start : start + (limit if limit >= 0 else DEFAULT_LIMIT)]


def _integer(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10) or int(digits) > MAX_ID:
        raise RegistryError(404, "HTTP 404 Not Found")
    return int(text)


async def body_of(request: Request) -> dict[str, Any]:
    """Return the body; 400 with the position if it is not JSON, or not an object."""
    data = await request.body()
    if not data:
        raise RegistryError(422, "The request has no body")
    try:
        tree = json.loads(data, parse_constant=_refuse_constant)
    except RecursionError:
        raise RegistryError(400, "Cannot deserialize the body: it nests too deeply") from None
    except ValueError as error:
        raise RegistryError(400, f"Cannot deserialize the body: {error}") from None
    if not isinstance(tree, dict):
        raise RegistryError(400, "Cannot deserialize the body: it is a JSON object")
    return tree


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


async def schema_request_of(request: Request) -> SchemaRequest:
    """Return the body of a request with a schema."""
    tree = await body_of(request)
    texts = {name: _field(tree, name, str, "a string") for name in ("schema", "schemaType")}
    version, schema_id = (_field(tree, name, int, "an integer") for name in ("version", "id"))
    if version is not None and not -1 <= version <= MAX_ID:
        raise errors.invalid_version(version)
    if schema_id is not None and not -1 <= schema_id <= MAX_ID:
        raise RegistryError(400, f'Cannot deserialize the body: "id" is not between 0 and {MAX_ID}')
    return SchemaRequest(
        (texts["schemaType"] or "AVRO").upper(),
        texts["schema"] or "",
        _references(tree.get("references")),
        check_metadata(tree.get("metadata"), "metadata"),
        check_rule_set(tree.get("ruleSet"), "ruleSet"),
        version or 0,
        -1 if schema_id is None else schema_id,
    )


def _field(tree: dict[str, Any], name: str, kind: type, shape: str) -> Any:
    value = tree.get(name)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise RegistryError(400, f'Cannot deserialize the body: "{name}" is {shape}')
    return value


def _references(value: Any) -> tuple[Reference, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise RegistryError(400, 'Cannot deserialize the body: "references" is a list of objects')
    if len(value) > MAX_REFERENCES:
        raise errors.invalid_schema(f"{len(value)} references; at most {MAX_REFERENCES} are read")
    references = []
    for index, entry in enumerate(value):
        field = f"references[{index}]"
        name, subject = (_field(entry, part, str, "a string") for part in ("name", "subject"))
        version = _field(entry, "version", int, "an integer")
        if name is None or subject is None or version is None:
            raise RegistryError(400, f'Cannot deserialize the body: "{field}" has a name, a subject and a version')
        if version != -1 and not 0 < version <= MAX_ID:
            raise errors.invalid_version(version)
        references.append(Reference(name, subject, version))
    return tuple(references)
