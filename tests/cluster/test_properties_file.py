"""Java's properties syntax, entry by entry. java.util.Properties printed the expected values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cluster.properties_file import PropertiesError, parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a", {"a": ""}),
        ("a\t=\tb=c", {"a": "b=c"}),
        ("  a = : b", {"a": ": b"}),
        ("a  : = b", {"a": "= b"}),
        ("# no\n! no\n   # no\n\na=1", {"a": "1"}),
        ("a=1\\\n    2\\\n  3", {"a": "123"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a\\ b\\=c\\:d=e", {"a b=c:d": "e"}),
        ("a=\\u0041\\t\\q", {"a": "A\tq"}),
        ("a=1\\\n# not a comment", {"a": "1# not a comment"}),
        ("a=1\ra=2\r\nb=3", {"a": "2", "b": "3"}),
        ("a=x\\", {"a": "x"}),
        ("=v", {"": "v"}),
        ("a=\\uD83D\\uDE00", {"a": "\U0001f600"}),
    ],
)
def test_entry_is_parsed_as_in_java(text: str, expected: dict[str, str]) -> None:
    assert {entry.key: entry.value for entry in parse_properties(text)} == expected


def test_entry_has_line_of_its_key() -> None:
    entries = parse_properties("# one\na=1\\\n  2\n\nb=3")
    assert [(entry.key, entry.line) for entry in entries] == [("a", 2), ("b", 5)]


def test_invalid_escape_names_line() -> None:
    with pytest.raises(PropertiesError, match=r"line 2: \\u needs four hexadecimal digits"):
        parse_properties("a=1\nb=\\u12")


@given(st.text())
def test_any_text_parses_or_raises_properties_error(text: str) -> None:
    try:
        entries = parse_properties(text)
    except PropertiesError:
        return
    assert all(entry.line >= 1 for entry in entries)
