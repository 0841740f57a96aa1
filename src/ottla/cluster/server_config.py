"""Static broker configuration: parse and validate `server.properties` as Kafka does, and resolve its listeners.

An invalid value is an error with file, line, key and allowed values; an unknown key is kept with a warning.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.cluster.configs import BROKER_QUOTAS, Value
from ottla.cluster.configs.effective import BrokerLayers, broker_key, broker_value, cordoned_problem, log_dirs
from ottla.cluster.properties_file import PropertiesError, parse_properties
from ottla.protocol.errors import KafkaError
from ottla.records.compression import CompressionType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.world.disk import Disk

_LISTENER: Final = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]{1,9})")
_AUTHORIZER_KEYS: Final = frozenset({"super.users", "allow.everyone.if.no.acl.found"})
"""Keys of the standard authorizer, which Kafka's own table does not list either."""
SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class ServerConfigError(ValueError):
    """An invalid configuration, as `file:line: key: problem`."""

    def __init__(self, where: str, key: str | None, problem: str) -> None:
        super().__init__(f"{where}: {key}: {problem}" if key is not None else f"{where}: {problem}")
        self.where = where
        self.key = key
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A listener: name, security protocol, host and port. An empty host means all interfaces."""

    listener: str
    security_protocol: str
    host: str | None
    port: int


@dataclass(slots=True)
class ServerConfig:
    """Validated static configuration of one node."""

    values: dict[str, str] = field(default_factory=dict)
    """Every key as it was written, trimmed as Java trims it; `node.id` and `broker.id` stand for each other."""
    where: dict[str, str] = field(default_factory=dict)
    """File and line of each key."""
    warnings: list[str] = field(default_factory=list)
    node_id: int | None = None
    process_roles: tuple[str, ...] = ("broker", "controller")
    log_dirs: tuple[str, ...] = ()
    metadata_log_dir: str | None = None
    listeners: tuple[Endpoint, ...] = ()
    """Listeners for clients; those of the controller are apart."""
    advertised_listeners: tuple[Endpoint, ...] = ()
    controller_listeners: tuple[Endpoint, ...] = ()
    controller_listener_names: tuple[str, ...] = ()
    inter_broker_listener: str | None = None
    rack: str | None = None

    def layers(
        self, dynamic_broker: Mapping[str, str] | None = None, dynamic_default: Mapping[str, str] | None = None
    ) -> BrokerLayers:
        """Return this file as the lowest layer of the broker's configs."""
        return BrokerLayers(dynamic_broker or {}, dynamic_default or {}, self.values)

    def value(self, name: str) -> Value:
        """Return a broker config as set by the file alone."""
        return broker_value(BrokerLayers(static=self.values), name)


def load_server_properties(disk: Disk, path: str, overrides: Mapping[str, str] | None = None) -> ServerConfig:
    """Read a properties file; `overrides` (from the command line) take precedence."""
    try:
        # Java reads properties as ISO-8859-1; other characters are escaped.
        text = disk.read(path).decode("latin-1")
    except OSError as error:
        raise ServerConfigError(path, None, error.strerror or str(error)) from error
    return parse_server_properties(text, path, overrides)


def parse_server_properties(
    text: str, source: str = "server.properties", overrides: Mapping[str, str] | None = None
) -> ServerConfig:
    """Parse and validate the text of a properties file."""
    config = ServerConfig()
    try:
        entries = parse_properties(text)
    except PropertiesError as error:
        raise ServerConfigError(f"{source}:{error.line}", None, error.problem) from error
    for entry in entries:
        _keep(config, entry.key, entry.value, f"{source}:{entry.line}")
    for key, value in (overrides or {}).items():
        _keep(config, key, value, "command line")
    _derive(config, source)
    return config


def server_config(values: Mapping[str, str]) -> ServerConfig:
    """Return the configuration of a node without a file, from values of a command line or a test."""
    return parse_server_properties("", "defaults", values)


