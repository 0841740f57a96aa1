"""Read the options of a data source: unknown names and malformed values raise `OptionError` with an example.

Spark passes options as text with lower-case names. What an option means is up to its source.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from ottla.spark.client_settings import answer, option_names
from ottla.spark.data_loss import warn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ottla.spark.client_settings import Side

# Options that Spark adds to those of any source or sink.
_SPARK_OPTIONS = frozenset({"path", "paths", "checkpointlocation", "queryname", "truncate", "numrows", "mode"})


_UNITS = {
    **dict.fromkeys(("us", "microsecond"), 1e-6),
    **dict.fromkeys(("", "ms", "millisecond"), 1e-3),
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("m", "min", "minute"), 60.0),
    **dict.fromkeys(("h", "hour"), 3600.0),
    **dict.fromkeys(("d", "day"), 86_400.0),
    "week": 604_800.0,
}


class OptionError(ValueError):
    """An option is unknown, missing or malformed; the message names it and shows a correct value."""


class Options:
    """The options of one reader or writer.

    >>> Options("ottla", {"subscribe": "orders", "minpartitions": "8"}, ["subscribe", "minPartitions"]).integer(
    ...     "minPartitions"
    ... )
    8
    """

    def __init__(
        self,
        source: str,
        options: Mapping[str, str],
        known: Iterable[str],
        *,
        side: Side | None = None,
        ignored: Mapping[str, str] | None = None,
    ) -> None:
        """Check all names.

        With a side, settings of Kafka's clients are options too. `ignored` has further options with the reasons why
        they have no effect.
        """
        self.source = source
        self._given = {name.lower(): value for name, value in options.items()}
        self._ignored: list[tuple[str, str]] = []
        without_effect = {name.lower(): (name, reason) for name, reason in (ignored or {}).items()}
        names = {name.lower(): name for name in (*known, *(ignored or ()))}
        for name in self._given:
            if name in without_effect:
                self._ignored.append(without_effect[name])
            elif side is not None and name.startswith("kafka."):
                self._check_setting(name, side)
            elif name not in names and name not in _SPARK_OPTIONS and not name.startswith("spark."):
                close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
                known_names = ", ".join(sorted(names.values()))
                hint = f"did you mean {names[close[0]]}?" if close else f"there are {known_names}."
                raise OptionError(f"{source} has no option {name}; {hint}")

    def _check_setting(self, name: str, side: Side) -> None:
        result = answer(name.removeprefix("kafka."), side)
        if result is None:
            close = difflib.get_close_matches(name, option_names(), n=1, cutoff=0.75)
            hint = f"did you mean {close[0]}?" if close else "Kafka's clients have no such setting."
            raise OptionError(f"{self.source} has no option {name}; {hint}")
        if result.kind == "refused":
            raise OptionError(f"{name} is not supported: {result.reason}")
        if result.kind == "ignored":
            self._ignored.append((name, result.reason))

    def ignore(self, name: str, reason: str) -> None:
        """Note that an option has no effect in this read or write."""
        if name in self:
            self._ignored.append((name, reason))

    @property
    def ignored(self) -> tuple[tuple[str, str], ...]:
        """The options that have no effect, each with the reason."""
        return tuple(self._ignored)

    def warn_ignored(self) -> None:
        """Print one warning for each option that has no effect."""
        for name, reason in self._ignored:
            warn(self.source, f"the option {name} has no effect: {reason}")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return the value as it was written, or the default."""
        return self._given.get(name.lower(), default)

    def required(self, name: str, example: str) -> str:
        """Return the value of an option that must be set."""
        value = self.text(name)
        if value is None or not value.strip():
            raise OptionError(f'{self.source} needs the option {name}, for example .option("{name}", "{example}")')
        return value

    def integer(self, name: str, default: int | None = None, *, least: int = 0) -> int | None:
        """Return a whole number."""
        value = self.text(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            example = 1_700_000_000_000 if name.endswith("Timestamp") else max(least, 1000)
            raise OptionError(f"{name} must be a whole number, for example {example}, not {value!r}") from None
        if number < least:
            raise OptionError(f"{name} must be at least {least}, not {number}")
        return number

    def size(self, name: str, default: int) -> int:
        """Return a number of bytes, with an optional suffix k, m or g."""
        value = self.text(name)
        if value is None:
            return default
        plain = value.strip().lower().removesuffix("b")
        factor = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(plain[-1:], 1)
        digits = plain[:-1] if factor > 1 else plain
        if not digits.isdigit() or not int(digits):
            raise OptionError(f"{name} must be a number of bytes, for example 67108864 or 64m, not {value!r}")
        return int(digits) * factor

    def seconds(self, name: str, default: float) -> float:
        """Return a duration in seconds: Spark's short forms (15m, 30s, a bare number of ms) and intervals (1 hour)."""
        value = self.text(name)
        if value is None:
            return default
        text = value.strip().lower().removeprefix("interval ").replace("'", "")
        parts = re.findall(r"(\d+)\s*([a-z]*)", text)
        if not parts or re.fullmatch(r"(\d+\s*[a-z]*[\s,]*)+", text) is None:
            raise OptionError(f"{name} must be a time with its unit, for example 15m, 30s or 1 hour, not {value!r}")
        seconds = 0.0
        for number, unit in parts:
            factor = _UNITS.get(unit if unit in _UNITS else unit.removesuffix("s"))
            if factor is None or (not unit and len(parts) > 1):
                raise OptionError(f"{name} must be a time with its unit, for example 15m, 30s or 1 hour, not {value!r}")
            seconds += int(number) * factor
        return seconds

    def boolean(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.text(name)
        if value is None:
            return default
        if value.strip().lower() not in ("true", "false"):
            raise OptionError(f"{name} must be true or false, not {value!r}")
        return value.strip().lower() == "true"

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Return one of several words."""
        value = self.text(name)
        if value is None:
            return default
        choice = {choice.lower(): choice for choice in choices}.get(value.strip().lower())
        if choice is None:
            raise OptionError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        return choice
