"""`ottla group`: list, describe, reset and delete groups of every type; show their lag."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from ottla.cli.options.commands import add_command, add_group
from ottla.cli.options.completion import complete_groups
from ottla.cli.options.connect import AsJson, ClusterOptions, for_each
from ottla.cli.terminal.output import (
    NOT_FOUND,
    console,
    echo,
    fail,
    print_json,
    print_result,
    print_rows,
    print_table,
    usage,
)
from ottla.client import Client
from ottla.client.client import TopicPartition
from ottla.client.groups import (
    GroupDescription,
    alter_share_offsets,
    by_topic,
    commit,
    committed,
    delete_group,
    delete_offsets,
    delete_share_offsets,
    describe_group,
    list_groups,
    share_lags,
)
from ottla.client.reading import bounds, offsets_at
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.quantities import format_count, parse_time

STATES = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Stable",
    "Dead",
)
# In these states no member would overwrite the offsets that are set.
IDLE = frozenset({"Empty", "Dead"})
LAG_EXCEEDED = 5
WATCH_SECONDS = 2.0

Group = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.", autocompletion=complete_groups)]
Groups = Annotated[
    list[str], typer.Argument(metavar="GROUP...", help="Names of the groups.", autocompletion=complete_groups)
]


class Kind(StrEnum):
    """The types of group."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = add_group(app, "group")
    add_command(group, "list", list_, "ottla group list", "ottla group list --state stable --json")
    add_command(group, "describe", describe, "ottla group describe billing")
    add_command(
        group,
        "lag",
        lag,
        "ottla group lag                              the total of every group",
        "ottla group lag billing                      each partition",
        "ottla group lag billing --watch",
        "ottla group lag billing --fail-above 1000    exit code 5 if it is higher",
    )
    add_command(
        group,
        "reset-offsets",
        reset_offsets,
        "ottla group reset-offsets billing --all-topics --to-earliest",
        "ottla group reset-offsets billing -t orders:0,1 --to-time -1h --execute",
        "ottla group reset-offsets billing -t orders --shift-by -100 --execute",
        "ottla group reset-offsets workers --share -t tasks --to-earliest --execute",
    )
    add_command(group, "delete", delete, "ottla group delete billing", "ottla group delete billing --offsets-of orders")


def list_(
    *,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="List only groups in this state; repeatable."),
    ] = None,
    kind: Annotated[list[Kind] | None, typer.Option("--type", help="List only this type; repeatable.")] = None,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """List the groups of all brokers."""
    unknown = [name for name in state or () if name.lower() not in {known.lower() for known in STATES}]
    if unknown:
        raise usage(f"--state {unknown[0]}: use one of {', '.join(STATES)}")
    with cluster.connect() as client:
        listed = list_groups(client, state or (), [group_type.value for group_type in kind or ()])
    rows = [
        {
            "group": group.group,
            "type": group.type,
            "state": group.state,
            "protocol_type": group.protocol_type,
            "coordinator": group.coordinator,
        }
        for group in listed
    ]
    columns = ("GROUP", "TYPE", "STATE", "PROTOCOL", "COORDINATOR")
    print_rows(as_json, rows, columns, lambda row: tuple(row.values()), right=("COORDINATOR",))


def describe(names: Groups, *, as_json: AsJson = False, cluster: ClusterOptions) -> None:
    """Show members, their partitions, offsets and lag."""
    with cluster.connect() as client:
        for number, name in enumerate(names):
            group = describe_group(client, name)
            rows = _partition_lags(client, group)
            if as_json:
                print_json(_to_json(group, rows))
                continue
            if number:
                echo()
            _print_description(group, rows)


