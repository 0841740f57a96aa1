"""Effective config values and their sources: layers of overrides, and the answers of DescribeConfigs.

Precedence: topic config, dynamic broker config, dynamic default broker config, properties file, default in the
table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from ottla.cluster.configs import (
    BROKER,
    BROKER_QUOTAS,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    ConfigKey,
    ConfigType,
    UpdateMode,
    Value,
    to_text,
)
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

_LISTENER_CONFIG: Final = re.compile(r"listener\.name\.[^.]*\.(.*)", re.DOTALL)
_LISTENER_MECHANISM_CONFIGS: Final = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)
_SYNONYM_CHAINS: Final = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_FLUSH_CHAIN: Final = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")
_UNIT_MS: Final = {
    "log.roll.hours": 3_600_000,
    "log.roll.jitter.hours": 3_600_000,
    "log.retention.minutes": 60_000,
    "log.retention.hours": 3_600_000,
}


class ConfigSource(IntEnum):
    """Source of a value, numbered as in DescribeConfigs."""

    UNKNOWN = 0
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A config synonym: one of the settings that may decide a value."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config as DescribeConfigs returns it; a sensitive value is None."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    sensitive: bool
    read_only: bool
    synonyms: tuple[ConfigSynonym, ...]
    documentation: str | None


@dataclass(frozen=True, slots=True)
class BrokerLayers:
    """Layers of a broker's configs as text, in order of precedence; defaults of the table come last."""

    dynamic_broker: Mapping[str, str] = field(default_factory=dict)
    dynamic_default: Mapping[str, str] = field(default_factory=dict)
    static: Mapping[str, str] = field(default_factory=dict)

    def layers(self) -> Iterator[tuple[ConfigSource, Mapping[str, str]]]:
        """Yield each layer with its source."""
        yield ConfigSource.DYNAMIC_BROKER_CONFIG, self.dynamic_broker
        yield ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, self.dynamic_default
        yield ConfigSource.STATIC_BROKER_CONFIG, self.static


def base_name(name: str) -> str:
    """Return the config that a listener config overrides: `ssl.client.auth` for `listener.name.x.ssl.client.auth`."""
    match = _LISTENER_CONFIG.fullmatch(name)
    return match[1] if match else name


def broker_synonyms(name: str) -> tuple[str, ...]:
    """Return the synonyms of a broker config, in order of precedence."""
    for chain in _SYNONYM_CHAINS:
        if name in chain:
            return chain
    if name == _FLUSH_CHAIN[0]:
        return _FLUSH_CHAIN
    base = base_name(name)
    if base != name:
        for mechanism in _LISTENER_MECHANISM_CONFIGS:
            if base.endswith(mechanism):
                return (name, mechanism)
        return (name, base)
    return (name,)


def broker_key(name: str) -> ConfigKey | None:
    """Return the table entry of a broker config, also for listener configs."""
    for synonym in (name, *broker_synonyms(name)):
        key = BROKER.get(synonym)
        if key is not None:
            return key
    return None


def _parsed(key: ConfigKey, text: str) -> tuple[bool, Value]:
    try:
        return True, key.parse(text)
    except KafkaError:
        # Ignore a dynamic value that is not valid in this version, as Kafka does.
        return False, None


def broker_value(layers: BrokerLayers, name: str) -> Value:
    """Return the effective value of the broker config with exactly this name."""
    key = BROKER[name]
    for _, layer in layers.layers():
        text = layer.get(name)
        if text is not None:
            good, value = _parsed(key, text)
            if good:
                return value
        elif layer is not layers.static and any(overriding in layer for overriding in _overriding(name)):
            # A dynamic log.retention.ms overrides retention settings of the file in any unit.
            break
    return key.default_value()


def log_dirs(layers: BrokerLayers) -> tuple[str, ...]:
    """Return the configured log directories: `log.dirs`, or `log.dir` without it."""
    directories = broker_value(layers, "log.dirs")
    if directories is None:
        directories = broker_value(layers, "log.dir")
    assert isinstance(directories, tuple)
    return directories


def cordoned_problem(layers: BrokerLayers) -> str | None:
    """Return Kafka's error message for an invalid `cordoned.log.dirs`, or None."""
    cordoned = broker_value(layers, "cordoned.log.dirs")
    known = log_dirs(layers)
    if not isinstance(cordoned, tuple):
        return None
    if "*" in cordoned:
        return "When cordoned.log.dirs is set to *, it must not contain other values" if len(cordoned) > 1 else None
    missing = [directory for directory in cordoned if directory not in known]
    if not missing:
        return None
    rule = "All entries in cordoned.log.dirs must be present in log.dirs or log.dir."
    return f"{rule} Missing entries : {', '.join(missing)}"


