"""`ottla group`: consumer groups, their lag, and their offsets moved."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from ottla.cli.connect import (
    LOCAL,
    NOT_FOUND,
    SECONDS,
    AsJson,
    Bootstrap,
    Properties,
    PropertiesFile,
    Timeout,
    connected,
    one_by_one,
)
from ottla.cli.moments import moment
from ottla.cli.output import counted, echo, examples, fail, print_json, print_rows, print_table, usage
from ottla.client import Client
from ottla.client.groups import (
    GroupDescription,
    Place,
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
# In these states no member would overwrite what is set.
IDLE = frozenset({"Empty", "Dead"})
TOO_FAR_BEHIND = 5


class Kind(StrEnum):
    """Which protocol a group's members use."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(name="group", help="Consumer groups of any Kafka cluster.", no_args_is_help=True)
    group.command("list", epilog=examples("ottla group list", "ottla group list --state stable --json"))(list_)
    group.command("describe", epilog=examples("ottla group describe billing"))(describe)
    group.command(
        "lag", epilog=examples("ottla group lag billing", "ottla group lag billing --fail-above 1000   (exit code 5)")
    )(lag)
    group.command(
        "reset-offsets",
        epilog=examples(
            "ottla group reset-offsets billing --all-topics --to-earliest",
            "ottla group reset-offsets billing -t orders:0,1 --to-time -1h --execute",
            "ottla group reset-offsets billing -t orders --shift-by -100 --execute",
            "ottla group reset-offsets workers --share -t tasks --to-earliest --execute",
        ),
    )(reset_offsets)
    group.command(
        "delete", epilog=examples("ottla group delete billing", "ottla group delete billing --offsets-of orders")
    )(delete)
    app.add_typer(group)


