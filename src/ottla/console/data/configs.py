"""Configs of topics, brokers and groups with their source, default and documentation; changes to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.client.configs import (
    DEFAULT_CONFIG,
    DYNAMIC_TOPIC_CONFIG,
    SOURCES,
    TYPES,
    Operation,
    Resource,
    alter_configs,
    describe_configs,
)

if TYPE_CHECKING:
    from ottla.client.client import Client

OWN_SOURCES: Final = {Resource.TOPIC: DYNAMIC_TOPIC_CONFIG, Resource.BROKER: 2, Resource.GROUP: 8}
"""The source of a config that was set on the resource itself."""


@dataclass(frozen=True, slots=True)
class Config:
    """A config of a resource. `value` is None for a secret."""

    name: str
    value: str | None
    type: str
    source: str
    default: str | None
    """The value without the one that was set on the resource; None if it is not known."""
    own: bool
    """Whether the value was set on the resource itself."""
    is_default: bool
    read_only: bool
    sensitive: bool
    documentation: str


def describe_resource(client: Client, kind: Resource, name: str) -> list[Config]:
    """Return the configs of a topic, broker or group."""
    configs = []
    for entry in describe_configs(client, kind, name, synonyms=True, documentation=True):
        own = entry.config_source == OWN_SOURCES[kind]
        inherited = [synonym for synonym in entry.synonyms if synonym.source != OWN_SOURCES[kind]]
        configs.append(
            Config(
                entry.name,
                None if entry.is_sensitive else entry.value,
                TYPES.get(entry.config_type, "unknown"),
                SOURCES.get(entry.config_source, "unknown"),
                inherited[0].value if inherited else None if own else entry.value,
                own,
                entry.config_source == DEFAULT_CONFIG,
                entry.read_only,
                entry.is_sensitive,
                entry.documentation or "",
            )
        )
    return configs


def set_config(client: Client, kind: Resource, name: str, key: str, value: str | None) -> None:
    """Set a config, or with None remove the value that was set; the cluster validates it first."""
    operation = Operation.DELETE if value is None else Operation.SET
    alter_configs(client, kind, name, [(key, operation, value)], validate_only=True)
    alter_configs(client, kind, name, [(key, operation, value)])
