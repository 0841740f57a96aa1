"""Reads the options of a data source: every name is known, every value is checked, every error shows an example.

Spark hands options over as text with lower-case names; nothing here knows what an option is for.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# What Spark adds by itself to the options of any source or sink.
_SPARKS_OWN = frozenset({"path", "paths", "checkpointlocation", "queryname", "truncate", "numrows", "mode"})


class OptionError(ValueError):
    """An option that is unknown, missing or malformed; the message names it and shows what would be right."""


class Options:
    """The options of one reader or writer.

    >>> Options("ottla", {"subscribe": "orders", "minpartitions": "8"}, ["subscribe", "minPartitions"]).integer(
    ...     "minPartitions"
    ... )
    8
    """

    def __init__(
        self, source: str, given: Mapping[str, str], known: Iterable[str], prefixes: tuple[str, ...] = ()
    ) -> None:
        self.source = source
        self._given = {name.lower(): value for name, value in given.items()}
        names = {name.lower(): name for name in known}
        for name in self._given:
            if name in names or name in _SPARKS_OWN or name.startswith(("spark.", *prefixes)):
                continue
            close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
            hint = f"did you mean {names[close[0]]}?" if close else f"it knows {', '.join(sorted(names.values()))}."
            raise OptionError(f"{source} has no option {name}; {hint}")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str, default: str | None = None) -> str | None:
        """The value as it was written."""
        return self._given.get(name.lower(), default)

    def required(self, name: str, example: str) -> str:
        """The value of an option that must be there."""
        value = self.text(name)
        if value is None or not value.strip():
            raise OptionError(f'{self.source} needs the option {name}, for example .option("{name}", "{example}")')
        return value

    def integer(self, name: str, default: int | None = None, *, least: int = 0) -> int | None:
        """A whole number."""
        value = self.text(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            example = 1_700_000_000_000 if name.endswith("Timestamp") else max(least, 1000)
            raise OptionError(f"{name} is a whole number, for example {example}, not {value!r}") from None
        if number < least:
            raise OptionError(f"{name} is at least {least}, not {number}")
        return number

    def size(self, name: str, default: int) -> int:
        """A number of bytes, with k, m or g behind it if wanted."""
        value = self.text(name)
        if value is None:
            return default
        plain = value.strip().lower().removesuffix("b")
        factor = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(plain[-1:], 1)
        digits = plain[:-1] if factor > 1 else plain
        if not digits.isdigit() or not int(digits):
            raise OptionError(f"{name} is a number of bytes, for example 67108864 or 64m, not {value!r}")
        return int(digits) * factor

    def seconds(self, name: str, default: float) -> float:
        """A length of time with its unit, as Spark writes them."""
        value = self.text(name)
        if value is None:
            return default
        found = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|min|h|d)\s*", value.lower())
        if found is None:
            raise OptionError(f"{name} is a time with its unit, for example 15m or 30s, not {value!r}")
        return int(found[1]) * {"ms": 0.001, "s": 1.0, "h": 3600.0, "d": 86400.0}.get(found[2], 60.0)

    def boolean(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.text(name)
        if value is None:
            return default
        if value.strip().lower() not in ("true", "false"):
            raise OptionError(f"{name} is true or false, not {value!r}")
        return value.strip().lower() == "true"

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """One of some words."""
        value = self.text(name)
        if value is None:
            return default
        found = {choice.lower(): choice for choice in choices}.get(value.strip().lower())
        if found is None:
            raise OptionError(f"{name} is one of {', '.join(choices)}, not {value!r}")
        return found
