"""Operations of IncrementalAlterConfigs and validation of their results (Kafka's ConfigurationValidator).

`configs.changes` turns the result into records.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from ottla.cluster.configs import (
    BROKER,
    BROKER_QUOTAS,
    BY_RESOURCE,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    ConfigResourceType,
    ConfigType,
    UpdateMode,
    to_text,
)
from ottla.cluster.configs.effective import (
    BrokerLayers,
    base_name,
    broker_value,
    cordoned_problem,
    group_bound_names,
    group_value,
    topic_value,
)
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

MAX_VALUE_CHARS: Final = 32767

_DYNAMIC_SECURITY_CONFIGS: Final = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
_CLUSTER_LEVEL_LISTENER_CONFIGS: Final = frozenset(
    {"max.connection.creation.rate", "max.connections", "num.network.threads"}
)
_BOUND_AT_START: Final = frozenset({"listeners", "advertised.listeners"})
_THREAD_POOLS: Final = (
    "num.io.threads",
    "num.network.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "background.threads",
    "log.cleaner.threads",
)
_LEAST_CLEANER_BUFFER: Final = 1024 * 1024
_CLIENT_MATCH_PARAMETERS: Final = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)


class AlterOperation(IntEnum):
    """Operation of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def _refuse(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, message)


def altered_value(
    resource: ConfigResourceType,
    name: str,
    operation: AlterOperation,
    operand: str | None,
    current: str | None,
) -> str | None:
    """Return the text of a config after an operation; None means the default.

    Append and subtract start from the default if nothing is set, and compare items as text.
    """
    if operation is AlterOperation.SET:
        return operand
    if operation is AlterOperation.DELETE:
        return None
    key = BY_RESOURCE.get(resource, {}).get(name)
    if key is None or key.type is not ConfigType.LIST:
        if resource is ConfigResourceType.BROKER and key is not None:
            raise _refuse(f"Config value {operation.name.lower()} is not allowed for config key: {name}")
        raise _refuse(f"Can't {operation.name} to key {name} because its type is not LIST.")
    start = current if current is not None else to_text(key.default_value())
    items = [item for item in (start or "").split(",") if item]
    for item in _java_split(operand or ""):
        if operation is AlterOperation.APPEND:
            if item not in items:
                items.append(item)
        elif item in items:
            items.remove(item)
    return ",".join(items)


def _java_split(text: str) -> list[str]:
    """Split as Java's `String.split(",")`: drop empty items at the end; an empty text is one empty item."""
    items = text.split(",")
    while len(items) > 1 and not items[-1]:
        items.pop()
    return items if items != [""] or text == "" else []


def validate_topic(new: Mapping[str, str], existing: Mapping[str, str], layers: BrokerLayers) -> None:
    """Raise for topic configs that Kafka's controller refuses: names, values, and their combination."""
    for name in new:
        if name not in TOPIC:
            raise _refuse(f"Unknown topic config name: {name}")
    for name, text in new.items():
        TOPIC[name].parse(text)

    def value(name: str) -> int:
        number = topic_value(new, layers, name)
        assert isinstance(number, int)
        return number

    low, high = value("min.compaction.lag.ms"), value("max.compaction.lag.ms")
    if low > high:
        raise _refuse(f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})")
    if topic_value(new, layers, "remote.storage.enable"):
        raise _refuse(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    was_remote = existing.get("remote.storage.enable", "false").lower() == "true"
    if was_remote and not topic_value(new, layers, "remote.log.delete.on.disable"):
        raise _refuse(
            "It is invalid to disable remote storage without deleting remote data. If you want to keep the remote "
            "data and turn to read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. If "
            "you want to disable remote storage and delete all remote data, please set "
            "`remote.storage.enable=false,remote.log.delete.on.disable=true`."
        )


def validate_broker(new: Mapping[str, str], *, per_broker: bool, layers: BrokerLayers) -> None:
    """Raise for dynamic broker configs that Kafka refuses.

    The error is INVALID_REQUEST, not INVALID_CONFIG, as in Kafka.
    """
    try:
        _validate_broker(new, per_broker=per_broker, layers=layers)
    except KafkaError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from error


def _validate_broker(new: Mapping[str, str], *, per_broker: bool, layers: BrokerLayers) -> None:
    def complain(names: Collection[str], problem: str) -> None:
        if names:
            raise _refuse(f"{problem}: [{', '.join(sorted(names))}]")

    complain(
        [name for name in new if name in BROKER and not _dynamic(name)],
        "Cannot update these configs dynamically",
    )
    current = layers.dynamic_broker if per_broker else layers.dynamic_default
    complain(
        [name for name in new if name in _BOUND_AT_START and new[name] != current.get(name)],
        "Listeners are bound at start; change these configs in the properties file",
    )
    complain(
        [name for name in new if name in _DYNAMIC_SECURITY_CONFIGS],
        "These security configs can be dynamically updated only per-listener using the listener prefix",
    )
    for name, text in new.items():
        key = BROKER.get(base_name(name))
        if key is not None:
            key.parse(text)
    if not per_broker:
        complain(
            [name for name in new if _only_per_broker(name)],
            "Cannot update these configs at default cluster level, broker id must be specified",
        )
    _check_threads(new, layers)
    changed = BrokerLayers(
        dynamic_broker=new if per_broker else layers.dynamic_broker,
        dynamic_default=layers.dynamic_default if per_broker else new,
        static=layers.static,
    )
    if (problem := cordoned_problem(changed)) is not None:
        raise _refuse(f"requirement failed: {problem}")
    low = topic_value({}, changed, "min.compaction.lag.ms")
    high = topic_value({}, changed, "max.compaction.lag.ms")
    assert isinstance(low, int)
    assert isinstance(high, int)
    if low > high:
        raise _refuse(f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})")


