"""The interface that every type of schema implements, and the errors and limits that all of them share."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

MAX_SCHEMA_BYTES: Final = 1_000_000
MAX_DEPTH: Final = 100
"""The depth to which a schema may nest. Deeper ones are refused: they cost stack in every client that parses them."""


class InvalidSchemaError(ValueError):
    """A schema that cannot be parsed; the message has the location and the reason."""


class Schema(ABC):
    """A parsed schema: Confluent's ParsedSchema."""

    type: ClassVar[str]

    @abstractmethod
    def canonical(self) -> str:
        """Return the text under which the schema is stored, compared and returned."""

    @abstractmethod
    def normalized(self) -> Schema:
        """Return an equivalent schema in which the order of unordered parts is fixed."""

    @abstractmethod
    def resolved(self) -> str:
        """Return the text with all references replaced by their definitions."""

    def formatted(self, format_: str) -> str:
        """Return the text in a format that the type has; ValueError for others."""
        if format_ == "resolved":
            return self.resolved()
        raise ValueError(f"Format not supported: {format_}")

    @abstractmethod
    def differences(self, writer: Schema, *, lenient: bool = False) -> list[str]:
        """Return the reasons why this schema cannot read data of `writer`, one message each.

        A message has two `%s`: the names of the reader's and of the writer's side ("new" and "old").
        """


def load_json(text: str) -> Any:
    """Parse the JSON of a schema within the limits of size and depth."""
    if len(text) > MAX_SCHEMA_BYTES:
        raise InvalidSchemaError(f"the schema is larger than {MAX_SCHEMA_BYTES} characters")
    try:
        value = json.loads(text)
    except RecursionError:
        raise InvalidSchemaError(f"the schema nests deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise InvalidSchemaError(f"the schema is not valid JSON: {error}") from None
    if _depth(value) > MAX_DEPTH:
        raise InvalidSchemaError(f"the schema nests deeper than {MAX_DEPTH} levels")
    return value


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        depth += 1
        children: list[Any] = []
        for entry in level:
            if isinstance(entry, dict):
                children += entry.values()
            elif isinstance(entry, list):
                children += entry
        level = [child for child in children if isinstance(child, dict | list)]
    return depth
