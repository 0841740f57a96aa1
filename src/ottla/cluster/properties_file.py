"""Parser of Java properties files: key, value and line of each entry, with escapes and continuations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_WHITESPACE: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class PropertiesError(ValueError):
    """A syntax error in a properties file; `line` counts from 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Property:
    """One entry; `line` is that of its key, counted from 1."""

    key: str
    value: str
    line: int


def parse_properties(text: str) -> list[Property]:
    """Return all entries in file order; the last of duplicate keys is in force."""
    entries: list[Property] = []
    for line, logical in _logical_lines(text):
        key_end, value_start = _split_at(logical)
        entries.append(Property(_unescape(logical[:key_end], line), _unescape(logical[value_start:], line), line))
    return entries


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Return logical lines without comments and blanks, each with the number of its first line."""
    result: list[tuple[int, str]] = []
    pending: str | None = None
    first = 0
    for number, natural in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        stripped = natural.lstrip(_WHITESPACE)
        if pending is None:
            if not stripped or stripped[0] in "#!":
                continue
            first, pending = number, ""
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if backslashes % 2 == 1:
            pending += stripped[:-1]
            continue
        result.append((first, pending + stripped))
        pending = None
    if pending is not None and pending:
        result.append((first, pending))
    return result


def _split_at(logical: str) -> tuple[int, int]:
    """Return the end of the key and the start of the value: an unescaped `=`, `:` or white space is between them."""
    position, separated = 0, False
    while position < len(logical):
        character = logical[position]
        if character == "\\":
            position += 2
            continue
        if character in "=:":
            separated = True
            break
        if character in _WHITESPACE:
            break
        position += 1
    key_end = min(position, len(logical))
    value_start = key_end + 1 if separated else key_end
    while value_start < len(logical):
        character = logical[value_start]
        if character in _WHITESPACE:
            value_start += 1
        elif character in "=:" and not separated:
            separated = True
            value_start += 1
        else:
            break
    return key_end, min(value_start, len(logical))


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    result: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            result.append(character)
            continue
        if position >= len(text):
            break
        escaped = text[position]
        position += 1
        if escaped != "u":
            result.append(_ESCAPES.get(escaped, escaped))
            continue
        digits = text[position : position + 4]
        if len(digits) != 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            raise PropertiesError(line, f"\\u needs four hexadecimal digits, found {digits!r}")
        result.append(chr(int(digits, 16)))
        position += 4
    joined = "".join(result)
    # Java strings are UTF-16: an escaped surrogate pair is one character.
    return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
