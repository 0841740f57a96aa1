"""Supported feature levels, their dependencies, and the record versions of each metadata.version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.protocol.record_schemas.metadata import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.protocol.schema import Message

METADATA_VERSION: Final = "metadata.version"
KRAFT_VERSION: Final = "kraft.version"
TRANSACTION_VERSION: Final = "transaction.version"
GROUP_VERSION: Final = "group.version"
ELR_VERSION: Final = "eligible.leader.replicas.version"
SHARE_VERSION: Final = "share.version"
STREAMS_VERSION: Final = "streams.version"


@dataclass(frozen=True, slots=True)
class MetadataVersion:
    """One metadata.version: level, release name, and whether it changed metadata records."""

    level: int
    name: str
    changed_records: bool


METADATA_VERSIONS: Final = tuple(
    MetadataVersion(level, name, changed)
    for level, name, changed in (
        (7, "3.3-IV3", True),
        (8, "3.4-IV0", True),
        (9, "3.5-IV0", False),
        (10, "3.5-IV1", False),
        (11, "3.5-IV2", True),
        (12, "3.6-IV0", False),
        (13, "3.6-IV1", True),
        (14, "3.6-IV2", True),
        (15, "3.7-IV0", True),
        (16, "3.7-IV1", False),
        (17, "3.7-IV2", True),
        (18, "3.7-IV3", False),
        (19, "3.7-IV4", False),
        (20, "3.8-IV0", False),
        (21, "3.9-IV0", False),
        (22, "4.0-IV0", False),
        (23, "4.0-IV1", True),
        (24, "4.0-IV2", False),
        (25, "4.0-IV3", False),
        (26, "4.1-IV0", False),
        (27, "4.1-IV1", False),
        (28, "4.2-IV0", False),
        (29, "4.2-IV1", False),
        (30, "4.3-IV0", True),
    )
)
MINIMUM_METADATA_VERSION: Final = METADATA_VERSIONS[0].level
LATEST_METADATA_VERSION: Final = METADATA_VERSIONS[-1].level

# Lowest metadata.version that may write each kind of record.
SCRAM_FROM: Final = 11
DELEGATION_TOKENS_FROM: Final = 14
CONTROLLER_REGISTRATION_FROM: Final = 15
DIRECTORIES_FROM: Final = 17
ELR_FROM: Final = 23
CORDONED_LOG_DIRS_FROM: Final = 30
_NO_EPOCH_BUMP_ON_ISR_SHRINK_FROM: Final = 12


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature other than metadata.version: its levels, and the metadata.version that each requires."""

    name: str
    bootstrap: Mapping[int, int]
    """Level to the metadata.version from which a new cluster gets it."""
    needs: Mapping[int, Mapping[str, int]]
    """Level to the features that it depends on."""

    @property
    def latest(self) -> int:
        """Return the highest level."""
        return max(self.bootstrap)

    def default_for(self, metadata_version: int) -> int:
        """Return the level that formatting gives a cluster of this metadata.version."""
        return max(level for level, since in self.bootstrap.items() if since <= metadata_version)


FEATURES: Final = {
    feature.name: feature
    for feature in (
        Feature(KRAFT_VERSION, {0: 7, 1: 21}, {}),
        Feature(TRANSACTION_VERSION, {0: 7, 1: 24, 2: 24}, {}),
        Feature(GROUP_VERSION, {0: 7, 1: 22}, {}),
        Feature(ELR_VERSION, {0: 7, 1: 26}, {1: {METADATA_VERSION: 23}}),
        Feature(SHARE_VERSION, {0: 7, 1: 28}, {}),
        Feature(STREAMS_VERSION, {0: 7, 1: 29}, {}),
    )
}


def supported_features() -> dict[str, tuple[int, int]]:
    """Return the supported range of each feature, as in ApiVersions and in the broker registration."""
    return {
        METADATA_VERSION: (MINIMUM_METADATA_VERSION, LATEST_METADATA_VERSION),
        **{feature.name: (0, feature.latest) for feature in FEATURES.values()},
    }


def bootstrap_features(metadata_version: int = LATEST_METADATA_VERSION) -> dict[str, int]:
    """Return the nonzero levels that formatting finalizes, in the order in which they are written."""
    others = {
        name: feature.default_for(metadata_version)
        for name, feature in sorted(FEATURES.items())
        if name != KRAFT_VERSION
    }
    return {METADATA_VERSION: metadata_version, **{name: level for name, level in others.items() if level > 0}}


def metadata_version_name(level: int) -> str:
    """Return the release name of a level, such as `4.3-IV0`."""
    return next((version.name for version in METADATA_VERSIONS if version.level == level), str(level))


def metadata_changed(source: int, target: int) -> bool:
    """Return whether metadata records differ between two levels, so that a downgrade may lose state."""
    low, high = min(source, target), max(source, target)
    return any(version.changed_records for version in METADATA_VERSIONS if low < version.level <= high)


def epoch_bump_on_isr_shrink(metadata_version: int) -> bool:
    """Return whether an ISR shrink bumps the leader epoch, as before 3.6."""
    return metadata_version < _NO_EPOCH_BUMP_ON_ISR_SHRINK_FROM


def record_version(record: Message, metadata_version: int) -> int:
    """Return the version in which a cluster at this level writes a record."""
    if isinstance(record, PartitionRecord | PartitionChangeRecord):
        if metadata_version >= ELR_FROM:
            return 2
        return 1 if metadata_version >= DIRECTORIES_FROM else 0
    if isinstance(record, RegisterBrokerRecord):
        if metadata_version >= CORDONED_LOG_DIRS_FROM:
            return 4
        if metadata_version >= DIRECTORIES_FROM:
            return 3
        return 2 if metadata_version >= 8 else 1
    if isinstance(record, BrokerRegistrationChangeRecord):
        if record.cordoned_log_dirs is not None:
            return 3
        if record.log_dirs:
            return 2
        return 1 if record.in_controlled_shutdown else 0
    return 0
