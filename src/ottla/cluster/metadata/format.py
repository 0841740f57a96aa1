"""Format a log directory: the files that `kafka-storage format` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.features import (
    LATEST_METADATA_VERSION,
    METADATA_VERSION,
    MINIMUM_METADATA_VERSION,
    bootstrap_features,
)
from ottla.cluster.internal_topics import CLUSTER_METADATA_TOPIC
from ottla.cluster.metadata.meta_properties import MetaProperties, write_meta_properties
from ottla.cluster.metadata.snapshots import (
    BOOTSTRAP_FILE,
    CorruptSnapshotError,
    SnapshotId,
    decode_snapshot,
    encode_snapshot,
)
from ottla.protocol.record_schemas.metadata import FeatureLevelRecord
from ottla.world.disk import write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.cluster.metadata.quorum import Voter
    from ottla.protocol.schema import Message
    from ottla.world.disk import Disk


def bootstrap_records(metadata_version: int = LATEST_METADATA_VERSION) -> list[Message]:
    """Return the records of a new cluster's feature levels."""
    return [
        FeatureLevelRecord(name=name, feature_level=level)
        for name, level in bootstrap_features(metadata_version).items()
    ]


def check_bootstrap(disk: Disk, path: str, metadata_version: int, now_ms: int) -> str | None:
    """Rewrite a damaged `bootstrap.checkpoint`, which Kafka reads at every start, and return what was wrong with it."""
    file = f"{path}/{BOOTSTRAP_FILE}"
    if not disk.exists(file):
        return None
    try:
        decode_snapshot(disk.read(file))
    except CorruptSnapshotError as error:
        level = max(metadata_version, MINIMUM_METADATA_VERSION)
        parts = encode_snapshot(bootstrap_records(level), level, epoch=0, timestamp=now_ms, last_contained_timestamp=0)
        write_atomic(disk, file, b"".join(parts))
        return f"{file}: {error}; rewritten with the present metadata.version"
    return None


def format_directory(
    disk: Disk,
    path: str,
    meta: MetaProperties,
    *,
    now_ms: int,
    records: Sequence[Message] | None = None,
    voters: tuple[Voter, ...] = (),
    holds_metadata: bool = True,
) -> None:
    """Write `meta.properties`, `bootstrap.checkpoint` and, for a dynamic quorum, the first snapshot with its voters.

    A directory without the metadata log gets only `meta.properties` and `bootstrap.checkpoint`, as in Kafka.
    `meta.properties` is written last, so that an interrupted format is repeated.
    """
    disk.make_dirs(path)
    bootstrap = bootstrap_records() if records is None else list(records)
    level = next(
        (
            record.feature_level
            for record in bootstrap
            if isinstance(record, FeatureLevelRecord) and record.name == METADATA_VERSION
        ),
        LATEST_METADATA_VERSION,
    )
    parts = encode_snapshot(bootstrap, level, epoch=0, timestamp=now_ms, last_contained_timestamp=0)
    write_atomic(disk, f"{path}/{BOOTSTRAP_FILE}", b"".join(parts))
    if voters and holds_metadata:
        folder = f"{path}/{CLUSTER_METADATA_TOPIC}-0"
        disk.make_dirs(folder)
        first = encode_snapshot(
            [],
            level,
            epoch=0,
            timestamp=now_ms,
            last_contained_timestamp=now_ms,
            kraft_version=1,
            voters=voters,
        )
        write_atomic(disk, f"{folder}/{SnapshotId(0, 0).file_name}", b"".join(first))
    write_meta_properties(disk, path, meta, now_ms)
