"""JSON Schema, drafts 4 to 2020-12: parsing into types and Confluent's compatibility rules.

A schema is first reduced to the types below, as registries do: keywords of several types beside each other become an
`allOf`, a list of types an `anyOf`. `json_difference` then compares two such types. Nothing is fetched: `$ref` leads
into the schema itself or to a registered reference.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import unquote, urldefrag, urljoin

from ottla.schemas.json_changes import LENIENT, STRICT
from ottla.schemas.json_difference import compare
from ottla.schemas.schema import InvalidSchemaError, Schema, load_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OBJECT: Final = (
    "properties", "required", "minProperties", "maxProperties", "dependencies", "dependentRequired", "dependentSchemas",
    "patternProperties", "additionalProperties", "propertyNames", "unevaluatedProperties",
)  # fmt: skip
_ARRAY: Final = (
    "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains",
    "maxContains", "unevaluatedItems",
)  # fmt: skip
_NUMBER: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_STRING: Final = ("minLength", "maxLength", "pattern", "format")
_NEW_DRAFTS: Final = ("2019-09", "2020-12")
_CRITERIA: Final = ("allOf", "anyOf", "oneOf")


@dataclass(eq=False, slots=True)
class Node:
    """A schema reduced to one type; `kind` decides which of the other fields count."""

    kind: str
    json: dict[str, Any] = field(default_factory=dict)
    base: str = ""
    """The name of the document that relative references start from."""
    criterion: str = ""
    """Of `combined`: allOf, anyOf or oneOf."""
    parts: list[Node] = field(default_factory=list)
    """Of `combined` its subschemas; of `not` the one that must not match."""


class JsonSchema(Schema):
    """A parsed JSON schema."""

    type: ClassVar[str] = "JSON"

    def __init__(self, value: Any, documents: Mapping[str, Any]) -> None:
        self.value = value
        self.documents = dict(documents)

    @classmethod
    def parse(cls, text: str, references: Mapping[str, str] | None = None) -> JsonSchema:
        """Parse a schema; `references` has the texts of the schemas that `$ref` may name."""
        value = load_json(text)
        documents = {name: load_json(reference) for name, reference in (references or {}).items()}
        if not isinstance(value, dict | bool):
            raise InvalidSchemaError(f"a JSON schema is an object or a boolean, not {type(value).__name__}")
        _check(value)
        schema = cls(value, documents)
        schema.check_references()
        return schema

    def canonical(self) -> str:
        """Return the JSON without white space, keys in their order."""
        return json.dumps(self.value, separators=(",", ":"), ensure_ascii=False)

    def normalized(self) -> JsonSchema:
        """Return the schema with all keys sorted."""
        return JsonSchema(json.loads(json.dumps(self.value, sort_keys=True)), self.documents)

    def resolved(self) -> str:
        """Return the schema; references stay, because they may be recursive."""
        return self.canonical()

    def differences(self, writer: Schema, *, lenient: bool = False) -> list[str]:
        """Return the incompatible differences in Confluent's words."""
        if not isinstance(writer, JsonSchema):
            return ["Incompatible because of different schema type"]
        allowed = LENIENT if lenient else STRICT
        all_differences = compare(writer.loader, self.loader, allowed)
        return [difference.message() for difference in all_differences if difference.type not in allowed]

    @cached_property
    def loader(self) -> Loader:
        """Return the types of this schema."""
        return Loader(self.value, self.documents)

    def check_references(self) -> None:
        """Raise InvalidSchemaError for a `$ref` that leads nowhere."""
        for base, reference in _references(self.value, ""):
            self.loader.target(reference, base)


