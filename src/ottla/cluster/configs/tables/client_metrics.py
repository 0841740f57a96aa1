"""Configs of a subscription to client metrics (KIP-714)."""

from __future__ import annotations

from typing import Final

from ottla.cluster.configs.key import ConfigKey
from ottla.cluster.configs.rules import ListOf
from ottla.cluster.configs.values import ConfigType

CLIENT_METRICS_KEYS: Final[tuple[ConfigKey, ...]] = (
    ConfigKey(
        "interval.ms",
        ConfigType.INT,
        300_000,
        "How often the chosen clients push their metrics, between 100 ms and an hour.",
    ),
    ConfigKey(
        "match",
        ConfigType.LIST,
        (),
        "Which clients are meant: `property=regular expression` pairs over their id, software, address "
        "and port; empty means all.",
        validator=ListOf(),
    ),
    ConfigKey(
        "metrics",
        ConfigType.LIST,
        (),
        "Prefixes of the metric names that clients push; `*` selects all, an empty list none.",
        validator=ListOf(),
    ),
)