def listener_value(layers: BrokerLayers, listener: str, name: str, mechanism: str | None = None) -> Value:
    """Return the effective value for a listener and SASL mechanism: its own, else the broker's."""
    prefix = f"listener.name.{listener.lower()}."
    own = [prefix + name] if mechanism is None else [f"{prefix}{mechanism.lower()}.{name}", prefix + name]
    key = BROKER[name]
    for candidate in own:
        for _, layer in layers.layers():
            text = layer.get(candidate)
            if text is not None:
                good, value = _parsed(key, text)
                if good:
                    return value
    return broker_value(layers, name)


def _overriding(name: str) -> tuple[str, ...]:
    if name == _FLUSH_CHAIN[1]:
        return _FLUSH_CHAIN
    synonyms = broker_synonyms(name)
    return synonyms if len(synonyms) > 1 else ()


def broker_default_of(layers: BrokerLayers, name: str) -> Value:
    """Return the effective broker default of a topic config, with synonyms: milliseconds before hours."""
    for synonym in broker_synonyms(name):
        value = broker_value(layers, synonym)
        if value is None:
            continue
        unit = _UNIT_MS.get(synonym)
        if unit is not None:
            assert isinstance(value, int)
            value = value * unit
        if name == "log.retention.ms" and isinstance(value, int) and value < 0:
            return -1
        return value
    return None


def topic_values(overrides: Mapping[str, str], layers: BrokerLayers) -> dict[str, Value]:
    """Return all effective configs of a topic."""
    return {key.name: topic_value(overrides, layers, key.name) for key in TOPIC.values()}


def topic_value(overrides: Mapping[str, str], layers: BrokerLayers, name: str) -> Value:
    """Return one effective config of a topic."""
    return _resource_value(TOPIC[name], overrides, layers)


def _resource_value(key: ConfigKey, overrides: Mapping[str, str], layers: BrokerLayers) -> Value:
    text = overrides.get(key.name)
    if text is not None:
        good, value = _parsed(key, text)
        if good:
            return value
    return broker_default_of(layers, key.synonym) if key.synonym is not None else key.default_value()


def group_values(overrides: Mapping[str, str], layers: BrokerLayers) -> dict[str, Value]:
    """Return all effective configs of a group, clamped to the broker's bounds."""
    return {name: group_value(overrides, layers, name) for name in GROUP}


def group_value(overrides: Mapping[str, str], layers: BrokerLayers, name: str) -> Value:
    """Return one effective config of a group, clamped to the broker's bounds."""
    value = _resource_value(GROUP[name], overrides, layers)
    if name in overrides and isinstance(value, int) and not isinstance(value, bool):
        low, high = group_bounds(layers, name)
        if low is not None and value < low:
            return low
        if high is not None and value > high:
            return high
    return value


def group_bound_names(name: str) -> tuple[str | None, str | None]:
    """Return the broker configs that bound a group config, such as `group.consumer.min.session.timeout.ms`."""
    kind, _, rest = name.partition(".")
    if name == "streams.num.standby.replicas":
        return None, "group.streams.max.standby.replicas"
    low, high = f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"
    return (low if low in BROKER else None), (high if high in BROKER else None)


def group_bounds(layers: BrokerLayers, name: str) -> tuple[int | None, int | None]:
    """Return the broker's bounds of a group config."""
    low, high = (None if bound is None else broker_value(layers, bound) for bound in group_bound_names(name))
    assert low is None or isinstance(low, int)
    assert high is None or isinstance(high, int)
    return low, high


def synonyms_of(layers: BrokerLayers, name: str) -> list[ConfigSynonym]:
    """Return the synonyms that are set for a broker config, the effective one first."""
    key = broker_key(name)
    sensitive = key is None or key.sensitive
    names = broker_synonyms(name)
    synonyms = [
        ConfigSynonym(synonym, None if sensitive else layer[synonym], source)
        for source, layer in layers.layers()
        for synonym in names
        if synonym in layer
    ]
    for synonym in names:
        default = BROKER[synonym].default_value() if synonym in BROKER else None
        if default is not None:
            synonyms.append(
                ConfigSynonym(synonym, None if sensitive else to_text(default), ConfigSource.DEFAULT_CONFIG)
            )
    while synonyms and synonyms[0].name != name:
        del synonyms[0]
    return synonyms


