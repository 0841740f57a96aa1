"""Validators of config values (Kafka's ConfigDef.Validator), with Kafka's error messages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.cluster.configs.values import TRIMMED, Value, invalid, shown
from ottla.protocol.errors import ErrorCode, KafkaError

_DURATION: Final = re.compile(
    r"[+]?P([+]?[0-9]+D)?(T([+]?[0-9]+H)?([+]?[0-9]+M)?([+]?[0-9]+(\.[0-9]{0,9})?S)?)?", re.IGNORECASE
)
_HOST_AND_PORT: Final = re.compile(r"(?:.*?://)?\[?([0-9a-zA-Z\-._%:]+)\]?:([0-9]{1,5})")


class Validator(Protocol):
    """A validator of parsed values."""

    def check(self, name: str, value: Value) -> None:
        """Raise INVALID_CONFIG if the value is not allowed."""
        ...

    def describe(self) -> str:
        """Return the allowed values for a table cell."""
        ...


@dataclass(frozen=True, slots=True)
class Range:
    """A number between two bounds, both included; `None` is unbounded."""

    low: int | float | None
    high: int | float | None = None

    def check(self, name: str, value: Value) -> None:
        """Raise INVALID_CONFIG if the number is out of bounds."""
        if value is None:
            raise invalid(name, "null", "Value must be non-null")
        assert isinstance(value, int | float)
        if self.low is not None and value < self.low:
            raise invalid(name, shown(value), f"Value must be at least {self.low}")
        if self.high is not None and value > self.high:
            raise invalid(name, shown(value), f"Value must be no more than {self.high}")

    def describe(self) -> str:
        """Return the bounds in the notation of Kafka's documentation."""
        if self.high is None:
            return f"[{self.low},...]"
        return f"[{self.low},...,{self.high}]"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several strings."""

    words: tuple[str, ...]
    any_case: bool = False

    def check(self, name: str, value: Value) -> None:
        """Raise INVALID_CONFIG for any other string."""
        if self.any_case:
            if value is None or str(value).upper() not in {word.upper() for word in self.words}:
                allowed = ", ".join(self.words)
                raise invalid(name, shown(value), f"String must be one of (case insensitive): {allowed}")
        elif value not in self.words:
            raise invalid(name, shown(value), f"String must be one of: {', '.join(self.words)}")

    def describe(self) -> str:
        """Return the allowed strings."""
        words = f"[{', '.join(self.words)}]"
        return f"(case insensitive) {words}" if self.any_case else words


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list without duplicates and empty items; with `words`, only of these."""

    words: tuple[str, ...] = ()
    empty_allowed: bool = True
    null_allowed: bool = False

    def check(self, name: str, value: Value) -> None:
        """Raise INVALID_CONFIG if the list or one of its items is not allowed."""
        if value is None:
            if self.null_allowed:
                return
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Configuration '{name}' values must not be null.")
        assert isinstance(value, tuple)
        if not value and not self.empty_allowed:
            allowed = self.describe() or "any non-empty value"
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Configuration '{name}' must not be empty. Valid values include: {allowed}",
            )
        for item in value:
            if not item:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Configuration '{name}' values must not be empty.")
            if self.words:
                OneOf(self.words).check(name, item)

    def describe(self) -> str:
        """Return the allowed items, if they are limited."""
        return f"[{', '.join(self.words)}]" if self.words else ""


@dataclass(frozen=True, slots=True)
class NonEmpty:
    """A string with at least one character."""

    def check(self, name: str, value: Value) -> None:
        """Raise INVALID_CONFIG for the empty string."""
        if value == "":
            raise invalid(name, "", "String must be non-empty")

    def describe(self) -> str:
        """Return the rule for documentation."""
        return "non-empty string"


@dataclass(frozen=True, slots=True)
class Present:
    """Any value but null."""

    def check(self, name: str, value: Value) -> None:
        """Raise INVALID_CONFIG for null."""
        if value is None:
            raise invalid(name, "null", "entry must be non null")

    def describe(self) -> str:
        """Return the rule for documentation."""
        return "non-null string"


@dataclass(frozen=True, slots=True)
class GzipLevel:
    """gzip's levels: 1 to 9, or -1 for the codec's default."""

    def check(self, name: str, value: Value) -> None:
        """Raise INVALID_CONFIG for another level."""
        assert isinstance(value, int)
        if value != -1 and not 1 <= value <= 9:
            raise invalid(name, str(value), "Value must be between 1 and 9 or equal to -1")

    def describe(self) -> str:
        """Return the allowed levels."""
        return "[1,...,9] or -1"


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """`*`, or a list of `partition:broker`."""

    def check(self, name: str, value: Value) -> None:
        """Raise INVALID_CONFIG for anything else."""
        assert isinstance(value, tuple)
        items = [item.strip(TRIMMED) for item in value]
        if all(re.fullmatch("([0-9]+:[0-9]+)?", item) for item in items) or "".join(items) == "*":
            return
        raise invalid(
            name,
            shown(value),
            f"{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
        )

    def describe(self) -> str:
        """Return the format of the list."""
        return "[partitionId]:[brokerId],[partitionId]:[brokerId],..."


@dataclass(frozen=True, slots=True)
class ShareOffsetReset:
    """`earliest`, `latest` or `by_duration:` with an ISO-8601 duration that is not negative."""

    def check(self, name: str, value: Value) -> None:
        """Raise INVALID_CONFIG for anything else."""
        text = shown(value)
        if text in ("earliest", "latest"):
            return
        prefix, _, duration = text.partition(":")
        if prefix == "by_duration" and _DURATION.fullmatch(duration) and duration[-1] not in "PT":
            return
        raise invalid(
            name,
            text,
            f"Invalid value `{text}` for configuration {name}. The value must be either 'earliest', 'latest' or of "
            "the format 'by_duration:<PnDTnHnMn.nS>'.",
        )

    def describe(self) -> str:
        """Return the three formats."""
        return "[latest, earliest, by_duration:PnDTnHnMn.nS]"


@dataclass(frozen=True, slots=True)
class QuorumVoters:
    """A list of `id@host:port`."""

    def check(self, name: str, value: Value) -> None:
        """Raise INVALID_CONFIG for an entry of another form."""
        assert isinstance(value, tuple)
        form = "Each entry should be in the form `{id}@{host}:{port}`."
        for entry in value:
            voter, at, address = entry.partition("@")
            if not at or "@" in address:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Invalid configuration value for {name}. {form}")
            if not re.fullmatch("[+-]?[0-9]{1,9}", voter):
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Failed to parse voter ID as an integer from {voter}")
            if not _HOST_AND_PORT.fullmatch(address):
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"Failed to parse host name from entry {entry} for the configuration {name}. {form}",
                )

    def describe(self) -> str:
        """Return the rule for documentation."""
        return "non-empty list"


@dataclass(frozen=True, slots=True)
class BootstrapServers:
    """A list of `host:port`."""

    def check(self, name: str, value: Value) -> None:
        """Raise INVALID_CONFIG for an entry of another form."""
        assert isinstance(value, tuple)
        for entry in value:
            if not _HOST_AND_PORT.fullmatch(entry):
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"Failed to parse host name from {entry} for the configuration {name}. "
                    'Each entry should be in the form "{host}:{port}"',
                )

    def describe(self) -> str:
        """Return the rule for documentation."""
        return "non-empty list"
