"""One config key: type, default, bounds, documentation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from ottla.cluster.configs.rules import ListOf, Validator
from ottla.cluster.configs.values import ConfigType, Value, parse_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class UpdateMode(Enum):
    """Whether a broker config is read-only, per-broker or cluster-wide."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()
"""The default of a key that has none."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """Definition of a config (Kafka's ConfigDef.ConfigKey)."""

    name: str
    type: ConfigType
    default: Value | _Required
    doc: str
    validator: Validator | None = None
    mode: UpdateMode = UpdateMode.READ_ONLY
    synonym: str | None = None
    """The broker config that is this topic's or group's default."""
    internal: bool = False
    """Internal keys can be set but are not described."""
    acts: bool = False
    """Whether ottla acts on it; other keys are kept and described only."""

    @property
    def sensitive(self) -> bool:
        """Whether the value is sensitive."""
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str | None) -> Value:
        """Parse and validate a value; None is an explicit null."""
        value = None if text is None else parse_text(self.name, text, self.type)
        if isinstance(self.validator, ListOf) and isinstance(value, tuple):
            value = tuple(dict.fromkeys(value))
        if self.validator is not None:
            self.validator.check(self.name, value)
        return value

    def default_value(self) -> Value:
        """Return the default; None for a key without one."""
        return None if isinstance(self.default, _Required) else self.default

    def allowed(self) -> str:
        """Return the allowed values for documentation."""
        kind = {
            ConfigType.BOOLEAN: "true or false",
            ConfigType.INT: "a 32-bit integer",
            ConfigType.SHORT: "a 16-bit integer",
            ConfigType.LONG: "a 64-bit integer",
            ConfigType.DOUBLE: "a number",
            ConfigType.LIST: "a comma-separated list",
            ConfigType.CLASS: "a class name",
        }.get(self.type, "a string")
        rule = self.validator.describe() if self.validator is not None else ""
        return f"{kind}, {rule}" if rule else kind


def table(keys: Iterable[ConfigKey]) -> Mapping[str, ConfigKey]:
    """Return keys sorted by name; raise for duplicates."""
    by_name: dict[str, ConfigKey] = {}
    for key in sorted(keys, key=lambda key: key.name):
        assert key.name not in by_name, key.name
        by_name[key.name] = key
    return by_name
