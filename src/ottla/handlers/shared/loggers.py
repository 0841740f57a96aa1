"""Levels of ottla's loggers, as the BROKER_LOGGER resource shows and changes them (KIP-412).

Levels belong to the process, not to the metadata: a restart resets them, as in Kafka.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ottla.cluster.configs import ConfigType
from ottla.cluster.configs.alter import AlterOperation
from ottla.cluster.configs.effective import ConfigEntry, ConfigSource
from ottla.handlers.shared.configs import parse_node_id
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ottla.broker.broker import Broker
    from ottla.cluster.configs.changes import ConfigChange

ROOT: Final = "ottla"
LEVELS: Final = {"FATAL": 50, "ERROR": 40, "WARN": 30, "INFO": 20, "DEBUG": 10, "TRACE": 5}


def logger_names() -> list[str]:
    """Return the names of all loggers of ottla, the root first."""
    known = [name for name in logging.root.manager.loggerDict if name.startswith(f"{ROOT}.")]
    return [ROOT, *sorted(known)]


def describe_loggers(names: Collection[str] | None = None) -> list[ConfigEntry]:
    """Return each logger with its effective level."""
    return [
        ConfigEntry(
            name,
            _level_name(logging.getLogger(name).getEffectiveLevel()),
            ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
            ConfigType.UNKNOWN,
            sensitive=False,
            read_only=False,
            synonyms=(),
            documentation=None,
        )
        for name in logger_names()
        if not names or name in names
    ]


def alter_loggers(broker: Broker, node: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
    """Set levels, or reset loggers to inherit; all or none."""
    if parse_node_id("Node", node) != broker.node_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected node id. Expected {broker.node_id}, but received {node}"
        )
    known = set(logger_names())
    for change in changes:
        _check(change, known)
    if validate_only:
        return
    for change in changes:
        level = LEVELS[change.value] if change.operation is AlterOperation.SET and change.value else logging.NOTSET
        logging.getLogger(change.name).setLevel(level)


def _check(change: ConfigChange, known: Collection[str]) -> None:
    if change.operation in (AlterOperation.APPEND, AlterOperation.SUBTRACT):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{change.operation.name} operation is not allowed for the BROKER_LOGGER resource",
        )
    if change.name not in known:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {change.name} does not exist!")
    if change.operation is AlterOperation.DELETE and change.name == ROOT:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")
    if change.operation is AlterOperation.SET and change.value not in LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {change.name} to {change.value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(LEVELS)}",
        )


def _level_name(level: int) -> str:
    return next((name for name, least in LEVELS.items() if level >= least), "TRACE")