def lag(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GROUP]...",
            help="Names of the groups. Without any, show the total of every group.",
            autocompletion=complete_groups,
        ),
    ] = None,
    *,
    fail_above: Annotated[
        int | None,
        typer.Option(
            "--fail-above",
            metavar="N",
            min=0,
            help="Exit with code 5 if the total lag of a group is above N records.",
            show_default=False,
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat every --every seconds until Ctrl-C.")] = False,
    every: Annotated[
        float,
        typer.Option(
            "--every", metavar="SECONDS", min=0.1, help="Wait this many seconds between two outputs of --watch."
        ),
    ] = WATCH_SECONDS,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Show how many records groups are behind."""
    if watch and fail_above is not None:
        raise usage("--watch and --fail-above cannot be used together")
    with cluster.connect() as client:
        while True:
            if names:
                lags = {name: _partition_lags(client, describe_group(client, name)) for name in names}
            else:
                lags = _lags_of_all_groups(client)
            totals = {name: _total(rows) for name, rows in lags.items()}
            if watch and not as_json:
                console().clear()
            if as_json:
                for name, rows in lags.items():
                    print_json({"group": name, "lag": totals[name], "partitions": rows})
            elif names:
                for name, rows in lags.items():
                    echo(f"{name}: {format_count(totals[name], 'record')} behind")
                    _print_partitions(rows)
            else:
                table = [(name, totals[name], len(rows)) for name, rows in lags.items()]
                print_table(("GROUP", "LAG", "PARTITIONS"), table, right=("LAG", "PARTITIONS"))
            if not watch:
                break
            time.sleep(every)
    if fail_above is not None:
        behind = [
            f"{name} is {format_count(total, 'record')} behind, more than {fail_above}"
            for name, total in totals.items()
            if total > fail_above
        ]
        if behind:
            raise fail("; ".join(behind), code=LAG_EXCEEDED)


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The offset to move to: `add_command` expands it to one option per field, of which one must be given."""

    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Move to the log start offset.")] = False
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Move to the end of the log.")] = False
    to_current: Annotated[
        bool, typer.Option("--to-current", help="Keep committed offsets; move to the end where there is none.")
    ] = False
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="OFFSET", help="Move to this offset.", show_default=False)
    ] = None
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time",
            metavar="TIME",
            help="Move to the first record at or after a time: ISO 8601, milliseconds since 1970, now, or -15m.",
            show_default=False,
        ),
    ] = None
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by", metavar="N", help="Move N offsets forward, or back if negative.", show_default=False
        ),
    ] = None

    def check(self) -> None:
        """Raise a usage error unless exactly one target is given."""
        targets = (self.to_offset, self.to_time, self.shift_by)
        count = sum((self.to_earliest, self.to_latest, self.to_current, *(option is not None for option in targets)))
        if count != 1:
            raise usage("give one of --to-earliest, --to-latest, --to-current, --to-offset, --to-time and --shift-by")

    def offsets(
        self, client: Client, group: str, topic: str, partitions: Sequence[int], current: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the new offset of each partition, moved into the log if it lies outside."""
        known = bounds(client, topic, partitions)
        at_time = offsets_at(client, topic, partitions, parse_time(self.to_time)) if self.to_time is not None else {}
        offsets = {}
        for index in partitions:
            partition, start, end = (topic, index), known[index].start, known[index].end
            if self.shift_by is not None and partition not in current:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"{group} has no committed offset on {topic}-{index} to shift"
                )
            if self.to_earliest:
                offset = start
            elif self.to_time is not None:
                offset = at_time[index]
            elif self.to_offset is not None:
                offset = self.to_offset
            elif self.shift_by is not None:
                offset = current[partition] + self.shift_by
            else:
                offset = current.get(partition, end) if self.to_current else end
            offsets[partition] = min(max(offset, start), end)
        return offsets


def reset_offsets(
    name: Group,
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:0,1]", help="Move on this topic, or on some partitions; repeatable."
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Move on every topic that the group has offsets of.")
    ] = False,
    share: Annotated[
        bool, typer.Option("--share", help="Treat it as a share group, which is created if it does not exist.")
    ] = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="Move the offsets; without it they are only shown.")
    ] = False,
    as_json: AsJson = False,
    target: TargetOptions,
    cluster: ClusterOptions,
) -> None:
    """Move the offsets of a group without active members."""
    target.check()
    if bool(topic) == all_topics:
        raise usage("give either --topic or --all-topics")
    with cluster.connect() as client:
        group = _idle_group(client, name)
        if share and group is not None and group.type != Kind.SHARE:
            raise fail(f"{name} is a {group.type} group, not a share group")
        is_share = share or (group is not None and group.type == Kind.SHARE)
        current = _share_starts(client, name) if is_share and group is not None else committed(client, name)
        offsets: dict[TopicPartition, int] = {}
        for topic_name, partitions in by_topic(_parse_partitions(client, topic or [], current)).items():
            offsets |= target.offsets(client, name, topic_name, partitions, current)
        if execute:
            (alter_share_offsets if is_share else commit)(client, name, offsets)
    rows = [
        {
            "group": name,
            "topic": partition[0],
            "partition": partition[1],
            "old": current.get(partition),
            "new": offset,
            "done": execute,
        }
        for partition, offset in sorted(offsets.items())
    ]
    print_rows(
        as_json,
        rows,
        ("TOPIC", "PARTITION", "OLD", "NEW"),
        lambda row: (row["topic"], row["partition"], row["old"], row["new"]),
        right=("PARTITION", "OLD", "NEW"),
    )
    if not execute:
        echo("nothing was changed; add --execute to do it", err=True)


def delete(
    names: Groups,
    *,
    offsets_of: Annotated[
        list[str] | None,
        typer.Option(
            "--offsets-of",
            metavar="TOPIC[:0,1]",
            help="Delete only the offsets of this topic, or of some partitions; repeatable.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Delete groups without members, or only their offsets."""

    def delete_one(name: str) -> None:
        if not offsets_of:
            delete_group(client, name)
            print_result(as_json, {"group": name, "deleted": True}, f"deleted {name}")
            return
        is_share = describe_group(client, name).type == Kind.SHARE
        partitions = _parse_partitions(client, offsets_of, {})
        if not is_share:
            delete_offsets(client, name, partitions)
        elif part := next((word for word in offsets_of if ":" in word), None):
            raise usage(f"--offsets-of {part}: offsets of a share group can only be deleted for whole topics")
        else:
            delete_share_offsets(client, name, offsets_of)
        print_result(
            as_json,
            {"group": name, "deleted_offsets": [list(partition) for partition in partitions]},
            f"deleted {format_count(len(partitions), 'offset')} of {name}",
        )

    with cluster.connect() as client:
        for_each(names, delete_one)


def _lags_of_all_groups(client: Client) -> dict[str, list[dict[str, Any]]]:
    lags = {}
    for group in list_groups(client):
        try:
            lags[group.group] = _partition_lags(client, describe_group(client, group.group))
        except KafkaError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:  # deleted after it was listed
                raise
    return lags


def _total(rows: list[dict[str, Any]]) -> int:
    return sum(row["lag"] or 0 for row in rows)


def _parse_partitions(client: Client, words: list[str], current: dict[TopicPartition, int]) -> list[TopicPartition]:
    """Return the partitions that `topic` and `topic:0,1` name; without words, those that have an offset."""
    if not words:
        if not current:
            raise fail("the group has no offsets; name topics with --topic", code=NOT_FOUND)
        return list(current)
    partitions: list[TopicPartition] = []
    for word in words:
        name, colon, listed = word.partition(":")
        info = client.topics([name])[0]
        if not colon:
            partitions += [(name, index) for index in info.partitions]
            continue
        for part in listed.split(","):
            if not part.isdigit():
                raise ValueError(f"{word}: write topic, or topic:0,1,2")
            client.leader(name, int(part))  # raises an error that names the partitions that exist
            partitions.append((name, int(part)))
    return list(dict.fromkeys(partitions))


def _share_starts(client: Client, name: str) -> dict[TopicPartition, int]:
    """Return a share group's start offset in each partition."""
    return {partition: start for partition, (start, _) in share_lags(client, name).items()}


def _idle_group(client: Client, name: str) -> GroupDescription | None:
    """Return the group, None if there is none; raise an error if it has members."""
    try:
        group = describe_group(client, name)
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        raise
    if group.state not in IDLE:
        raise KafkaError(
            ErrorCode.NON_EMPTY_GROUP,
            f"group {name} is {group.state} with {format_count(len(group.members), 'member')}; stop them first",
        )
    return group


def _partition_lags(client: Client, group: GroupDescription) -> list[dict[str, Any]]:
    """Return a row for each partition that the group has an offset of or that a member is assigned."""
    shared = share_lags(client, group.group) if group.type == Kind.SHARE else {}
    offsets = (
        {partition: start for partition, (start, _) in shared.items()}
        if group.type == Kind.SHARE
        else committed(client, group.group)
    )
    owners = {partition: member for member in group.members for partition in member.assigned}
    partitions = sorted({*offsets, *owners})
    ends: dict[TopicPartition, int] = {}
    topics = {topic.name: topic for topic in client.topics()} if partitions else {}
    for topic, indexes in by_topic(partitions).items():
        known = topics[topic].partitions if topic in topics else {}
        with_leader = [index for index in indexes if index in known and known[index].leader >= 0]
        if with_leader:
            ends |= {(topic, index): bound.end for index, bound in bounds(client, topic, with_leader).items()}
    rows = []
    for partition in partitions:
        owner = owners.get(partition)
        current, end = offsets.get(partition), ends.get(partition)
        rows.append(
            {
                "topic": partition[0],
                "partition": partition[1],
                "offset": current,
                "end": end,
                "lag": shared[partition][1] if partition in shared else _lag(current, end),
                "member": owner.member if owner else None,
                "client_id": owner.client_id if owner else None,
                "host": owner.host if owner else None,
            }
        )
    return rows


def _lag(current: int | None, end: int | None) -> int | None:
    return None if current is None or end is None else max(end - current, 0)


def _to_json(group: GroupDescription, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "group": group.group,
        "type": group.type,
        "state": group.state,
        "coordinator": group.coordinator,
        "assignor": group.assignor,
        "epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "lag": _total(rows),
        "members": [
            {
                "member": member.member,
                "instance": member.instance,
                "client_id": member.client_id,
                "host": member.host,
                "epoch": member.epoch,
                "assigned": [list(partition) for partition in member.assigned],
                "target": None if member.target is None else [list(partition) for partition in member.target],
                "subscribed": member.subscribed,
                **({} if member.tasks is None else {"tasks": member.tasks}),
            }
            for member in group.members
        ],
        "partitions": rows,
    }


def _print_description(group: GroupDescription, rows: list[dict[str, Any]]) -> None:
    echo(
        f"{group.group}  {group.type}, {group.state}, {format_count(len(group.members), 'member')}, "
        f"coordinator {group.coordinator}, assignor {group.assignor or '-'}"
        + (f", epoch {group.epoch}" if group.epoch is not None else "")
    )
    _print_partitions(rows)
    for member in group.members:
        name = f"{member.member} ({member.client_id} at {member.host})"
        for kind, tasks in (member.tasks or {}).items():
            if tasks:
                echo(f"{name} has {kind} tasks {', '.join(tasks)}")
        if not member.assigned:
            echo(f"{name} has no partitions")


def _print_partitions(rows: list[dict[str, Any]]) -> None:
    columns = ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "MEMBER", "CLIENT", "HOST")
    print_table(columns, [tuple(row.values()) for row in rows], right=("PARTITION", "OFFSET", "END", "LAG"))
