"""Parses JAAS login sections, as in `sasl.jaas.config`: `Module required key="value" ... ;`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s=;"']+)|([=;]))""")
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})


@dataclass(frozen=True, slots=True, repr=False)
class JaasSection:
    """One login module with its options. They hold secrets, so `repr` hides them."""

    module: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"JaasSection({self.module}, {len(self.options)} options)"

    @property
    def users(self) -> dict[str, str]:
        """Return the passwords of `user_<name>="password"` options by user."""
        return {key[5:]: value for key, value in self.options.items() if key.startswith("user_")}


def parse_jaas(text: str) -> JaasSection:
    """Parse the one section of a `sasl.jaas.config`; raise ValueError without repeating secrets."""
    words = _words(text)
    module = _take(words, "a login module's class name")
    flag = _take(words, "required, requisite, sufficient or optional")
    if flag[0].lower() not in _FLAGS:
        raise ValueError("JAAS: after the login module comes required, requisite, sufficient or optional")
    options: dict[str, str] = {}
    while words:
        word, kind = words.pop(0)
        if (word, kind) == (";", "mark"):
            if words:
                raise ValueError("JAAS: only one login module can be given here")
            return JaasSection(module[0], options)
        if kind != "bare" or not words or words.pop(0) != ("=", "mark"):
            raise ValueError('JAAS: options are written key="value"')
        options[word] = _take(words, f"a value of {word}")[0]
    raise ValueError("JAAS: the section has to end with a semicolon")


def _take(words: list[tuple[str, str]], what: str) -> tuple[str, str]:
    if not words or words[0][1] == "mark":
        raise ValueError(f"JAAS: {what} is missing")
    return words.pop(0)


def _words(text: str) -> list[tuple[str, str]]:
    words = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"JAAS: a quotation mark at position {position} is not closed")
        position = match.end()
        quoted = match[1] if match[1] is not None else match[2]
        if quoted is not None:
            words.append((re.sub(r"\\(.)", r"\1", quoted), "quoted"))
        elif match[3] is not None:
            words.append((match[3], "bare"))
        else:
            words.append((match[4], "mark"))
    return words