def _keep(config: ServerConfig, key: str, value: str, where: str) -> None:
    known = broker_key(key)
    if known is None:
        if key not in _AUTHORIZER_KEYS and not key.startswith("config.providers."):
            config.warnings.append(f"{where}: {key}: no broker config has this name; it is kept and not used")
    elif key in BROKER_QUOTAS:
        config.warnings.append(f"{where}: {key}: can only be set dynamically; it is kept and not used")
    else:
        try:
            known.parse(value)
        except KafkaError as error:
            problem = f"{error.message} (allowed: {known.allowed()})"
            raise ServerConfigError(where, key, problem) from error
    config.values[key] = value
    config.where[key] = where


def _derive(config: ServerConfig, source: str) -> None:
    values = config.values
    node, broker = values.get("node.id"), values.get("broker.id")
    if node is not None and broker is not None and int(node) != int(broker):
        raise _problem(config, "broker.id", f"must be the same as node.id, which is {node.strip()}")
    if node is None and broker is not None:
        if int(broker) < 0:
            raise _problem(config, "broker.id", "must not be negative")
        values["node.id"], config.where["node.id"] = broker, config.where["broker.id"]
    elif broker is None and node is not None:
        values["broker.id"], config.where["broker.id"] = node, config.where["node.id"]
    if "node.id" in values:
        config.node_id = _int(config, "node.id")
    roles = config.value("process.roles")
    if isinstance(roles, tuple):
        config.process_roles = roles
    config.log_dirs = tuple(map(os.path.abspath, log_dirs(config.layers())))
    metadata_dir = config.value("metadata.log.dir")
    config.metadata_log_dir = os.path.abspath(metadata_dir) if isinstance(metadata_dir, str) else config.log_dirs[0]
    rack = config.value("broker.rack")
    config.rack = rack if isinstance(rack, str) else None
    _derive_listeners(config)
    _check_together(config)


def _problem(config: ServerConfig, key: str, problem: str) -> ServerConfigError:
    return ServerConfigError(config.where.get(key, "defaults"), key, problem)


def _int(config: ServerConfig, key: str) -> int:
    value = config.value(key)
    assert isinstance(value, int)
    return value


def _derive_listeners(config: ServerConfig) -> None:
    names = config.value("controller.listener.names")
    config.controller_listener_names = names if isinstance(names, tuple) else ()
    protocols = _security_protocols(config)
    bound = _endpoints(config, "listeners", protocols)
    _check_ports(config, bound)
    controllers = set(config.controller_listener_names)
    config.listeners = tuple(endpoint for endpoint in bound if endpoint.listener not in controllers)
    config.controller_listeners = tuple(endpoint for endpoint in bound if endpoint.listener in controllers)
    if config.value("advertised.listeners") is None:
        config.advertised_listeners = config.listeners
    else:
        advertised = _endpoints(config, "advertised.listeners", protocols)
        bound_listeners = {endpoint.listener for endpoint in bound}
        for endpoint in advertised:
            if endpoint.host == "0.0.0.0":
                raise _problem(config, "advertised.listeners", "0.0.0.0 is no address that a client can connect to")
            if endpoint.listener not in bound_listeners:
                raise _problem(config, "advertised.listeners", f"{endpoint.listener} is not among the listeners")
        config.advertised_listeners = tuple(endpoint for endpoint in advertised if endpoint.listener not in controllers)
    if "broker" in config.process_roles and not config.listeners:
        raise _problem(config, "listeners", "a broker needs a listener that is not the controller's")
    config.inter_broker_listener = _inter_broker_listener(config)


def _inter_broker_listener(config: ServerConfig) -> str | None:
    by_name = config.value("inter.broker.listener.name")
    if isinstance(by_name, str):
        if "security.inter.broker.protocol" in config.values:
            raise _problem(
                config, "inter.broker.listener.name", "only one of this and security.inter.broker.protocol may be set"
            )
        if by_name not in {listener.listener for listener in config.listeners}:
            raise _problem(config, "inter.broker.listener.name", f"{by_name} is not among the listeners")
        return by_name
    protocol = config.value("security.inter.broker.protocol")
    for endpoint in config.listeners:
        if endpoint.listener == protocol:
            return endpoint.listener
    # Kafka refuses to start without one; nodes of one process do not connect to each other.
    return config.listeners[0].listener if config.listeners else None


