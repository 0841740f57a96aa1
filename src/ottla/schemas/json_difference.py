"""Differences between two JSON schemas: Confluent's SchemaDiff.

`compare` walks both schemas at once. Pairs under way count as equal, so that recursive schemas end; a pass that relied
on this is repeated with the pairs found incompatible, until nothing changes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import re2  # type: ignore[import-untyped]

from ottla.schemas.json_changes import STRICT, Difference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.schemas.json_schema import Loader, Node


def compare(original: Loader, update: Loader, allowed: frozenset[str] = STRICT) -> list[Difference]:
    """Return the differences of an updated schema to the original one."""
    known: dict[tuple[int, int], list[Difference]] = {}
    while True:
        walk = _Walk(original, update, allowed, known)
        differences = walk.compare(original.root, update.root)
        incompatible = {pair: result for pair, result in walk.results.items() if not walk.is_compatible(result)}
        if not walk.assumed or incompatible.keys() == known.keys():
            return differences
        known = incompatible


class _Walk:
    def __init__(
        self, original: Loader, update: Loader, allowed: frozenset[str], known: dict[tuple[int, int], list[Difference]]
    ) -> None:
        self._original = original
        self._update = update
        self._allowed = allowed
        self._known = known
        self._under_way: set[tuple[int, int]] = set()
        self.results: dict[tuple[int, int], list[Difference]] = {}
        self._nodes: list[Node] = []
        self.assumed = False
        self._swapped = False

    def is_compatible(self, differences: Iterable[Difference]) -> bool:
        return all(difference.type in self._allowed for difference in differences)

    def compare(self, original: Node | None, update: Node | None) -> list[Difference]:
        """Return the differences with paths that start at this pair."""
        if original is None or update is None:
            if original is update:
                return []
            return [Difference("SCHEMA_ADDED" if original is None else "SCHEMA_REMOVED", ())]
        first, second = (self._update, self._original) if self._swapped else (self._original, self._update)
        original, update = first.follow(original), second.follow(update)
        pair = (id(original), id(update))
        if pair in self.results:
            return self.results[pair]
        if pair in self._under_way:
            if pair not in self._known:
                self.assumed = True
            return self._known.get(pair, [])
        self._under_way.add(pair)
        self._nodes += [original, update]  # ids of live objects are not reused
        try:
            self.results[pair] = self._types(original, update)
        finally:
            self._under_way.discard(pair)
        return self.results[pair]

    def _types(self, original: Node, update: Node) -> list[Difference]:
        if original.kind != "combined" and update.kind == "combined":
            if len(update.parts) == 1 or update.criterion in ("anyOf", "oneOf"):
                for part in update.parts:
                    differences = self.compare(original, part)
                    if self.is_compatible(differences):
                        return (
                            differences
                            if len(update.parts) == 1
                            else [*differences, Difference("SUM_TYPE_EXTENDED", ())]
                        )
        elif (
            original.kind == "combined"
            and update.kind != "combined"
            and (len(original.parts) == 1 or original.criterion == "allOf")
        ):
            for part in original.parts:
                differences = self.compare(part, update)
                if self.is_compatible(differences):
                    return (
                        differences
                        if len(original.parts) == 1
                        else [*differences, Difference("PRODUCT_TYPE_NARROWED", ())]
                    )
        if _class(original) != _class(update):
            if original.kind == "false" or update.kind == "empty":
                return []
            if original.json.get("connect.type") == update.json.get("connect.type") == "bytes":
                return []
            return [Difference("TYPE_CHANGED", ())]
        report = _Report()
        for keyword, name in (
            ("$id", "ID"),
            ("title", "TITLE"),
            ("description", "DESCRIPTION"),
            ("default", "DEFAULT"),
        ):
            if _keyword(original, keyword) != _keyword(update, keyword):
                report.add(f"{name}_CHANGED")
        rules = {
            "string": self._strings,
            "number": self._numbers,
            "const": self._constants,
            "enum": self._enums,
            "combined": self._combined,
            "not": self._not,
            "object": self._objects,
            "array": self._arrays,
        }
        rule = rules.get(_class(original))
        if rule is not None:
            rule(report, original, update)
        return report.differences

    def _strings(self, report: _Report, original: Node, update: Node) -> None:
        report.limit("maxLength", "MAX_LENGTH", original.json, update.json)
        report.limit("minLength", "MIN_LENGTH", original.json, update.json)
        before, after = original.json.get("pattern"), update.json.get("pattern")
        if before != after:
            change = "ADDED" if before is None else "REMOVED" if after is None else "CHANGED"
            report.add(f"PATTERN_{change}", "pattern")

    def _numbers(self, report: _Report, original: Node, update: Node) -> None:
        for keyword, name in (
            ("maximum", "MAXIMUM"),
            ("minimum", "MINIMUM"),
            ("exclusiveMaximum", "EXCLUSIVE_MAXIMUM"),
            ("exclusiveMinimum", "EXCLUSIVE_MINIMUM"),
        ):
            report.limit(keyword, name, original.json, update.json)
        before, after = (_decimal(node.json.get("multipleOf")) for node in (original, update))
        if before != after:
            report.add(f"MULTIPLE_OF_{_multiple_change(before, after)}", "multipleOf")
        if original.kind != update.kind:
            report.add("TYPE_EXTENDED" if original.kind == "integer" else "TYPE_NARROWED")

    def _constants(self, report: _Report, original: Node, update: Node) -> None:
        if _frozen(original.json["const"]) != _frozen(update.json["const"]):
            report.add("ENUM_ARRAY_CHANGED", "const")

    def _enums(self, report: _Report, original: Node, update: Node) -> None:
        before = {_frozen(value) for value in original.json["enum"]}
        after = {_frozen(value) for value in update.json["enum"]}
        if before != after:
            change = "EXTENDED" if after > before else "NARROWED" if before > after else "CHANGED"
            report.add(f"ENUM_ARRAY_{change}", "enum")

    def _not(self, report: _Report, original: Node, update: Node) -> None:
        self._swapped = not self._swapped  # a wider schema that must not match makes a narrower one
        try:
            differences = self.compare(update.parts[0], original.parts[0])
        finally:
            self._swapped = not self._swapped
        report.add("NOT_TYPE_NARROWED" if self.is_compatible(differences) else "NOT_TYPE_EXTENDED", "not")

    def _combined(self, report: _Report, original: Node, update: Node) -> None:
        before, after = original.criterion, update.criterion
        if before != after:
            extended = (
                after == "anyOf"
                or (len(original.parts) == 1 and (len(update.parts) == 1 or after == "oneOf"))
                or (len(update.parts) == 1 and before == "allOf")
            )
            report.add("COMBINED_TYPE_EXTENDED" if extended else "COMBINED_TYPE_CHANGED")
            if not extended:
                return
        first, second = _distinct(original), _distinct(update)
        if len(first) < len(second):
            report.add("PRODUCT_TYPE_EXTENDED" if after == "allOf" else "SUM_TYPE_EXTENDED")
        elif len(first) > len(second):
            report.add("PRODUCT_TYPE_NARROWED" if before == "allOf" else "SUM_TYPE_NARROWED")
        edges = {}
        for index, part in enumerate(first):
            for other, candidate in enumerate(second):
                differences = self.compare(part, candidate)
                if self.is_compatible(differences):
                    edges[index, other] = differences
        matching = _match(len(first), len(second), edges)
        for index, other in sorted(matching.items()):
            report.extend(edges[index, other], before, str(index))
        if len(matching) < min(len(first), len(second)):
            report.add("COMBINED_TYPE_SUBSCHEMAS_CHANGED")

    def _objects(self, report: _Report, original: Node, update: Node) -> None:
        before, after = original.json, update.json
        old, new = before.get("properties", {}), after.get("properties", {})
        for name in old:
            if name in new:
                was, is_ = name in before.get("required", ()), name in after.get("required", ())
                if was and not is_:
                    report.add("REQUIRED_ATTRIBUTE_REMOVED", "required", name)
                elif is_ and not was:
                    kind = "WITH_DEFAULT_ADDED" if _has_default(new[name]) else "ADDED"
                    report.add(f"REQUIRED_ATTRIBUTE_{kind}", "required", name)
        for name in dict.fromkeys([*old, *new]):
            self._property(report, original, update, name)
        self._dependencies(report, original, update)
        report.within(
            "additionalProperties", self._extra(original, update, "additionalProperties", "ADDITIONAL_PROPERTIES")
        )
        report.within("unevaluatedProperties", self._unevaluated(original, update, "unevaluatedProperties"))
        report.limit("maxProperties", "MAX_PROPERTIES", before, after)
        report.limit("minProperties", "MIN_PROPERTIES", before, after)

    def _property(self, report: _Report, original: Node, update: Node, name: str) -> None:
        path = ("properties", name)
        before = self._child(original, original.json.get("properties", {}).get(name), old=True)
        after = self._child(update, update.json.get("properties", {}).get(name), old=False)
        if before is not None and after is not None:
            report.extend(self.compare(before, after), *path)
        elif before is not None:
            if _is_open(update, "additionalProperties", "unevaluatedProperties"):
                report.add("PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL", *path)
            elif (cover := self._cover(update, name, old=False)) is not None:
                self._covered(report, before, cover, "PROPERTY_REMOVED", path)
            elif before.kind == "false":
                report.add("PROPERTY_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL", *path)
            else:
                report.add("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", *path)
        elif after is not None:
            required = name in update.json.get("required", ())
            default = _has_default(update.json["properties"][name])
            kind = (
                ("REQUIRED_PROPERTY_WITH_DEFAULT" if default else "REQUIRED_PROPERTY")
                if required
                else "OPTIONAL_PROPERTY"
            )
            if _is_open(original, "additionalProperties", "unevaluatedProperties"):
                if after.kind == "empty":
                    report.add("PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL", *path)
                else:
                    report.add(f"{kind}_ADDED_TO_OPEN_CONTENT_MODEL", *path)
                return
            if (cover := self._cover(original, name, old=True)) is not None:
                self._covered(report, cover, after, "PROPERTY_ADDED", path)
            report.add(f"{kind}_ADDED_TO_UNOPEN_CONTENT_MODEL", *path)

    def _covered(self, report: _Report, before: Node, after: Node, name: str, path: tuple[str, ...]) -> None:
        differences = self.compare(before, after)
        report.extend(differences, *path)
        covered = "IS_COVERED" if self.is_compatible(differences) else "NOT_COVERED"
        report.add(f"{name}_{covered}_BY_PARTIALLY_OPEN_CONTENT_MODEL", *path)

    def _cover(self, node: Node, name: str, *, old: bool) -> Node | None:
        """Return the schema that a partially open content model has for a property it does not list."""
        for pattern, value in node.json.get("patternProperties", {}).items():
            if _matches(pattern, name):
                return self._child(node, value, old=old)
        return self._rest(node, "additionalProperties", "unevaluatedProperties", old=old)

    def _rest(self, node: Node, keyword: str, unevaluated: str, *, old: bool) -> Node | None:
        extra = node.json.get(keyword)
        if isinstance(extra, dict):
            return self._child(node, extra, old=old)
        if extra is None:
            rest = self._child(node, node.json.get(unevaluated), old=old)
            if rest is not None and rest.kind not in ("false", "empty"):
                return rest
        return None

    def _dependencies(self, report: _Report, original: Node, update: Node) -> None:
        (arrays, schemas), (new_arrays, new_schemas) = _dependencies(original.json), _dependencies(update.json)
        for name in dict.fromkeys([*arrays, *new_arrays]):
            before, after = arrays.get(name), new_arrays.get(name)
            if before != after:
                if after is None:
                    change = "REMOVED"
                elif before is None:
                    change = "ADDED"
                else:
                    change = "EXTENDED" if after > before else "NARROWED" if before > after else "CHANGED"
                report.add(f"DEPENDENCY_ARRAY_{change}", "dependencies", name)
        for name in dict.fromkeys([*schemas, *new_schemas]):
            if name not in new_schemas:
                report.add("DEPENDENCY_SCHEMA_REMOVED", "dependencies", name)
            elif name not in schemas:
                report.add("DEPENDENCY_SCHEMA_ADDED", "dependencies", name)
            else:
                first = self._child(original, schemas[name], old=True)
                second = self._child(update, new_schemas[name], old=False)
                report.extend(self.compare(first, second), "dependencies", name)

    def _extra(self, original: Node, update: Node, keyword: str, name: str) -> list[Difference]:
        before, after = original.json.get(keyword, True), update.json.get(keyword, True)
        if (before is False) != (after is False):
            return [Difference(f"{name}_{'ADDED' if before is False else 'REMOVED'}", ())]
        first = self._child(original, before, old=True) if isinstance(before, dict) else None
        second = self._child(update, after, old=False) if isinstance(after, dict) else None
        if first is None and second is not None:
            return [Difference(f"{name}_NARROWED", ())]
        if second is None and first is not None:
            return [Difference(f"{name}_EXTENDED", ())]
        return self.compare(first, second)

    def _unevaluated(self, original: Node, update: Node, keyword: str) -> list[Difference]:
        name = "UNEVALUATED_PROPERTIES" if keyword == "unevaluatedProperties" else "UNEVALUATED_ITEMS"
        before = self._child(original, original.json.get(keyword), old=True)
        after = self._child(update, update.json.get(keyword), old=False)
        if before is None and after is None:
            return []
        kinds = [None if node is None else node.kind for node in (before, after)]
        if kinds[0] == kinds[1] == "false":
            return []
        if "false" in kinds:
            return [Difference(f"{name}_{'ADDED' if kinds[0] == 'false' else 'REMOVED'}", ())]
        if kinds[0] is None or (kinds[0] == "empty" and kinds[1] not in (None, "empty")):
            return [Difference(f"{name}_NARROWED", ())]
        if kinds[1] is None or (kinds[1] == "empty" and kinds[0] != "empty"):
            return [Difference(f"{name}_EXTENDED", ())]
        return self.compare(before, after)

    def _arrays(self, report: _Report, original: Node, update: Node) -> None:
        old_all, old_list, old_extra = _items(original.json)
        new_all, new_list, new_extra = _items(update.json)
        report.within(
            "items",
            self.compare(self._child(original, old_all, old=True), self._child(update, new_all, old=False)),
        )
        for index in range(max(len(old_list), len(new_list))):
            path = (f"items/{index}",)
            before = self._child(original, old_list[index], old=True) if index < len(old_list) else None
            after = self._child(update, new_list[index], old=False) if index < len(new_list) else None
            if before is not None and after is not None:
                report.extend(self.compare(before, after), *path)
            elif before is not None:
                if _is_open_array(update, new_extra):
                    report.add("ITEM_REMOVED_FROM_OPEN_CONTENT_MODEL", *path)
                elif (cover := self._array_rest(update, new_extra, old=False)) is not None:
                    self._covered(report, before, cover, "ITEM_REMOVED", path)
                elif before.kind == "false":
                    report.add("ITEM_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL", *path)
                else:
                    report.add("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", *path)
            elif after is not None:
                if _is_open_array(original, old_extra):
                    empty = "ITEM_WITH_EMPTY_SCHEMA_ADDED" if after.kind == "empty" else "ITEM_ADDED"
                    report.add(f"{empty}_TO_OPEN_CONTENT_MODEL", *path)
                elif (cover := self._array_rest(original, old_extra, old=True)) is not None:
                    self._covered(report, cover, after, "ITEM_ADDED", path)
                else:
                    report.add("ITEM_ADDED_TO_CLOSED_CONTENT_MODEL", *path)
        before_extra = {} if old_extra is None else {"additionalItems": old_extra}
        after_extra = {} if new_extra is None else {"additionalItems": new_extra}
        report.within(
            "additionalItems",
            self._extra(
                _with(original, before_extra), _with(update, after_extra), "additionalItems", "ADDITIONAL_ITEMS"
            ),
        )
        report.within("unevaluatedItems", self._unevaluated(original, update, "unevaluatedItems"))
        report.limit("maxItems", "MAX_ITEMS", original.json, update.json)
        report.limit("minItems", "MIN_ITEMS", original.json, update.json)
        unique, now_unique = bool(original.json.get("uniqueItems")), bool(update.json.get("uniqueItems"))
        if unique != now_unique:
            report.add(f"UNIQUE_ITEMS_{'REMOVED' if unique else 'ADDED'}", "uniqueItems")
        report.limit("maxContains", "MAX_CONTAINS", original.json, update.json)
        report.limit("minContains", "MIN_CONTAINS", original.json, update.json)

    def _array_rest(self, node: Node, extra: Any, *, old: bool) -> Node | None:
        return self._rest(
            _with(node, {} if extra is None else {"additionalItems": extra}),
            "additionalItems",
            "unevaluatedItems",
            old=old,
        )

    def _child(self, node: Node, value: Any, *, old: bool) -> Node | None:
        if value is None:
            return None
        loader = self._original if old != self._swapped else self._update
        return loader.node(value, node.base)


@dataclass(slots=True)
class _Report:
    """The differences of one pair."""

    differences: list[Difference] = field(default_factory=list)

    def add(self, type_: str, *path: str) -> None:
        self.differences.append(Difference(type_, path))

    def extend(self, differences: Iterable[Difference], *path: str) -> None:
        self.differences += [Difference(difference.type, (*path, *difference.path)) for difference in differences]

    def within(self, keyword: str, differences: Iterable[Difference]) -> None:
        self.extend(differences, keyword)

    def limit(self, keyword: str, name: str, original: dict[str, Any], update: dict[str, Any]) -> None:
        before, after = (_limit(schema.get(keyword)) for schema in (original, update))
        if before == after:
            return
        if before is None:
            self.add(f"{name}_ADDED", keyword)
        elif after is None:
            self.add(f"{name}_REMOVED", keyword)
        else:
            self.add(f"{name}_{'INCREASED' if after > before else 'DECREASED'}", keyword)


def _class(node: Node) -> str:
    return "number" if node.kind == "integer" else node.kind


def _keyword(node: Node, name: str) -> Any:
    if node.kind == "combined" and name not in node.json:
        return None
    value = node.json.get(name)
    return node.json.get("id") if name == "$id" and value is None else _frozen(value) if value is not None else None


def _frozen(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _limit(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _decimal(value: Any) -> Decimal | None:
    return Decimal(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _multiple_change(before: Decimal | None, after: Decimal | None) -> str:
    if before is None:
        return "ADDED"
    if after is None:
        return "REMOVED"
    if before and after % before == 0:
        return "EXPANDED"
    return "REDUCED" if after and before % after == 0 else "CHANGED"


def _has_default(value: Any) -> bool:
    return isinstance(value, dict) and "default" in value


def _matches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches. re2 needs linear time, and has neither lookaround nor back references."""
    try:
        return re2.search(pattern, name) is not None
    except re2.error:
        return False


