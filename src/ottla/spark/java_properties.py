r"""The character properties of Java's regular expressions, `\p{...}`, for the ASCII characters of topic names."""

from __future__ import annotations

import string
import unicodedata
from typing import Final

import regex  # type: ignore[import-untyped]

_GENERAL: Final = ("Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Me", "Mc", "Nd", "Nl", "No", "Zs", "Zl", "Zp", "Cc", "Cf")
_OTHER: Final = ("Co", "Cs", "Pd", "Ps", "Pe", "Pc", "Po", "Sm", "Sc", "Sk", "So", "Pi", "Pf", *"LMNZCPS")
_CATEGORIES: Final = frozenset({*_GENERAL, *_OTHER})
_CASED: Final = frozenset(string.ascii_letters)
_ALNUM: Final = frozenset(string.ascii_letters + string.digits)
_WORD: Final = _ALNUM | {"_"}
_PUNCTUATION: Final = frozenset(string.punctuation)
_NONE: Final[frozenset[str]] = frozenset()
_ALL: Final = frozenset(map(chr, range(33, 127)))
_IDENTIFIER_START: Final = frozenset(string.ascii_letters + "_$")
_POSIX: Final = {
    "Alpha": _CASED,
    "Lower": frozenset(string.ascii_lowercase),
    "Upper": frozenset(string.ascii_uppercase),
    "Space": _NONE,
    "Punct": _PUNCTUATION,
    "XDigit": frozenset(string.hexdigits),
    "Alnum": _ALNUM,
    "Cntrl": _NONE,
    "Digit": frozenset(string.digits),
    "Blank": _NONE,
    "Graph": _ALL,
    "Print": _ALL,
}
_NAMED: Final = _POSIX | {
    "LC": _CASED,
    "LD": _ALNUM,
    "L1": _ALL,
    "all": _ALL,
    "ASCII": _ALL,
    "javaLowerCase": _POSIX["Lower"],
    "javaUpperCase": _POSIX["Upper"],
    "javaAlphabetic": _CASED,
    "javaIdeographic": _NONE,
    "javaTitleCase": _NONE,
    "javaDigit": _POSIX["Digit"],
    "javaDefined": _ALL,
    "javaLetter": _CASED,
    "javaLetterOrDigit": _ALNUM,
    "javaJavaIdentifierStart": _IDENTIFIER_START,
    "javaJavaIdentifierPart": _IDENTIFIER_START | _ALNUM,
    "javaUnicodeIdentifierStart": _CASED,
    "javaUnicodeIdentifierPart": _WORD,
    "javaIdentifierIgnorable": _NONE,
    "javaSpaceChar": _NONE,
    "javaWhitespace": _NONE,
    "javaISOControl": _NONE,
    "javaMirrored": _NONE,
}
_BINARY: Final = {
    "ALPHABETIC": _CASED,
    "LETTER": _CASED,
    "IDEOGRAPHIC": _NONE,
    "LOWERCASE": _POSIX["Lower"],
    "UPPERCASE": _POSIX["Upper"],
    "TITLECASE": _NONE,
    "WHITE_SPACE": _NONE,
    "WHITESPACE": _NONE,
    "CONTROL": _NONE,
    "PUNCTUATION": frozenset(letter for letter in _PUNCTUATION if unicodedata.category(letter).startswith("P")),
    "HEX_DIGIT": _POSIX["XDigit"],
    "HEXDIGIT": _POSIX["XDigit"],
    "ASSIGNED": _ALL,
    "NONCHARACTERCODEPOINT": _NONE,
    "NONCHARACTER_CODE_POINT": _NONE,
    "DIGIT": _POSIX["Digit"],
    "ALNUM": _ALNUM,
    "BLANK": _NONE,
    "GRAPH": _ALL,
    "PRINT": _ALL,
    "WORD": _WORD,
    "JOIN_CONTROL": _NONE,
    "JOINCONTROL": _NONE,
}
# With CASE_INSENSITIVE each of these matches letters of any case.
_CASES: Final = frozenset(
    {"Lu", "Ll", "Lt", "Lower", "Upper", "javaLowerCase", "javaUpperCase", "javaTitleCase"}
    | {"LOWERCASE", "UPPERCASE", "TITLECASE"}
)


def property_members(name: str, alphabet: str, *, ignore_case: bool, posix: bool) -> frozenset[str] | None:
    """Return the characters of an alphabet that have a property, or None if Java has no such property."""
    key, equals, value = name.partition("=")
    if equals:
        kind = {"sc": "sc", "script": "sc", "blk": "blk", "block": "blk", "gc": "gc", "general_category": "gc"}
        match kind.get(key.lower()):
            case "sc":
                members = _of_engine("Script", value, alphabet)
            case "blk":
                members = _of_engine("Block", value, alphabet)
            case "gc":
                members = _property(value, ignore_case)
            case _:
                members = None
    elif name.startswith("In"):
        members = _of_engine("Block", name[2:], alphabet)
    elif name.startswith("Is"):
        short = name[2:]
        members = _cased(_BINARY.get(short.upper()), short.upper(), ignore_case)
        if members is None:
            members = _property(short, ignore_case)
        if members is None:
            members = _of_engine("Script", short, alphabet)
    else:
        members = None
        if posix:
            spelling = {known.upper(): known for known in _POSIX}.get(name.upper(), "")
            members = _cased(_POSIX.get(spelling), spelling, ignore_case)
        if members is None:
            members = _property(name, ignore_case)
    return None if members is None else members & frozenset(alphabet)


def _property(name: str, ignore_case: bool) -> frozenset[str] | None:
    if name in _CATEGORIES:
        members = frozenset(letter for letter in _ALL if unicodedata.category(letter).startswith(name))
        return _cased(members, name, ignore_case)
    return _cased(_NAMED.get(name), name, ignore_case)


def _cased(members: frozenset[str] | None, name: str, ignore_case: bool) -> frozenset[str] | None:
    return _CASED if members is not None and ignore_case and name in _CASES else members


def _of_engine(kind: str, value: str, alphabet: str) -> frozenset[str] | None:
    """Return the members of a script or block, of which the package `regex` has the names."""
    try:
        members = regex.compile(rf"\p{{{kind}={value}}}")
    except regex.error:
        return None
    return frozenset(letter for letter in alphabet if members.fullmatch(letter))
