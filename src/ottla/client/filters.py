"""Record filters: an exact key, a regular expression, an expression over decoded JSON."""

from __future__ import annotations

import ast
import json
import operator
import re
from typing import TYPE_CHECKING, Any

from ottla.client.formats import Form
from ottla.client.formats import read as read_form

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.client.reading import Read

    Filter = Callable[[Read], bool]

FIELDS = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")
_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}


def key_filter(text: str, form: Form | None) -> Filter:
    """Return a filter for records that have this key, given in `form`."""
    key = read_form(text.encode("utf-8", "surrogateescape"), form or Form.RAW)
    return lambda read: read.record.key == key


def grep_filter(pattern: str) -> Filter:
    """Return a filter for records whose key, value or a header value matches a regular expression anywhere."""
    try:
        search = re.compile(pattern.encode("utf-8", "surrogateescape")).search
    except re.error as error:
        raise ValueError(f"--grep {pattern}: {error}") from error

    def matches(read: Read) -> bool:
        record = read.record
        parts = (record.key, record.value, *(value for _, value in record.headers))
        return any(part is not None and search(part) is not None for part in parts)

    return matches


def expression_filter(text: str) -> Filter:
    """Return a filter for records for which an expression is true.

    The expression has Python's comparisons, arithmetic, `and`, `or`, `not` and `in` over FIELDS. Keys, values and
    header values are decoded as JSON, else they are text. `value.a.b` and `value["a"][0]` read members; a member that
    does not exist is None, and a comparison that has no meaning, such as None > 1, is false.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"--filter {text}: {error.msg}") from error
    evaluate = _compile(tree, text)

    def matches(read: Read) -> bool:
        try:
            return bool(evaluate(_fields(read)))
        except (TypeError, ValueError, ZeroDivisionError):
            return False

    return matches


def _fields(read: Read) -> dict[str, Any]:
    record = read.record
    return {
        "key": _decode(record.key),
        "value": _decode(record.value),
        "headers": {name: _decode(value) for name, value in record.headers},
        "topic": read.topic,
        "partition": read.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }


def _decode(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return json.loads(data)
    except ValueError:
        return data.decode("utf-8", "replace")


def _compile(node: ast.AST, text: str) -> Callable[[dict[str, Any]], Any]:
    """Return a function that evaluates a node of an expression over the fields of a record."""
    match node:
        case ast.Constant(value=value):
            return lambda fields: value
        case ast.Name(id=name):
            if name in ("true", "false", "null"):
                constant = {"true": True, "false": False, "null": None}[name]
                return lambda fields: constant
            if name not in FIELDS:
                raise ValueError(f"--filter {text}: no field {name}; use {', '.join(FIELDS)}")
            return lambda fields: fields[name]
        case ast.Attribute(value=owner, attr=name):
            inner = _compile(owner, text)
            return lambda fields: _member(inner(fields), name)
        case ast.Subscript(value=owner, slice=index):
            inner, key = _compile(owner, text), _compile(index, text)
            return lambda fields: _member(inner(fields), key(fields))
        case ast.BoolOp(op=op, values=parts):
            compiled = [_compile(part, text) for part in parts]
            combine = all if isinstance(op, ast.And) else any
            return lambda fields: combine(_truth(part, fields) for part in compiled)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _compile(operand, text)
            return lambda fields: not _truth(inner, fields)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _compile(operand, text)
            return lambda fields: -inner(fields)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _binary(_BINARY[type(op)], _compile(left, text), _compile(right, text))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _BINARY:
            return _binary(_BINARY[type(op)], _compile(left, text), _compile(right, text))
    raise ValueError(f"--filter {text}: {ast.unparse(node)} is not supported; compare fields, as in value.amount > 10")


def _binary(
    apply: Callable[[Any, Any], Any], left: Callable[[dict[str, Any]], Any], right: Callable[[dict[str, Any]], Any]
) -> Callable[[dict[str, Any]], Any]:
    return lambda fields: apply(left(fields), right(fields))


def _truth(part: Callable[[dict[str, Any]], Any], fields: dict[str, Any]) -> bool:
    """Return whether a part of an expression is true; one that has no meaning is false."""
    try:
        return bool(part(fields))
    except (TypeError, ValueError, ZeroDivisionError):
        return False


def _member(owner: Any, key: Any) -> Any:
    if isinstance(owner, dict):
        return owner.get(key)
    if isinstance(owner, list) and isinstance(key, int) and -len(owner) <= key < len(owner):
        return owner[key]
    return None
