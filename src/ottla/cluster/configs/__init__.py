"""Table of all configs of topics, brokers, groups and client metrics, with types, defaults and bounds."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.cluster.configs.key import REQUIRED, ConfigKey, UpdateMode, table
from ottla.cluster.configs.tables.broker_cluster import BROKER_CLUSTER_KEYS
from ottla.cluster.configs.tables.broker_groups import BROKER_GROUPS_KEYS
from ottla.cluster.configs.tables.broker_log import BROKER_LOG_KEYS
from ottla.cluster.configs.tables.broker_remote import BROKER_REMOTE_KEYS
from ottla.cluster.configs.tables.broker_sasl import BROKER_SASL_KEYS
from ottla.cluster.configs.tables.broker_security import BROKER_SECURITY_KEYS
from ottla.cluster.configs.tables.broker_server import BROKER_SERVER_KEYS
from ottla.cluster.configs.tables.broker_share import BROKER_SHARE_KEYS
from ottla.cluster.configs.tables.broker_transactions import BROKER_TRANSACTIONS_KEYS
from ottla.cluster.configs.tables.client_metrics import CLIENT_METRICS_KEYS
from ottla.cluster.configs.tables.group import GROUP_KEYS
from ottla.cluster.configs.tables.topic import TOPIC_KEYS
from ottla.cluster.configs.values import ConfigType, Value, to_text

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BROKER",
    "BROKER_QUOTAS",
    "BY_RESOURCE",
    "CLIENT_METRICS",
    "GROUP",
    "REQUIRED",
    "TOPIC",
    "ConfigKey",
    "ConfigResource",
    "ConfigResourceType",
    "ConfigType",
    "UpdateMode",
    "Value",
    "to_text",
]


class ConfigResourceType(IntEnum):
    """Type of a config resource, numbered as in requests and in ConfigRecord."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """Owner of configs: a topic, a broker (an empty name means all), a group or a client metrics subscription."""

    type: ConfigResourceType
    name: str


TOPIC: Final = table(TOPIC_KEYS)
GROUP: Final = table(GROUP_KEYS)
CLIENT_METRICS: Final = table(CLIENT_METRICS_KEYS)
BROKER: Final = table(
    (
        *BROKER_CLUSTER_KEYS,
        *BROKER_GROUPS_KEYS,
        *BROKER_LOG_KEYS,
        *BROKER_REMOTE_KEYS,
        *BROKER_SASL_KEYS,
        *BROKER_SECURITY_KEYS,
        *BROKER_SERVER_KEYS,
        *BROKER_SHARE_KEYS,
        *BROKER_TRANSACTIONS_KEYS,
    )
)
BROKER_QUOTAS: Final = frozenset(
    {
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""Broker configs that can only be set dynamically: a broker does not describe them until they are set."""

BY_RESOURCE: Final[Mapping[ConfigResourceType, Mapping[str, ConfigKey]]] = {
    ConfigResourceType.TOPIC: TOPIC,
    ConfigResourceType.BROKER: BROKER,
    ConfigResourceType.GROUP: GROUP,
    ConfigResourceType.CLIENT_METRICS: CLIENT_METRICS,
}