def list_(
    state: Annotated[list[str] | None, typer.Option("--state", help="Only in this state; may be repeated.")] = None,
    kind: Annotated[list[Kind] | None, typer.Option("--type", help="Only of this type; may be repeated.")] = None,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """List the groups of all brokers."""
    unknown = [name for name in state or () if name.lower() not in {known.lower() for known in STATES}]
    if unknown:
        raise usage(f"--state {unknown[0]}: use one of {', '.join(STATES)}")
    with connected(bootstrap, properties, command_config, timeout) as client:
        found = list_groups(client, state or (), [each.value for each in kind or ()])
    rows = [
        {
            "group": each.group,
            "type": each.type,
            "state": each.state,
            "protocol_type": each.protocol_type,
            "coordinator": each.coordinator,
        }
        for each in found
    ]
    columns = ("GROUP", "TYPE", "STATE", "PROTOCOL", "COORDINATOR")
    print_rows(as_json, rows, columns, lambda row: tuple(row.values()), right=("COORDINATOR",))


def describe(
    names: Annotated[list[str], typer.Argument(metavar="GROUP...", help="The groups.")],
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show a group's members, what they read, and how far they are."""
    with connected(bootstrap, properties, command_config, timeout) as client:
        for number, name in enumerate(names):
            group = describe_group(client, name)
            rows = _lags(client, group)
            if as_json:
                print_json(_json(group, rows))
                continue
            if number:
                echo()
            _show(group, rows)


def lag(
    names: Annotated[list[str], typer.Argument(metavar="GROUP...", help="The groups.")],
    fail_above: Annotated[
        int | None,
        typer.Option("--fail-above", help="Exit with code 5 if a group is further behind in all.", show_default=False),
    ] = None,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show how far groups are behind, per partition and in all."""
    behind = []
    with connected(bootstrap, properties, command_config, timeout) as client:
        for name in names:
            rows = _lags(client, describe_group(client, name))
            total = sum(row["lag"] or 0 for row in rows)
            if fail_above is not None and total > fail_above:
                behind.append(f"{name} is {counted(total, 'record')} behind, more than {fail_above}")
            if as_json:
                print_json({"group": name, "lag": total, "partitions": rows})
                continue
            echo(f"{name}: {counted(total, 'record')} behind")
            _table(rows)
    if behind:
        raise fail("; ".join(behind), code=TOO_FAR_BEHIND)


def reset_offsets(
    name: Annotated[str, typer.Argument(metavar="GROUP", help="The group.")],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC[:0,1]", help="Topic, or some of its partitions; may be repeated."),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="Every topic the group has offsets of.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the beginning.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="To where it is, else to the end.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", help="To an offset.", show_default=False)] = None,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="TIME", help="To the first record at or after a time.", show_default=False),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="Forward, or back if negative.", show_default=False)
    ] = None,
    share: Annotated[bool, typer.Option("--share", help="A share group, which may not be there yet.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without, only show what would be done.")] = False,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Move the offsets of a group that has no active members. Without --execute nothing is changed."""
    ways = [to_earliest, to_latest, to_current, to_offset is not None, to_time is not None, shift_by is not None]
    if sum(ways) != 1:
        raise usage("say where to: one of --to-earliest, --to-latest, --to-current, --to-offset, --to-time, --shift-by")
    if bool(topic) == all_topics:
        raise usage("say of which topics: --topic or --all-topics")
    with connected(bootstrap, properties, command_config, timeout) as client:
        group = _idle(client, name)
        if share and group is not None and group.type != Kind.SHARE:
            raise fail(f"{name} is a {group.type} group, not a share group")
        shared = share or (group is not None and group.type == Kind.SHARE)
        now = _starts(client, name) if shared and group is not None else committed(client, name)
        places = _places(client, topic or [], now)
        target: dict[Place, int] = {}
        for each, partitions in by_topic(places).items():
            known = bounds(client, each, partitions)
            at = offsets_at(client, each, partitions, moment(to_time)) if to_time is not None else {}
            for index in partitions:
                start, end = known[index].start, known[index].end
                current = now.get((each, index))
                if to_earliest:
                    wanted = start
                elif to_time is not None:
                    wanted = at[index]
                elif to_offset is not None:
                    wanted = to_offset
                elif shift_by is not None:
                    if current is None:
                        raise KafkaError(
                            ErrorCode.INVALID_REQUEST, f"{each}-{index} has no offset of {name} that could be shifted"
                        )
                    wanted = current + shift_by
                elif to_current and current is not None:
                    wanted = current
                else:
                    wanted = end
                target[each, index] = min(max(wanted, start), end)
        if execute:
            (alter_share_offsets if shared else commit)(client, name, target)
    rows = [
        {"group": name, "topic": place[0], "partition": place[1], "old": now.get(place), "new": offset, "done": execute}
        for place, offset in sorted(target.items())
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
    names: Annotated[list[str], typer.Argument(metavar="GROUP...", help="The groups.")],
    offsets_of: Annotated[
        list[str] | None,
        typer.Option(
            "--offsets-of",
            metavar="TOPIC[:0,1]",
            help="Only its offsets of this topic; may be repeated.",
            show_default=False,
        ),
    ] = None,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Delete groups that have no members, or only offsets of theirs."""

    def drop(name: str) -> None:
        if offsets_of:
            shared = describe_group(client, name).type == Kind.SHARE
            places = _places(client, offsets_of, {})
            if not shared:
                delete_offsets(client, name, places)
            elif some := next((each for each in offsets_of if ":" in each), None):
                raise usage(f"--offsets-of {some}: a share group forgets whole topics only")
            else:
                delete_share_offsets(client, name, offsets_of)
            told: dict[str, Any] = {"group": name, "deleted_offsets": [list(each) for each in places]}
            sentence = f"deleted {counted(len(places), 'offset')} of {name}"
        else:
            delete_group(client, name)
            told = {"group": name, "deleted": True}
            sentence = f"deleted {name}"
        if as_json:
            print_json(told)
        else:
            echo(sentence)

    with connected(bootstrap, properties, command_config, timeout) as client:
        one_by_one(names, drop)


def _places(client: Client, words: list[str], now: dict[Place, int]) -> list[Place]:
    """The partitions that `topic` and `topic:0,1` name; without any, all that have an offset."""
    if not words:
        if not now:
            raise fail("the group has no offsets; name topics with --topic", code=NOT_FOUND)
        return list(now)
    found: list[Place] = []
    for word in words:
        name, colon, listed = word.partition(":")
        info = client.topics([name])[0]
        if not colon:
            found += [(name, index) for index in info.partitions]
            continue
        for part in listed.split(","):
            if not part.isdigit():
                raise ValueError(f"{word}: write topic, or topic:0,1,2")
            if int(part) not in info.partitions:
                client.leader(name, int(part))  # says which there are
            found.append((name, int(part)))
    return found


def _starts(client: Client, name: str) -> dict[Place, int]:
    """Where a share group begins in each partition."""
    return {place: start for place, (start, _) in share_lags(client, name).items()}


def _idle(client: Client, name: str) -> GroupDescription | None:
    """The group, None if there is none; one with members is refused."""
    try:
        group = describe_group(client, name)
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        raise
    if group.state not in IDLE:
        raise KafkaError(
            ErrorCode.NON_EMPTY_GROUP,
            f"group {name} is {group.state} with {counted(len(group.members), 'member')}; stop them first",
        )
    return group


def _lags(client: Client, group: GroupDescription) -> list[dict[str, Any]]:
    shared = share_lags(client, group.group) if group.type == Kind.SHARE else {}
    offsets = {place: start for place, (start, _) in shared.items()} if shared else committed(client, group.group)
    owners = {place: member for member in group.members for place in member.assigned}
    places = sorted({*offsets, *owners})
    ends: dict[Place, int | None] = {}
    there = {each.name: each for each in client.topics()}
    for topic, partitions in by_topic(places).items():
        led = [
            index
            for index in partitions
            if topic in there and index in there[topic].partitions and there[topic].partitions[index].leader >= 0
        ]
        ends |= {(topic, index): each.end for index, each in bounds(client, topic, led).items()} if led else {}
    rows = []
    for topic, index in places:
        owner = owners.get((topic, index))
        current, end = offsets.get((topic, index)), ends.get((topic, index))
        rows.append(
            {
                "topic": topic,
                "partition": index,
                "offset": current,
                "end": end,
                "lag": _lag(current, end) if (topic, index) not in shared else shared[topic, index][1],
                "member": owner.member if owner else None,
                "client_id": owner.client_id if owner else None,
                "host": owner.host if owner else None,
            }
        )
    return rows


def _lag(current: int | None, end: int | None) -> int | None:
    return None if current is None or end is None else max(end - current, 0)


def _json(group: GroupDescription, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "group": group.group,
        "type": group.type,
        "state": group.state,
        "coordinator": group.coordinator,
        "assignor": group.assignor,
        "epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "lag": sum(row["lag"] or 0 for row in rows),
        "members": [
            {
                "member": each.member,
                "instance": each.instance,
                "client_id": each.client_id,
                "host": each.host,
                "epoch": each.epoch,
                "assigned": [list(place) for place in each.assigned],
                "target": None if each.target is None else [list(place) for place in each.target],
                "subscribed": each.subscribed,
                **({} if each.tasks is None else {"tasks": each.tasks}),
            }
            for each in group.members
        ],
        "partitions": rows,
    }


def _show(group: GroupDescription, rows: list[dict[str, Any]]) -> None:
    echo(
        f"{group.group}  {group.type}, {group.state}, {counted(len(group.members), 'member')}, "
        f"coordinator {group.coordinator}, assignor {group.assignor or '-'}"
        + (f", epoch {group.epoch}" if group.epoch is not None else "")
    )
    _table(rows)
    for each in group.members:
        tasks = {kind: names for kind, names in (each.tasks or {}).items() if names}
        for kind, names in tasks.items():
            echo(f"{each.member} ({each.client_id} at {each.host}) has {kind} tasks {', '.join(names)}")
    idle = [each for each in group.members if not each.assigned]
    for each in idle:
        echo(f"{each.member} ({each.client_id} at {each.host}) reads nothing")


def _table(rows: list[dict[str, Any]]) -> None:
    print_table(
        ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "MEMBER", "CLIENT", "HOST"),
        [
            (
                row["topic"],
                row["partition"],
                row["offset"],
                row["end"],
                row["lag"],
                row["member"],
                row["client_id"],
                row["host"],
            )
            for row in rows
        ],
        right=("PARTITION", "OFFSET", "END", "LAG"),
    )
