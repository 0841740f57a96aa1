"""`meta.properties`: cluster, node and directory id of a log directory. Reads versions 0 and 1, writes version 1."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ottla.cluster.properties_file import PropertiesError, parse_properties
from ottla.protocol.schema import Uuid
from ottla.world.disk import write_atomic

if TYPE_CHECKING:
    from ottla.world.disk import Disk

FILE_NAME = "meta.properties"

# Kafka reserves the first 100 ids: 0 migrating, 1 unassigned, 2 lost.
_RESERVED_DIRECTORY_IDS = frozenset(Uuid(number.to_bytes(16, "big")) for number in range(100))


class MetaPropertiesError(ValueError):
    """An unreadable or unusable `meta.properties`."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Contents of `meta.properties` (Kafka's MetaProperties)."""

    cluster_id: str
    node_id: int
    directory_id: Uuid | None = None
    version: int = 1


def parse_meta_properties(data: bytes, source: str = FILE_NAME) -> MetaProperties:
    """Parse either version; version 0 names the node `broker.id` and may lack the cluster id."""
    try:
        values = {entry.key: entry.value.strip() for entry in parse_properties(data.decode("latin-1"))}
    except PropertiesError as error:
        raise MetaPropertiesError(f"{source}: {error}") from error

    def number(key: str) -> int:
        text = values.get(key)
        if text is None:
            raise MetaPropertiesError(f"{source}: {key} is missing")
        if not text.lstrip("-").isdecimal() or len(text) > 10:
            raise MetaPropertiesError(f"{source}: {key} is {text!r}, not a number")
        return int(text)

    version = number("version")
    if version not in (0, 1):
        raise MetaPropertiesError(f"{source}: version {version} is not known (0 and 1 are)")
    cluster_id = values.get("cluster.id")
    if cluster_id is None:
        if version == 1:
            raise MetaPropertiesError(f"{source}: cluster.id is missing")
        cluster_id = ""
    if not (cluster_id.isascii() and cluster_id.isprintable()):
        raise MetaPropertiesError(f"{source}: cluster.id {cluster_id!r} has characters that no cluster id has")
    node_id = number("node.id" if version == 1 else "broker.id")
    directory_id: Uuid | None = None
    if "directory.id" in values:
        try:
            directory_id = Uuid.parse(values["directory.id"])
        except ValueError as error:
            raise MetaPropertiesError(f"{source}: directory.id: {error}") from error
        if directory_id in _RESERVED_DIRECTORY_IDS:
            raise MetaPropertiesError(f"{source}: directory.id {directory_id} is reserved")
    return MetaProperties(cluster_id, node_id, directory_id, version)


def format_meta_properties(meta: MetaProperties, now_ms: int) -> bytes:
    """Return version 1 in the layout of Kafka's writer, with the time in a comment."""
    written = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%a %b %d %H:%M:%S UTC %Y")
    lines = ["#", f"#{written}", f"node.id={meta.node_id}"]
    if meta.directory_id is not None:
        lines.append(f"directory.id={meta.directory_id}")
    lines += ["version=1", f"cluster.id={meta.cluster_id}"]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def read_meta_properties(disk: Disk, log_dir: str) -> MetaProperties | None:
    """Read a directory's `meta.properties`; None if there is no such file."""
    path = f"{log_dir}/{FILE_NAME}"
    return parse_meta_properties(disk.read(path), path) if disk.exists(path) else None


def write_meta_properties(disk: Disk, log_dir: str, meta: MetaProperties, now_ms: int) -> None:
    """Write a directory's `meta.properties`."""
    write_atomic(disk, f"{log_dir}/{FILE_NAME}", format_meta_properties(meta, now_ms))