def _check_threads(new: Mapping[str, str], layers: BrokerLayers) -> None:
    """Check that thread pools change at most by a factor of two, and that cleaners have memory."""
    for name in _THREAD_POOLS:
        if name not in new:
            continue
        value, current = BROKER[name].parse(new[name]), _number(layers, name)
        assert isinstance(value, int)
        problem = None
        if value < 1:
            problem = "value should be at least 1"
        elif value < current // 2:
            problem = f"value should be at least half the current value {current}"
        elif value > current * 2:
            problem = f"value should not be greater than double the current value {current}"
        if problem is not None:
            raise _refuse(f"Dynamic thread count update validation failed for {name}={value}, {problem}")
    if "log.cleaner.threads" in new or "log.cleaner.dedupe.buffer.size" in new:
        changed = BrokerLayers(dynamic_broker=new, dynamic_default=layers.dynamic_default, static=layers.static)
        cleaners = _number(changed, "log.cleaner.threads")
        if _number(changed, "log.cleaner.dedupe.buffer.size") < cleaners * _LEAST_CLEANER_BUFFER or cleaners < 1:
            raise _refuse("log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.")
    overrides = new.get("max.connections.per.ip.overrides", "")
    for override in overrides.split(",") if overrides else ():
        host, _, limit = override.rpartition(":")
        if not host or not limit.strip().isdecimal():
            raise _refuse(f"Error parsing configuration property 'max.connections.per.ip.overrides': {override}")


def _dynamic(name: str) -> bool:
    return name in BROKER_QUOTAS or BROKER[name].mode is not UpdateMode.READ_ONLY


def _only_per_broker(name: str) -> bool:
    if name in BROKER:
        return BROKER[name].mode is UpdateMode.PER_BROKER
    base = base_name(name)
    return base != name and base not in _CLUSTER_LEVEL_LISTENER_CONFIGS


def validate_group(new: Mapping[str, str], layers: BrokerLayers) -> None:
    """Raise for group configs that Kafka's controller refuses, including the broker's bounds."""
    for name in new:
        if name not in GROUP:
            raise _refuse(f"Unknown group config name: {name}")
    values: dict[str, int] = {}
    for name, key in GROUP.items():
        parsed = key.parse(new[name]) if name in new else group_value({}, layers, name)
        if isinstance(parsed, int) and not isinstance(parsed, bool):
            values[name] = parsed
    for name, number in values.items():
        low, high = group_bound_names(name)
        if low is not None and number < _number(layers, low):
            raise _refuse(f"{name} must be greater than or equal to {low}")
        if high is not None and number > _number(layers, high):
            raise _refuse(f"{name} must be less than or equal to {high}")
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if values[session] <= values[heartbeat]:
            raise _refuse(f"{session} must be greater than {heartbeat}")


def _number(layers: BrokerLayers, name: str) -> int:
    value = broker_value(layers, name)
    assert isinstance(value, int)
    return value


def validate_client_metrics(subscription: str, new: Mapping[str, str]) -> None:
    """Raise for a client metrics subscription that Kafka's controller refuses."""
    if not subscription:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    for name in new:
        if name not in CLIENT_METRICS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
    values = {name: CLIENT_METRICS[name].parse(text) for name, text in new.items()}
    interval = values.get("interval.ms")
    if isinstance(interval, int) and not 100 <= interval <= 3_600_000:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval} for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        )
    match = values.get("match")
    for pattern in match if isinstance(match, tuple) else ():
        parse_client_match(pattern)


def parse_client_match(pattern: str) -> tuple[str, str]:
    """Parse one `parameter=regular expression` of a client metrics subscription."""
    parts = pattern.split("=")
    parameter = parts[0].strip()
    if len(parts) != 2 or parameter not in _CLIENT_MATCH_PARAMETERS:
        raise _refuse(f"Illegal client matching pattern: {pattern}")
    import re2  # type: ignore[import-untyped]  # a start without such a subscription need not wait for it

    try:
        re2.compile(parts[1].strip())
    except re2.error as error:
        raise _refuse(f"Illegal client matching pattern: {pattern}") from error
    return parameter, parts[1].strip()
