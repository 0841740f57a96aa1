"""`ottla log ls`: list the partitions of a log directory with sizes, offsets and time span."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ottla.cli.log import paths
from ottla.cli.options.commands import format_examples
from ottla.cli.terminal.output import echo, print_json, print_table, usage
from ottla.protocol.internal_records import KINDS
from ottla.quantities import format_count, format_size, format_time
from ottla.storage import names
from ottla.storage.check.scan import PartitionFolder, find_partitions, log_bounds, read_folder
from ottla.storage.check.verify import is_partition
from ottla.storage.checkpoints import CorruptCheckpointError, decode_offsets, decode_partition_metadata
from ottla.world.disk_real import RealDisk

EXAMPLES = format_examples("ottla log ls /var/lib/kafka/data", "ottla log ls ./data --topic orders --json")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ls", epilog=EXAMPLES)(ls)


def ls(
    path: Annotated[str, typer.Argument(help="A log directory, or a partition's folder.")],
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="List only partitions of this topic.")] = None,
    internal: Annotated[bool, typer.Option("--internal", help="List Kafka's internal topics too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per partition.")] = False,
) -> None:
    """List topics and partitions with sizes, offsets and time span."""
    full = paths.directory(path)
    disk = RealDisk()
    root = paths.root_of(full)
    folders = [read_folder(disk, full)] if is_partition(full) else find_partitions(disk, full)
    if not folders:
        raise usage(f"{path} has no partitions")
    if topic is not None:
        folders = [folder for folder in folders if folder.partition.topic == topic]
        if not folders:
            raise usage(f"{path} has no partition of topic {topic}")
    elif not internal and not is_partition(full):
        listed = [folder for folder in folders if folder.partition.topic not in KINDS]
        if len(listed) < len(folders):
            hidden = format_count(len(folders) - len(listed), "partition")
            echo(f"{hidden} of internal topics not listed; --internal lists them", err=True)
        folders = listed
    starts = _checkpoint(disk, f"{root}/{names.LOG_START_CHECKPOINT}")
    marks = _checkpoint(disk, f"{root}/{names.REPLICATION_CHECKPOINT}")
    rows = [_row(disk, folder, starts, marks) for folder in folders]
    if as_json:
        for row in rows:
            print_json(row)
        return
    print_table(
        ("TOPIC", "PARTITION", "SEGMENTS", "SIZE", "START", "END", "EPOCH", "FIRST", "LAST", "TOPIC ID", "NOTE"),
        [
            (
                row["topic"],
                row["partition"],
                row["segments"],
                format_size(row["size"]),
                row["start_offset"],
                row["end_offset"],
                row["leader_epoch"],
                row["first_time"],
                row["last_time"],
                row["topic_id"],
                row["mark"],
            )
            for row in rows
        ],
        right=("PARTITION", "SEGMENTS", "SIZE", "START", "END", "EPOCH"),
    )


def _row(
    disk: RealDisk,
    folder: PartitionFolder,
    starts: dict[names.TopicPartition, int],
    marks: dict[names.TopicPartition, int],
) -> dict[str, Any]:
    bounds = log_bounds(disk, folder)
    partition = folder.partition
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "topic_id": _topic_id(disk, folder),
        "segments": len(folder.segments),
        "size": folder.size,
        "start_offset": max(bounds.start_offset, starts.get(partition, 0)),
        "end_offset": bounds.end_offset,
        "high_watermark": marks.get(partition),
        "leader_epoch": bounds.leader_epoch if bounds.leader_epoch >= 0 else None,
        "first_time": format_time(bounds.first_timestamp),
        "last_time": format_time(bounds.max_timestamp),
        "mark": folder.mark[1:] or None,
        "path": folder.path,
    }


def _topic_id(disk: RealDisk, folder: PartitionFolder) -> str | None:
    try:
        return str(decode_partition_metadata(disk.read(f"{folder.path}/{names.PARTITION_METADATA}")))
    except (FileNotFoundError, CorruptCheckpointError):
        return None


def _checkpoint(disk: RealDisk, path: str) -> dict[names.TopicPartition, int]:
    try:
        return decode_offsets(disk.read(path))
    except (FileNotFoundError, CorruptCheckpointError):
        return {}