def _is_open(node: Node, keyword: str, unevaluated: str) -> bool:
    if node.json.get(keyword, True) is not True or node.json.get("patternProperties"):
        return False
    rest = node.json.get(unevaluated, True)
    return rest is True or rest == {}


def _is_open_array(node: Node, extra: Any) -> bool:
    rest = node.json.get("unevaluatedItems", True)
    return extra in (None, True) and (rest is True or rest == {})


def _with(node: Node, extra: dict[str, Any]) -> Node:
    rest = {name: value for name, value in node.json.items() if name not in ("additionalItems", "items")}
    return type(node)(node.kind, {**rest, **extra}, node.base)


def _items(schema: dict[str, Any]) -> tuple[Any, list[Any], Any]:
    """Return the schema of all items, those of the first items, and that of the others, in the words of any draft."""
    items = schema.get("items")
    if "prefixItems" in schema:
        return None, schema["prefixItems"], items
    if isinstance(items, bool):
        return None, [], items
    if isinstance(items, list):
        return None, items, schema.get("additionalItems")
    return items, [], schema.get("additionalItems")


def _dependencies(schema: dict[str, Any]) -> tuple[dict[str, set[str]], dict[str, Any]]:
    arrays = {name: set(names) for name, names in schema.get("dependentRequired", {}).items()}
    schemas = dict(schema.get("dependentSchemas", {}))
    for name, value in schema.get("dependencies", {}).items():
        if isinstance(value, list):
            arrays[name] = set(value)
        else:
            schemas[name] = value
    return arrays, schemas


def _distinct(node: Node) -> list[Node]:
    return list({(part.kind, part.criterion, _frozen(part.json)): part for part in node.parts}.values())


def _match(left: int, right: int, edges: dict[tuple[int, int], list[Difference]]) -> dict[int, int]:
    """Return a matching of as many pairs as possible (augmenting paths)."""
    owner: dict[int, int] = {}

    def augment(index: int, seen: set[int]) -> bool:
        for other in range(right):
            if (index, other) in edges and other not in seen:
                seen.add(other)
                if other not in owner or augment(owner[other], seen):
                    owner[other] = index
                    return True
        return False

    for index in range(left):
        augment(index, set())
    return {index: other for other, index in owner.items()}