class Loader:
    """Reduces schemas to nodes, each once, so that recursive schemas end."""

    def __init__(self, root: Any, documents: Mapping[str, Any]) -> None:
        self._documents = {"": root, **documents}
        if isinstance(root, dict):
            identifier = root.get("$id", root.get("id"))
            if isinstance(identifier, str):
                self._documents.setdefault(urldefrag(identifier).url, root)
        for document in list(self._documents.values()):
            for identifier, value in _identified(document, ""):
                self._documents.setdefault(identifier, value)
        self._is_new_draft = isinstance(root, dict) and any(name in str(root.get("$schema")) for name in _NEW_DRAFTS)
        self._nodes: dict[int, Node] = {}
        self._keep: list[Any] = []

    @property
    def root(self) -> Node:
        """Return the node of the whole schema."""
        return self.node(self._documents[""], "")

    def node(self, value: Any, base: str) -> Node:
        """Return the node of a subschema."""
        if value is True:
            return Node("empty")
        if value is False:
            return Node("false")
        if not isinstance(value, dict):
            raise InvalidSchemaError(f"a schema is an object or a boolean, not {json.dumps(value)[:100]}")
        if id(value) not in self._nodes:
            self._keep.append(value)  # ids of live objects are not reused
            self._nodes[id(value)] = self._reduce(value, base)
        return self._nodes[id(value)]

    def follow(self, node: Node) -> Node:
        """Return the node that a reference leads to."""
        seen = 0
        while node.kind == "reference":
            value, base = self.target(node.json["$ref"], node.base)
            node = self.node(value, base)
            seen += 1
            if seen > 100:
                raise InvalidSchemaError(f"the reference {node.json.get('$ref')} leads to itself")
        return node

    def target(self, reference: str, base: str) -> tuple[Any, str]:
        """Return the subschema that a `$ref` names, and the document it is in."""
        url, fragment = urldefrag(reference)
        absolute = urljoin(base, url) if base else url
        document = next((name for name in (absolute, url) if name in self._documents), None)
        if not url:
            document = base if base in self._documents else ""
        if document is None:
            raise InvalidSchemaError(f"the reference {reference!r} is neither in the schema nor among its references")
        value = self._documents[document]
        if fragment and not fragment.startswith("/"):
            return _anchor(value, fragment, reference), document
        for token in fragment.split("/")[1:]:
            key = unquote(token).replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
                value = value[int(key)]
            else:
                raise InvalidSchemaError(f"the reference {reference!r} leads nowhere: no {key!r}")
        return value, document

    def _reduce(self, value: dict[str, Any], base: str) -> Node:
        if "$ref" in value:
            return Node("reference", value, base)
        if self._is_new_draft:
            value = _as_new_draft(value)
        nodes = [Node("enum", value, base)] if "enum" in value else []
        for criterion in _CRITERIA:
            if criterion in value:
                parts = [self.node(part, base) for part in value[criterion]]
                nodes.append(Node("combined", value, base, criterion, parts))
        if "not" in value:
            nodes.append(Node("not", value, base, parts=[self.node(value["not"], base)]))
        if "const" in value:
            nodes.append(Node("const", value, base))
        nodes += self._typed(value, base)
        if not nodes:
            return Node("empty", value, base)
        return nodes[0] if len(nodes) == 1 else Node("combined", value, base, "allOf", nodes)

    def _typed(self, value: dict[str, Any], base: str) -> list[Node]:
        kind = value.get("type")
        if isinstance(kind, list):
            return [Node("combined", value, base, "anyOf", [_typed_node(entry, value, base) for entry in kind])]
        if kind is not None:
            return [_typed_node(kind, value, base)]
        sniffed = (("object", _OBJECT), ("array", _ARRAY), ("number", _NUMBER), ("string", _STRING))
        return [Node(name, value, base) for name, keywords in sniffed if any(keyword in value for keyword in keywords)]


def _as_new_draft(value: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords that Confluent compares in drafts 2019-09 and 2020-12, for which it has another parser.

    It ignores `$id` and `properties` without entries, and `contains` has a `minContains` of 1.
    """
    kept = {name: entry for name, entry in value.items() if name != "$id" and (name != "properties" or entry)}
    return {"minContains": 1, **kept} if "contains" in kept else kept


def _typed_node(kind: Any, value: dict[str, Any], base: str) -> Node:
    if kind not in ("object", "array", "number", "integer", "string", "boolean", "null"):
        raise InvalidSchemaError(f"unknown type: {kind!r}")
    return Node(kind, value, base)


def _references(value: Any, base: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str):
            yield base, reference
        for keyword, entry in value.items():
            if keyword not in ("enum", "const", "default", "examples"):
                yield from _references(entry, base)
    elif isinstance(value, list):
        for entry in value:
            yield from _references(entry, base)


def _identified(value: Any, base: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        identifier = value.get("$id", value.get("id"))
        if isinstance(identifier, str) and not identifier.startswith("#"):
            base = urljoin(base, identifier)
            yield urldefrag(base).url, value
        for entry in value.values():
            yield from _identified(entry, base)
    elif isinstance(value, list):
        for entry in value:
            yield from _identified(entry, base)


def _anchor(value: Any, name: str, reference: str) -> Any:
    stack = [value]
    while stack:
        entry = stack.pop()
        if isinstance(entry, dict):
            if entry.get("$anchor") == name or entry.get("$id", entry.get("id")) == f"#{name}":
                return entry
            stack += entry.values()
        elif isinstance(entry, list):
            stack += entry
    raise InvalidSchemaError(f"the reference {reference!r} leads nowhere: no anchor {name!r}")


def _check(value: Any) -> None:
    from jsonschema import SchemaError
    from jsonschema.validators import Draft7Validator, validator_for

    try:
        validator_for(value, default=Draft7Validator).check_schema(value)
    except SchemaError as error:
        path = "/".join(str(part) for part in error.absolute_path)
        raise InvalidSchemaError(f"#/{path}: {error.message}") from None
