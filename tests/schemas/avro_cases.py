"""Random Avro schemas, and small changes to them, some of which make them invalid."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]


def random_schema(random: Random) -> Any:
    """Return a schema."""
    return _Maker(random).make(3)


class _Maker:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._names: list[str] = []

    def make(self, depth: int) -> Any:
        kind = self._random.choice(
            ["primitive"] * 3 + (["array", "map", "union", "record", "enum", "fixed"] if depth else [])
        )
        if kind == "primitive":
            if self._names and self._random.random() < 0.2:
                return self._random.choice(self._names)
            name = self._random.choice(PRIMITIVES)
            return {"type": "int", "logicalType": "date"} if self._random.random() < 0.1 else name
        if kind == "array":
            return {"type": "array", "items": self.make(depth - 1)}
        if kind == "map":
            return {"type": "map", "values": self.make(depth - 1)}
        if kind == "union":
            count = self._random.randint(1, 3)
            return [
                *self._random.sample(PRIMITIVES, count),
                *([self._named(depth)] if self._random.random() < 0.4 else []),
            ]
        return self._named(depth, kind)

    def _named(self, depth: int, kind: str | None = None) -> Any:
        kind = kind or self._random.choice(["record", "enum", "fixed"])
        name = f"N{len(self._names)}"
        space = self._random.choice(["", "", "a.b", "c"])
        tree: dict[str, Any] = {"type": kind, "name": name}
        if space:
            tree["namespace"] = space
        if self._random.random() < 0.2:
            tree |= {"doc": "text", "extra": 1, "aliases": [f"Old{name}"]}
        if kind == "enum":
            tree["symbols"] = self._random.sample(["A", "B", "C", "D"], self._random.randint(1, 4))
            if self._random.random() < 0.3:
                tree["default"] = tree["symbols"][0]
        elif kind == "fixed":
            tree["size"] = self._random.randint(1, 3)
        else:
            if space:
                self._names.append(f"{space}.{name}")
            fields = []
            for number in range(self._random.randint(0, 4)):
                field: dict[str, Any] = {"name": f"f{number}", "type": self.make(depth - 1)}
                if field["type"] in ("int", "long") and self._random.random() < 0.5:
                    field["default"] = 1
                if isinstance(field["type"], list) and field["type"][0] == "null" and self._random.random() < 0.7:
                    field["default"] = None
                fields.append(field)
            tree["fields"] = fields
            return tree
        if space:
            self._names.append(f"{space}.{name}")
        return tree


def changed(random: Random, schema: Any) -> Any:
    """Return a schema with some changes."""
    copy = deepcopy(schema)
    for _ in range(random.randint(0, 3)):
        copy = _change(random, copy)
    return copy


def _change(random: Random, value: Any) -> Any:
    if isinstance(value, str) and value in PRIMITIVES:
        return random.choice([*PRIMITIVES, ["null", value] if value != "null" else "int"])
    if isinstance(value, list) and value:
        at = random.randrange(len(value))
        if random.random() < 0.4:
            return [entry for number, entry in enumerate(value) if number != at] or value
        return [
            _change(random, entry) if number == at and isinstance(entry, dict) else entry
            for number, entry in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    if kind == "array":
        return {**value, "items": _change(random, value["items"])}
    if kind == "map":
        return {**value, "values": _change(random, value["values"])}
    if kind == "enum":
        return {**value, "symbols": [*value["symbols"], "Z"]} if "Z" not in value["symbols"] else value
    if kind == "fixed":
        return {**value, "size": value["size"] + 1}
    if kind == "record":
        fields = list(value["fields"])
        choice = random.random()
        if choice < 0.3 or not fields:
            extra: dict[str, Any] = {"name": f"g{random.randrange(100)}", "type": "int"}
            if random.random() < 0.5:
                extra["default"] = 0
            return {**value, "fields": [*fields, extra]}
        at = random.randrange(len(fields))
        if choice < 0.5:
            del fields[at]
        elif choice < 0.6:
            fields[at] = {**fields[at], "name": f"{fields[at]['name']}x", "aliases": [fields[at]["name"]]}
        else:
            fields[at] = {**fields[at], "type": _change(random, fields[at]["type"])}
        return {**value, "fields": fields} if choice < 0.9 else {**value, "fields": fields, "name": "Renamed"}
    return value