def _security_protocols(config: ServerConfig) -> dict[str, str]:
    text = config.value("listener.security.protocol.map")
    assert isinstance(text, str)
    protocols: dict[str, str] = {}
    for pair in text.split(","):
        if not pair.strip():
            continue
        name, colon, protocol = (part.strip() for part in pair.rpartition(":"))
        if not colon or not name or protocol.upper() not in SECURITY_PROTOCOLS:
            raise _problem(
                config,
                "listener.security.protocol.map",
                f"{pair.strip()!r} is not NAME:PROTOCOL with one of {', '.join(SECURITY_PROTOCOLS)}",
            )
        protocols[name.upper()] = protocol.upper()
    if "listener.security.protocol.map" not in config.values:
        for name in config.controller_listener_names:
            protocols.setdefault(name.upper(), "PLAINTEXT")
    return protocols


def _endpoints(config: ServerConfig, key: str, protocols: Mapping[str, str]) -> list[Endpoint]:
    value = config.value(key)
    assert isinstance(value, tuple)
    endpoints: list[Endpoint] = []
    for text in value:
        match = _LISTENER.fullmatch(text)
        if match is None:
            raise _problem(config, key, f"{text!r} is not NAME://host:port")
        name, port = match[1].upper(), int(match[3])
        if name not in protocols:
            known = ", ".join(protocols)
            raise _problem(config, key, f"listener.security.protocol.map has no entry for {name}; it has {known}")
        if not -1 <= port <= 65535:
            raise _problem(config, key, f"{text!r} has port {port}; ports end at 65535")
        if name in {endpoint.listener for endpoint in endpoints}:
            raise _problem(config, key, f"{name} is there twice")
        endpoints.append(Endpoint(name, protocols[name], match[2] or None, port))
    return endpoints


def _check_ports(config: ServerConfig, endpoints: list[Endpoint]) -> None:
    by_port: dict[int, list[Endpoint]] = {}
    for endpoint in endpoints:
        if endpoint.port > 0:
            by_port.setdefault(endpoint.port, []).append(endpoint)
    for port, shared in by_port.items():
        families = {":" in (endpoint.host or "") for endpoint in shared}
        if len(shared) > 1 and not (len(shared) == 2 and len(families) == 2):
            raise _problem(
                config,
                "listeners",
                f"port {port} is there {len(shared)} times; only one IPv4 and one IPv6 address may share a port",
            )


def _check_together(config: ServerConfig) -> None:
    """Check the rules that involve several keys."""
    layers = config.layers()

    def number(name: str) -> int | None:
        value = broker_value(layers, name)
        assert value is None or isinstance(value, int)
        return value

    if (problem := cordoned_problem(layers)) is not None:
        raise _problem(config, "cordoned.log.dirs", problem)
    for name, low in (("log.roll.ms", 1), ("log.roll.jitter.ms", 0), ("log.retention.ms", 1)):
        value = number(name)
        if value is not None and value < low and not (name == "log.retention.ms" and value == -1):
            unlimited = " or, for no limit, -1" if name == "log.retention.ms" else ""
            raise _problem(config, name, f"is {value}; it must be at least {low}{unlimited}")
    for name in ("offsets.topic.compression.codec", "share.coordinator.state.topic.compression.codec"):
        if number(name) not in set(CompressionType):
            codecs = ", ".join(f"{codec.value} ({codec.name.lower()})" for codec in CompressionType)
            raise _problem(config, name, f"is {number(name)}; it must be one of {codecs}")
    for name in ("log.retention.minutes", "log.retention.hours"):
        if number(name) == 0:
            raise _problem(config, name, "is 0; it must be at least 1 or, for no limit, -1")
    smallest, largest = number("log.cleaner.min.compaction.lag.ms"), number("log.cleaner.max.compaction.lag.ms")
    assert smallest is not None
    assert largest is not None
    if smallest > largest:
        raise _problem(
            config,
            "log.cleaner.min.compaction.lag.ms",
            f"is {smallest}, more than log.cleaner.max.compaction.lag.ms, which is {largest}",
        )
