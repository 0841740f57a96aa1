"""Java's regular expressions over topic names, for subscribePattern: Spark's own source uses java.util.regex.

Parses an expression by the rules of java.util.regex.Pattern and rewrites it for the package `regex`. A topic name has
65 possible characters, so that every character class, property and flag is resolved to a set of them here, and only
groups, quantifiers, lookaround and back references are left to the engine. Lookbehind without a maximum length, which
Java refuses in some forms, is accepted.
"""

from __future__ import annotations

import string
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import regex  # type: ignore[import-untyped]

from ottla.spark.java_properties import property_members

if TYPE_CHECKING:
    from collections.abc import Callable

    Predicate = Callable[[str], bool]

ALPHABET: Final = string.ascii_letters + string.digits + "._-"
SEARCH_SECONDS: Final = 30.0
_NEVER: Final = "(?!)"
_WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_LARGEST: Final = 2**31 - 1
_SPACES: Final = frozenset(" \t\n\x0b\f\r")
_FLAGS: Final = frozenset("imsdcuxU")
_CLASSES: Final[dict[str, frozenset[str]]] = {
    "d": frozenset(string.digits),
    "w": _WORD,
    "s": frozenset(),
    "h": frozenset(),
    "v": frozenset(),
}
_CONTROLS: Final = {"a": "\x07", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class PatternError(ValueError):
    """An expression that java.util.regex.Pattern refuses too; the message has the reason and the position."""


class JavaPattern:
    """A compiled expression.

    >>> JavaPattern("orders|payments").finds("eu-orders-v2"), JavaPattern("^[a-z&&[^p]]++$").finds("payments")
    (True, False)
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._compiled = _compile(text)

    def finds(self, name: str) -> bool:
        """Return whether a part of a topic name matches, as java.util.regex.Matcher.find()."""
        if not all(letter in ALPHABET for letter in name):
            return False
        try:
            return self._compiled.search(name, timeout=SEARCH_SECONDS) is not None
        except TimeoutError:
            raise PatternError(f"{self.text!r} takes more than {SEARCH_SECONDS:.0f} s to match {name}") from None


@lru_cache(maxsize=64)
def _compile(text: str) -> regex.Pattern[str]:
    translated = _Parser(_unquote(text)).parse()
    return regex.compile(translated, regex.V0 | regex.ASCII | regex.DOTALL)


def translate(text: str) -> str:
    """Return the expression for the package `regex`; raise `PatternError` where Java does."""
    return _Parser(_unquote(text)).parse()


def _unquote(text: str) -> str:
    r"""Replace \Q...\E by escaped characters, as Java does before it parses."""
    start = 0
    while (start := text.find("\\", start)) >= 0 and text[start + 1 : start + 2] != "Q":
        start += 2
    if start < 0:
        return text
    output, position, quoted, first = [text[:start]], start, False, False
    while position < len(text):
        letter = text[position]
        following = text[position + 1 : position + 2]
        position += 1
        if letter == "\\" and quoted:
            if following == "E":
                position, quoted = position + 1, False
            else:
                output.append("\\\\")
        elif letter == "\\":
            if following == "Q":
                position, quoted, first = position + 1, True, True
                continue
            output.append(letter + following)
            position += 1
        elif letter.isascii() and letter.isdigit():
            output.append(("\\x3" if first else "") + letter)
        elif letter.isascii() and not letter.isalpha() and quoted:
            output.append("\\" + letter)
        else:
            output.append(letter)
        first = False
    return "".join(output)


class _Node(NamedTuple):
    """A translated part, and whether it is one capturing group."""

    text: str
    capturing: bool = False


class _Parser:
    """Recursive descent over one expression; the methods follow those of java.util.regex.Pattern."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._flags: frozenset[str] = frozenset()
        self._groups = 0
        self._names: dict[str, int] = {}
        self._total = 0
        self._references: list[int] = []

    def parse(self) -> str:
        """Return the whole expression, translated."""
        node = self._expression()
        if self._at < len(self._text):
            raise self._error("Unmatched closing ')'" if self._text[self._at] == ")" else "Unexpected internal error")
        text = node.text
        for number in set(self._references):
            # A group that does not exist never matches; the engine would refuse it.
            known = f"\\g<{number}>" if number <= self._groups else _NEVER
            text = text.replace(_reference(number), known)
        return text

    # Characters.

    def _error(self, reason: str) -> PatternError:
        return PatternError(f"{reason} near index {self._at}")

    def _raw(self, ahead: int = 0) -> str:
        """Return the character here, or "" at the end."""
        position = self._at + ahead
        return self._text[position] if position < len(self._text) else ""

    def _skip_comments(self) -> None:
        if "x" not in self._flags:
            return
        while self._at < len(self._text):
            if self._text[self._at] in _SPACES:
                self._at += 1
            elif self._text[self._at] == "#":
                while self._at < len(self._text) and self._text[self._at] not in "\n\r\x85\u2028\u2029":
                    self._at += 1
            else:
                return

    def _peek(self) -> str:
        self._skip_comments()
        return self._raw()

    def _next(self) -> str:
        """Move on by one and return the character there."""
        self._at += 1
        return self._peek()

    def _read(self) -> str:
        """Return the character here and move on by one."""
        letter = self._peek()
        self._at += 1
        return letter

    # Structure.

    def _expression(self) -> _Node:
        branches = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            branches.append(self._sequence())
        return _Node("|".join(branch.text for branch in branches))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while True:
            letter = self._peek()
            if letter in ("", "|", ")"):
                break
            if letter in ("?", "*", "+"):
                raise self._error(f"Dangling meta character '{letter}'")
            if letter == "(":
                node = self._group()
                if node is None:
                    continue
            else:
                node = self._closure(self._atom(letter))
            parts.append(node)
        return _Node("".join(part.text for part in parts))

    def _atom(self, letter: str) -> _Node:
        if letter == "[":
            return _set(self._class(consume=True))
        if letter == "\\":
            return self._escaped()
        if letter == "{":  # repeats the empty string, or is refused by the quantifier
            return _Node("(?:)")
        self._at += 1
        if letter == "^":
            return _Node(r"\A")
        if letter == "$":
            return _Node(r"\Z")
        if letter == ".":
            return _set(lambda _: True)
        return _set(self._single(letter))

    def _escaped(self) -> _Node:
        following = self._raw(1)
        if following in ("p", "P"):
            self._at += 1
            return _set(self._family())
        if following == "R":
            self._at += 2
            return _Node(_NEVER)
        if following == "X":
            self._at += 2
            return _set(lambda _: True)
        if following in ("A", "G"):
            self._at += 2
            return _Node(r"\A")
        if following in ("Z", "z"):
            self._at += 2
            return _Node(r"\Z")
        if following == "B":
            self._at += 2
            return _Node(r"\B")
        if following == "b":
            self._at += 2
            if self._text[self._at : self._at + 2] == "{g":
                if self._raw(2) != "}":
                    raise self._error("Illegal/unsupported escape sequence")
                self._at += 3
                return _Node("(?:)")  # every position of an ASCII text
            return _Node(r"\b")
        if following == "k":
            self._at += 2
            if self._read() != "<":
                raise self._error(r"\k is not followed by '<' for named capturing group")
            name = self._group_name()
            if name not in self._names:
                raise self._error(f"named capturing group <{name}> does not exist")
            return self._back_reference(self._names[name])
        if following in "123456789" and following:
            self._at += 2
            number = int(following)
            while (digit := self._peek()) and digit in string.digits and number * 10 + int(digit) <= self._groups:
                number = number * 10 + int(digit)
                self._at += 1
            return self._back_reference(number)
        self._at += 1
        return _set(self._escape())

    def _back_reference(self, number: int) -> _Node:
        self._references.append(number)
        inner = _reference(number)
        return _Node(f"(?i:{inner})" if "i" in self._flags else f"(?:{inner})")

    def _group(self) -> _Node | None:
        """Parse a group with its quantifier; return None for flags alone."""
        saved = self._flags
        letter = self._next()
        opening = "(?:"
        if letter == "?":
            self._at += 1
            letter = self._raw()
            self._at += 1
            if letter == ":":
                pass
            elif letter in ("=", "!"):
                opening = f"(?{letter}"
            elif letter == ">":
                opening = "(?>"
            elif letter == "<":
                letter = self._read()
                if letter in ("=", "!"):
                    opening = f"(?<{letter}"
                else:
                    self._at -= 1
                    name = self._group_name()
                    if name in self._names:
                        raise self._error(f"Named capturing group <{name}> is already defined")
                    self._groups += 1
                    self._names[name] = self._groups
                    opening = "("
            elif letter in ("$", "@"):
                raise self._error("Unknown group type")
            else:
                self._at -= 1
                self._inline_flags()
                closing = self._read()
                if closing == ")":
                    return None
                if closing != ":":
                    raise self._error("Unknown inline modifier")
        else:
            self._groups += 1
            opening = "("
        inner = self._expression()
        if self._peek() != ")":
            raise self._error("Unclosed group")
        self._at += 1
        self._flags = saved
        return self._closure(_Node(f"{opening}{inner.text})", opening == "("))

    def _group_name(self) -> str:
        start = self._at
        while (letter := self._raw()) and letter.isascii() and letter.isalnum():
            self._at += 1
        name = self._text[start : self._at]
        if not name[:1].isalpha():
            raise self._error("capturing group name does not start with a Latin letter")
        if self._raw() != ">":
            raise self._error("named capturing group is missing trailing '>'")
        self._at += 1
        return name

    def _inline_flags(self) -> None:
        turned_off = False
        while True:
            letter = self._peek()
            if letter == "-" and not turned_off:
                turned_off = True
            elif letter and letter in _FLAGS:
                changed = {"u", "U"} if letter == "U" else {letter}
                self._flags = self._flags - changed if turned_off else self._flags | changed
            else:
                return
            self._at += 1

    def _closure(self, node: _Node) -> _Node:
        """Apply the quantifier that follows, if any."""
        letter = self._peek()
        if letter not in ("?", "*", "+", "{"):
            return node
        if letter == "{":
            least, most = self._counts()
            quantifier = f"{{{least},{'' if most is None else most}}}"
        else:
            quantifier = letter
            self._at += 1
        suffix = self._peek()
        if suffix in ("?", "+") and suffix:
            self._at += 1
            quantifier += suffix
        text = node.text if node.capturing else f"(?:{node.text})"
        return _Node(f"{text}{quantifier}")

    def _counts(self) -> tuple[int, int | None]:
        if not _digit(self._raw(1)):
            raise self._error("Illegal repetition")
        self._at += 1
        least = self._number()
        most: int | None = least
        if self._peek() == ",":
            self._at += 1
            most = None if self._peek() == "}" else self._number()
        if self._peek() != "}":
            raise self._error("Unclosed counted closure")
        if least > _LARGEST or (most is not None and (most < least or most > _LARGEST)):
            raise self._error("Illegal repetition range")
        self._at += 1
        return least, most

    def _number(self) -> int:
        number = 0
        while _digit(self._peek()):
            number = number * 10 + int(self._read())
        return number

    # Characters and classes.

    def _single(self, letter: str) -> Predicate:
        """Return the characters that a literal matches under the flags."""
        if "i" not in self._flags:
            return lambda other: other == letter
        if "u" in self._flags:
            folded = _folded(letter)
            return lambda other: other == letter or _folded(other) == folded
        if letter.isascii():
            return lambda other: other.lower() == letter.lower()
        return lambda other: other == letter

    def _class(self, *, consume: bool) -> Predicate:
        """Parse the inside of `[...]`; the order of steps is that of Pattern.clazz."""
        previous: Predicate | None = None
        current: Predicate | None = None
        bits: set[str] = set()
        has_bits = negated = False
        letter = self._next()
        if letter == "^" and self._text[self._at - 1] == "[":
            letter = self._next()
            negated = True
        while True:
            if letter == "[":
                current = self._class(consume=True)
                previous = _union(previous, current)
                letter = self._peek()
                continue
            if letter == "&" and self._is_intersection():
                letter = self._peek()
                right: Predicate | None = None
                while letter not in ("]", "&"):
                    if letter == "[":
                        right = _union(right, self._class(consume=True))
                    else:
                        if not letter:
                            raise self._error("Unclosed character class")
                        self._at -= 1
                        right = _union(right, self._class(consume=False))
                    letter = self._peek()
                if has_bits:
                    if previous is None:
                        previous = current = _in(bits)
                    else:
                        previous = _union(previous, _in(bits))
                    has_bits = False
                if right is not None:
                    current = right
                if previous is None:
                    if right is None:
                        raise self._error("Bad class syntax")
                    previous = right
                else:
                    assert current is not None
                    previous = _intersection(previous, current)
                continue
            if not letter:
                raise self._error("Unclosed character class")
            if letter == "]" and (previous is not None or has_bits):
                if consume:
                    self._next()
                if has_bits:
                    previous = _union(previous, _in(bits))
                assert previous is not None
                return _complement(previous) if negated else previous
            member = self._range(bits)
            if member is None:
                has_bits = True
            else:
                current = member
                previous = _union(previous, member)
            letter = self._peek()

    def _is_intersection(self) -> bool:
        """Move behind `&&`, or stay at a literal `&`."""
        start = self._at
        if self._next() == "&":
            self._next()
            return True
        self._at = start
        return False

    def _range(self, bits: set[str]) -> Predicate | None:
        """Parse a member of a class; return None if it is a character that was added to `bits`."""
        letter = self._peek()
        if letter == "\\":
            if self._raw(1) in ("p", "P"):
                self._at += 1
                return self._family()
            self._at += 1
            literal = self._escape_literal(is_range=self._raw(1) == "-")
            if not isinstance(literal, str):
                return literal
            letter = literal
        else:
            self._next()
        if self._peek() == "-":
            end = self._raw(1)
            if end not in ("[", "]"):
                last = self._next()
                if last == "\\":
                    self._at += 1
                    escaped = self._escape_literal(is_range=True)
                    if not isinstance(escaped, str):
                        raise self._error("Illegal character range")
                    last = escaped
                else:
                    if not last:
                        raise self._error("Unclosed character class")
                    self._next()
                if last < letter:
                    raise self._error("Illegal character range")
                return self._between(letter, last)
        if ord(letter) < 256:
            single = self._single(letter)
            bits.update(other for other in ALPHABET if single(other))
            return None
        return self._single(letter)

    def _between(self, first: str, last: str) -> Predicate:
        if "i" in self._flags:
            return lambda other: any(first <= form <= last for form in (other, other.lower(), other.upper()))
        return lambda other: first <= other <= last

    def _escape(self) -> Predicate:
        """Parse what follows a backslash outside a class, as a set."""
        literal = self._escape_literal(is_range=False)
        return self._single(literal) if isinstance(literal, str) else literal

    def _escape_literal(self, *, is_range: bool) -> str | Predicate:
        """Parse what follows a backslash: a character, or a predefined class."""
        letter = self._raw()
        if not letter:
            raise self._error("Unexpected end of expression after a backslash")
        self._at += 1
        if letter == "v" and is_range:
            return "\x0b"
        if letter.lower() in _CLASSES:
            members = _CLASSES[letter.lower()]
            return _in(members) if letter.islower() else _complement(_in(members))
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "0":
            return self._octal()
        if letter == "x":
            return self._hexadecimal()
        if letter == "u":
            return self._unicode()
        if letter == "c":
            if self._at >= len(self._text):
                raise self._error("Illegal control escape sequence")
            self._at += 1
            return chr(ord(self._text[self._at - 1]) ^ 64)
        if letter == "N":
            return self._named_character()
        if letter.isascii() and letter.isalnum():
            raise self._error("Illegal/unsupported escape sequence")
        return letter

    def _octal(self) -> str:
        digits = ""
        while len(digits) < 3 and (digit := self._raw()) and digit in "01234567":
            if len(digits) == 2 and digits[0] > "3":
                break
            digits += digit
            self._at += 1
        if not digits:
            raise self._error("Illegal octal escape sequence")
        return chr(int(digits, 8))

    def _hexadecimal(self) -> str:
        if self._raw() == "{":
            end = self._text.find("}", self._at)
            digits = self._text[self._at + 1 : end] if end > 0 else ""
            if not digits or set(digits) - set(string.hexdigits) or int(digits, 16) > 0x10FFFF:
                raise self._error("Hexadecimal codepoint is invalid")
            self._at = end + 1
            return chr(int(digits, 16))
        return self._hexadecimal_digits(2, "Illegal hexadecimal escape sequence")

    def _hexadecimal_digits(self, count: int, reason: str) -> str:
        digits = self._text[self._at : self._at + count]
        if len(digits) < count or set(digits) - set(string.hexdigits):
            raise self._error(reason)
        self._at += count
        return chr(int(digits, 16))

    def _unicode(self) -> str:
        high = self._hexadecimal_digits(4, "Illegal Unicode escape sequence")
        if "\ud800" <= high <= "\udbff" and self._text[self._at : self._at + 2] == "\\u":
            start = self._at
            self._at += 2
            low = self._hexadecimal_digits(4, "Illegal Unicode escape sequence")
            if "\udc00" <= low <= "\udfff":
                return chr(0x10000 + ((ord(high) - 0xD800) << 10) + ord(low) - 0xDC00)
            self._at = start
        return high

    def _named_character(self) -> str:
        end = self._text.find("}", self._at)
        if self._raw() != "{" or end < 0:
            raise self._error("Illegal character name escape sequence")
        try:
            letter = unicodedata.lookup(self._text[self._at + 1 : end])
        except KeyError:
            raise self._error("Unknown character name") from None
        self._at = end + 1
        return letter

    def _family(self) -> Predicate:
        r"""Parse `\p{...}` or `\pL`; the position is at the p."""
        negated = self._raw() == "P"
        self._at += 1
        letter = self._peek()
        if letter == "{":
            end = self._text.find("}", self._at)
            if end < 0:
                raise self._error("Unclosed character family")
            name = self._text[self._at + 1 : end]
            if not name:
                raise self._error("Empty character family")
            self._at = end + 1
        else:
            name = letter
            self._at += 1
        members = property_members(name, ALPHABET, ignore_case="i" in self._flags, posix="U" in self._flags)
        if members is None:
            raise self._error(f"Unknown character property name {{{name}}}")
        return _complement(_in(members)) if negated else _in(members)


def _reference(number: int) -> str:
    """Return the placeholder of a back reference, until the number of groups is known."""
    return f"\ue000{number}\ue001"


def _digit(letter: str) -> bool:
    return letter.isascii() and letter.isdigit()


def _folded(letter: str) -> str:
    return letter.upper()[:1].lower()[:1]


def _in(members: set[str] | frozenset[str]) -> Predicate:
    """Return a predicate that sees members added later: Java's classes share their bits in the same way."""
    return lambda other: other in members


def _union(left: Predicate | None, right: Predicate) -> Predicate:
    return right if left is None else lambda other: left(other) or right(other)


def _intersection(left: Predicate, right: Predicate) -> Predicate:
    return lambda other: left(other) and right(other)


def _complement(inner: Predicate) -> Predicate:
    return lambda other: not inner(other)


def _set(predicate: Predicate) -> _Node:
    """Return the expression of a set of topic characters."""
    members = [letter for letter in ALPHABET if predicate(letter)]
    if len(members) == len(ALPHABET):
        return _Node(".")
    if not members:
        return _Node(_NEVER)
    if len(members) == 1:
        return _Node(regex.escape(members[0]))
    return _Node("[" + "".join(regex.escape(letter) for letter in members) + "]")
