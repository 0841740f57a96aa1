"""Types of columns, as tables have them: what a schema of any kind becomes when values are read as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ottla.schemas import kernel as _kernel

MAX_PRECISION: Final = 38
_WIDTHS: Final = {
    "null": 0,
    "boolean": 1,
    "int": 4,
    "date": 4,
    "float": 4,
    "long": 8,
    "double": 8,
    "timestamp": 8,
    "timestamp_ntz": 8,
    "decimal": 16,
}


class NoColumnsError(ValueError):
    """A schema that has no columns, such as a recursive one; the message has the reason."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column. `fields` are those of a struct, the element of a list, or the key and value of a map.

    The kinds are null, boolean, int, long, float, double, decimal, string, bytes, date, timestamp, timestamp_ntz (in
    microseconds), struct, list and map.
    """

    kind: str
    fields: tuple[tuple[str, ColumnType], ...] = ()
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        """Return the type in Spark's words."""
        match self.kind:
            case "struct":
                return f"struct<{', '.join(f'{name}: {type_}' for name, type_ in self.fields)}>"
            case "list":
                return f"array<{self.fields[0][1]}>"
            case "map":
                return f"map<string, {self.fields[1][1]}>" if self.is_string_map else f"map<{self.fields[0][1]}, ...>"
            case "decimal":
                return f"decimal({self.precision},{self.scale})"
        return {"long": "bigint", "bytes": "binary", "null": "void"}.get(self.kind, self.kind)

    @property
    def is_string_map(self) -> bool:
        """Whether this is a map from strings."""
        return self.kind == "map" and self.fields[0][1].kind == "string"


STRING: Final = ColumnType("string")


def struct_of(fields: list[tuple[str, ColumnType]]) -> ColumnType:
    """Return the type of a struct."""
    return ColumnType("struct", tuple(fields))


def list_of(element: ColumnType) -> ColumnType:
    """Return the type of a list."""
    return ColumnType("list", (("element", element),))


def map_of(value: ColumnType, key: ColumnType = STRING) -> ColumnType:
    """Return the type of a map."""
    return ColumnType("map", (("key", key), ("value", value)))


def decimal_of(precision: int, scale: int) -> ColumnType:
    """Return the type of a decimal; NoColumnsError if it has more digits than a column can."""
    if not 0 < precision <= MAX_PRECISION or not 0 <= scale <= precision:
        raise NoColumnsError(
            f"decimal({precision},{scale}) has no column type: a precision of 1 to {MAX_PRECISION} has one"
        )
    return ColumnType("decimal", (), precision, scale)


def make_column(type_: ColumnType, kernel: Any = _kernel) -> _kernel.Column:
    """Return an empty column of a type."""
    column: _kernel.Column
    match type_.kind:
        case "string" | "bytes":
            column = kernel.BinaryColumn()
        case "struct":
            column = kernel.StructColumn([make_column(field, kernel) for _, field in type_.fields])
        case "list":
            column = kernel.ListColumn(make_column(type_.fields[0][1], kernel))
        case "map":
            column = kernel.ListColumn(kernel.StructColumn([make_column(field, kernel) for _, field in type_.fields]))
        case kind:
            column = kernel.FixedColumn(_WIDTHS[kind])
    return column
