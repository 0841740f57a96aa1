"""UpdateFeatures: upgrade and downgrade feature levels (Kafka's FeatureControlManager)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.configs.effective import BrokerLayers, broker_value
from ottla.cluster.features import (
    ELR_VERSION,
    FEATURES,
    KRAFT_VERSION,
    LATEST_METADATA_VERSION,
    METADATA_VERSION,
    METADATA_VERSIONS,
    MINIMUM_METADATA_VERSION,
    metadata_changed,
    metadata_version_name,
    supported_features,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas.metadata import ConfigRecord, FeatureLevelRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.cluster.image import ClusterImage
    from ottla.protocol.messages.k57_update_features import FeatureUpdateKey
    from ottla.protocol.schema import Message

UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2
UNSAFE_DOWNGRADE: Final = 3


def update_features(
    image: ClusterImage,
    updates: Sequence[FeatureUpdateKey],
    *,
    node_id: int,
    kraft_version: int,
    layers: BrokerLayers,
) -> list[Message]:
    """Return the records that change these levels, all or none; raise for the first level that cannot be changed."""
    proposed = {**image.features, **{update.feature: update.max_version_level for update in updates}}
    records: list[Message] = []
    for update in {update.feature: update for update in updates}.values():  # the last of duplicates wins
        _check_supported(image, node_id, update.feature, update.max_version_level)
        records += _update(image, update, proposed, kraft_version)
    if any(update.feature == ELR_VERSION and update.max_version_level > 0 for update in updates):
        records = [*_min_isr_records(image, layers), *records]
    return records


def _invalid(feature: str, level: int, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {feature}. {reason}"
    )


def _update(
    image: ClusterImage, update: FeatureUpdateKey, proposed: Mapping[str, int], kraft_version: int
) -> list[Message]:
    name, level, kind = update.feature, update.max_version_level, update.upgrade_type
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _invalid(name, level, "The controller does not support the given upgrade type.")
    current = image.metadata_version if name == METADATA_VERSION else image.features.get(name, 0)
    if name == KRAFT_VERSION:
        current = kraft_version
    if level < 0:
        raise _invalid(name, level, "A feature version cannot be less than 0.")
    if level < current and kind == UPGRADE:
        raise _invalid(
            name,
            level,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade.",
        )
    if level > current and kind != UPGRADE:
        raise _invalid(name, level, "Can't downgrade to a newer version.")
    if name == METADATA_VERSION:
        _check_metadata_version(current, level, unsafe=kind == UNSAFE_DOWNGRADE)
    elif name == KRAFT_VERSION:
        if level != current:
            raise _invalid(name, level, "Can't change the version of this feature on a running quorum of one.")
        return []
    else:
        _check_dependencies(name, level, proposed)
    return [FeatureLevelRecord(name=name, feature_level=level)]


def _check_supported(image: ClusterImage, node_id: int, name: str, level: int) -> None:
    if level < 0:
        raise _invalid(name, level, "A feature version cannot be less than 0.")
    nodes = [(f"Local controller {node_id}", supported_features())]
    for broker_id, broker in sorted(image.brokers.items()):
        nodes.append((f"Broker {broker_id}", {feature: (low, high) for feature, low, high in broker.features}))
    for what, supported in nodes:
        low, high = supported.get(name, (0, 0))
        if low <= level <= high:
            continue
        if high == 0:
            raise _invalid(name, level, f"{what} does not support this feature.")
        shown = f"{low}-{high}" if low != high else str(low)
        raise _invalid(name, level, f"{what} only supports versions {shown}")


def _check_metadata_version(current: int, level: int, *, unsafe: bool) -> None:
    if level not in {version.level for version in METADATA_VERSIONS}:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid metadata.version {level}. Valid versions are from {MINIMUM_METADATA_VERSION} to "
            f"{LATEST_METADATA_VERSION}.",
        )
    if level < current and metadata_changed(current, level):
        reason = (
            "Unsafe metadata downgrade is not supported in this version."
            if unsafe
            else "Refusing to perform the requested downgrade because it might delete metadata information."
        )
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Unsupported metadata.version downgrade from {current} to {level}. {reason}",
        )


def _check_dependencies(name: str, level: int, proposed: Mapping[str, int]) -> None:
    feature = FEATURES.get(name)
    if feature is None:
        raise _invalid(name, level, f"Feature {name} not found.")
    if level >= 1 and proposed.get(METADATA_VERSION, 0) < MINIMUM_METADATA_VERSION:
        raise _invalid(
            name,
            level,
            f"{name} could not be set to {level} because it depends on metadata.version="
            f"{MINIMUM_METADATA_VERSION} ({metadata_version_name(MINIMUM_METADATA_VERSION)})",
        )
    for needed, lowest in feature.needs.get(level, {}).items():
        if proposed.get(needed, 0) < lowest:
            raise _invalid(
                name, level, f"{name} could not be set to {level} because it depends on {needed} level {lowest}"
            )


def _min_isr_records(image: ClusterImage, layers: BrokerLayers) -> list[Message]:
    """With ELR, set min.insync.replicas cluster-wide and remove it from brokers (KIP-966)."""
    name = "min.insync.replicas"
    broker = ConfigResourceType.BROKER
    records: list[Message] = []
    if name not in image.config(broker, ""):
        static = broker_value(BrokerLayers(static=layers.static), name)
        records.append(ConfigRecord(resource_type=broker, resource_name="", name=name, value=str(static)))
    for resource, configs in image.configs.items():
        if resource.type is broker and resource.name and name in configs:
            records.append(ConfigRecord(resource_type=broker, resource_name=resource.name, name=name, value=None))
    return records