def describe_topic(
    overrides: Mapping[str, str], layers: BrokerLayers, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """Return a topic's configs for DescribeConfigs; `names` selects some."""
    return [
        _describe_resource(key, overrides, layers, ConfigSource.TOPIC_CONFIG)
        for key in TOPIC.values()
        if _is_requested(key, names)
    ]


def describe_group(
    overrides: Mapping[str, str], layers: BrokerLayers, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """Return a group's configs for DescribeConfigs."""
    return [
        _describe_resource(key, overrides, layers, ConfigSource.GROUP_CONFIG)
        for key in GROUP.values()
        if _is_requested(key, names)
    ]


def describe_client_metrics(overrides: Mapping[str, str], names: Collection[str] | None = None) -> list[ConfigEntry]:
    """Return a client metrics subscription's configs for DescribeConfigs."""
    return [
        _describe_resource(key, overrides, BrokerLayers(), ConfigSource.CLIENT_METRICS_CONFIG)
        for key in CLIENT_METRICS.values()
        if _is_requested(key, names)
    ]


def _is_requested(key: ConfigKey, names: Collection[str] | None) -> bool:
    return not key.internal and (not names or key.name in names)


def _describe_resource(
    key: ConfigKey, overrides: Mapping[str, str], layers: BrokerLayers, own: ConfigSource
) -> ConfigEntry:
    value = to_text(_resource_value(key, overrides, layers))
    synonyms: list[ConfigSynonym] = []
    if key.synonym is not None:
        synonyms = synonyms_of(layers, key.synonym)
    elif own is ConfigSource.GROUP_CONFIG:
        synonyms = [ConfigSynonym(key.name, to_text(key.default_value()), ConfigSource.DEFAULT_CONFIG)]
    if key.name in overrides:
        synonyms.insert(0, ConfigSynonym(key.name, value, own))
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    return ConfigEntry(key.name, value, source, key.type, key.sensitive, False, tuple(synonyms), key.doc or None)


def describe_broker(layers: BrokerLayers, names: Collection[str] | None = None) -> list[ConfigEntry]:
    """Return a broker's configs for DescribeConfigs; unknown and internal keys only if they are set."""
    set_somewhere = {name for _, layer in layers.layers() for name in layer}
    known = [name for name, key in BROKER.items() if not key.internal and name not in BROKER_QUOTAS]
    extra = sorted(set_somewhere.difference(known))
    return [
        _describe_broker_config(layers, name, per_broker=True)
        for name in (*extra, *known)
        if not names or name in names
    ]


def describe_default_broker(layers: BrokerLayers, names: Collection[str] | None = None) -> list[ConfigEntry]:
    """Return the dynamic default broker configs for DescribeConfigs of the broker with the empty name."""
    return [
        _describe_broker_config(layers, name, per_broker=False)
        for name in sorted(layers.dynamic_default)
        if not names or name in names
    ]


def _describe_broker_config(layers: BrokerLayers, name: str, *, per_broker: bool) -> ConfigEntry:
    key = broker_key(name)
    sensitive = key is None or key.sensitive
    synonyms = synonyms_of(layers, name)
    if not per_broker:
        synonyms = [synonym for synonym in synonyms if synonym.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG]
    value: str | None = None
    if not sensitive:
        if not per_broker:
            value = layers.dynamic_default[name]
        elif name in BROKER:
            value = to_text(broker_value(layers, name))
        else:
            value = next((layer[name] for _, layer in layers.layers() if name in layer), None)
    return ConfigEntry(
        name,
        value,
        synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        key.type if key is not None else ConfigType.UNKNOWN,
        sensitive,
        name not in BROKER or BROKER[name].mode is UpdateMode.READ_ONLY,
        tuple(synonyms),
        key.doc if key is not None and name in BROKER else None,
    )


def created_topic_configs(overrides: Mapping[str, str], layers: BrokerLayers) -> list[ConfigEntry]:
    """Return a new topic's configs for CreateTopics, without synonyms."""
    return [_created(key, overrides, layers) for key in TOPIC.values() if not key.internal]


def _created(key: ConfigKey, overrides: Mapping[str, str], layers: BrokerLayers) -> ConfigEntry:
    value: str | None = overrides.get(key.name)
    source = ConfigSource.TOPIC_CONFIG
    if value is None:
        source, value = _layered_default(key, layers)
    return ConfigEntry(key.name, value, source, key.type, key.sensitive, False, (), key.doc)


def _layered_default(key: ConfigKey, layers: BrokerLayers) -> tuple[ConfigSource, str | None]:
    if key.synonym is not None:
        for source, layer in layers.layers():
            for synonym in broker_synonyms(key.synonym):
                text = layer.get(synonym)
                if text is None:
                    continue
                unit = _UNIT_MS.get(synonym)
                return source, text if unit is None else str(int(text.strip()) * unit)
    return ConfigSource.DEFAULT_CONFIG, to_text(key.default_value())
