"""Seeded regular expressions in Java's syntax, right and wrong ones, and topic names to search with them."""

from __future__ import annotations

import random

# ruff: noqa: SIM905 - lists of words
NAMES = (
    "a orders payments PAYMENTS order_9 a.b pp aa-bb Pop0.1-aB oOoPp abab 019 _x b.a_p-o ba eu.orders-v2 __internal"
).split()
_LETTERS = "abopPO019._-"
_PROPERTIES = (
    "Lu Ll L N Nd P Pd Pc LC LD L1 all ASCII Alpha Lower Upper Punct XDigit Alnum Digit Graph Print Space Cntrl Blank "
    "javaLowerCase javaUpperCase javaLetter javaJavaIdentifierStart javaUnicodeIdentifierPart IsLatin IsCommon IsGreek "
    "IsAlphabetic IsUppercase IsLowercase IsPunctuation IsWord IsDigit InBasicLatin InGreek script=Latin sc=Common "
    "block=BasicLatin gc=Lu general_category=Nd IsHex_Digit IsL nothing Isnothing"
).split()
_QUANTIFIERS = ["", "", "", "", "", *"* + ? *? +? ?? *+ ++ ?+ {2} {1,2} {0,3}? {1,}+ {,2} {2,1} {0}".split()]
_GROUPS = (
    "({}) ({}) (?:{}) (?={}) (?!{}) (?>{}) (?i:{}) (?iu:{}) (?<n>{}) (?i-s:{}) (?i){} (?x){} (?U){} (?-i){} (?q){}"
).split()
_SINGLES = [
    *r"\Qa.p\E \x6f \u0070 \. \- \_ \k<n> \cA \07 \e \y \N{DIGIT-ONE} { } ]".split(),
    "\u212a",
    "\u017f",
    "\\\u00e9",
]


def expression(seed: int) -> str:
    """Return an expression; equal seeds give equal expressions."""
    return _Writer(random.Random(seed)).alternatives(0)


class _Writer:
    def __init__(self, source: random.Random) -> None:
        self._random = source

    def alternatives(self, depth: int) -> str:
        return "|".join(self._sequence(depth) for _ in range(self._random.choice([1, 1, 1, 2, 3])))

    def _sequence(self, depth: int) -> str:
        count = self._random.randint(0 if depth else 1, 4)
        return "".join(self._atom(depth) + self._random.choice(_QUANTIFIERS) for _ in range(count))

    def _property(self) -> str:
        return f"\\{self._random.choice('pP')}{{{self._random.choice(_PROPERTIES)}}}"

    def _atom(self, depth: int) -> str:
        choose = self._random.choice
        match self._random.randrange(24):
            case 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7:
                return choose(_LETTERS)
            case 8:
                return "."
            case 9 | 10 | 11:
                return self._class(0)
            case 12 | 13:
                return "\\" + choose("dDwWsSbBAzZGhHvVRX")
            case 14:
                return self._property()
            case 15:
                return choose("^$")
            case 16:
                return "\\" + choose("123")
            case 17:
                return choose(_SINGLES)
            case 18:
                inner = choose(_LETTERS) + choose(["", "{1,2}", "?"]) + self._class(1)
                return choose(["(?<={})", "(?<!{})"]).replace("{}", inner)
        return choose(_LETTERS) if depth > 2 else choose(_GROUPS).replace("{}", self.alternatives(depth + 1))

    def _class(self, depth: int) -> str:
        choose = self._random.choice
        parts = []
        for _ in range(self._random.randint(1, 4)):
            match self._random.randrange(14):
                case 0 | 1 | 2 | 3 | 4:
                    parts.append(choose(_LETTERS))
                case 5 | 6 | 7:
                    parts.append(f"{choose('a0AbB.')}-{choose('z9Zpo_')}")
                case 8:
                    parts.append("\\" + choose("dDwWsShHvVt.-]\\[&^n"))
                case 9:
                    parts.append(self._property())
                case 10 if depth < 2:
                    parts.append(self._class(depth + 1))
                case 11:
                    parts.append("&&" + (self._class(depth + 1) if depth < 2 else choose(_LETTERS)))
                case 12:
                    parts.append(choose("&-^]# "))
                case _:
                    parts.append(choose(r"\x61 \u0062 \Qa-c\E \x{70} \0101".split()))
        return f"[{'^' if self._random.random() < 0.25 else ''}{''.join(parts)}]"
