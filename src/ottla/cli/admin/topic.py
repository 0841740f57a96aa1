"""`ottla topic`: list, describe, create, change and delete topics."""

from typing import Annotated, Any

import typer

from ottla.cli.options.commands import add_command, add_group
from ottla.cli.options.completion import complete_topics
from ottla.cli.options.connect import AsJson, ClusterOptions, for_each
from ottla.cli.terminal.output import confirm, echo, pairs, print_json, print_result, print_rows, print_table
from ottla.client import Client
from ottla.client.client import TopicInfo
from ottla.client.configs import DYNAMIC_TOPIC_CONFIG, Resource, describe_configs
from ottla.client.reading import bounds
from ottla.client.topics import create_partitions, create_topic, delete_records, delete_topic
from ottla.quantities import format_count

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topics)]
Topics = Annotated[
    list[str], typer.Argument(metavar="TOPIC...", help="Names of the topics.", autocompletion=complete_topics)
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    topic = add_group(app, "topic")
    add_command(topic, "list", list_, "ottla topic list", "ottla topic list --internal --json")
    add_command(topic, "describe", describe, "ottla topic describe orders")
    add_command(
        topic,
        "create",
        create,
        "ottla topic create orders -p 3 -c retention.ms=3600000",
        "ottla topic create orders --if-not-exists",
    )
    add_command(topic, "delete", delete, "ottla topic delete orders payments", "ottla topic delete orders --yes")
    add_command(topic, "add-partitions", add_partitions, "ottla topic add-partitions orders 6")
    add_command(
        topic,
        "trim",
        trim,
        "ottla topic trim orders --before 1000       the log starts at offset 1000",
        "ottla topic trim orders -p 0 --yes          partition 0 becomes empty",
    )


def list_(
    *,
    internal: Annotated[bool, typer.Option("--internal", help="List Kafka's internal topics too.")] = False,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """List the topics of a cluster."""
    with cluster.connect() as client:
        topics = [topic for topic in client.topics() if internal or not topic.internal]
    rows = [
        {
            "topic": topic.name,
            "id": str(topic.id),
            "partitions": len(topic.partitions),
            "replication_factor": _replication_factor(topic),
            "internal": topic.internal,
        }
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]
    print_rows(
        as_json,
        rows,
        ("TOPIC", "PARTITIONS", "REPLICAS", "ID"),
        lambda row: (row["topic"], row["partitions"], row["replication_factor"], row["id"]),
        right=("PARTITIONS", "REPLICAS"),
    )


def describe(names: Topics, *, as_json: AsJson = False, cluster: ClusterOptions) -> None:
    """Show partitions, leaders, offsets and changed configs."""
    with cluster.connect() as client:
        described = [_describe(client, topic) for topic in client.topics(names)]
    for number, topic in enumerate(described):
        if as_json:
            print_json(topic)
            continue
        if number:
            echo()
        _print_description(topic)


def create(
    names: Topics,
    *,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", metavar="N", help="Create N partitions; -1 takes the broker's default.")
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(
            "--replication-factor", "-r", metavar="N", help="Create N replicas of each; -1 takes the broker's default."
        ),
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="Set a topic config; repeatable."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if a topic exists; it is not changed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask the cluster whether it would create them; create nothing.")
    ] = False,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Create topics."""
    configs = pairs("--config", config)

    def create_one(name: str) -> None:
        if if_not_exists and any(topic.name == name for topic in client.topics()):
            print_result(as_json, {"topic": name, "created": False}, f"{name} exists already")
            return
        result = create_topic(
            client,
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs,
            validate_only=dry_run,
        )
        row = {
            "topic": name,
            "created": not dry_run,
            "id": str(result.topic_id),
            "partitions": result.num_partitions,
            "replication_factor": result.replication_factor,
        }
        verb = "would create" if dry_run else "created"
        print_result(as_json, row, f"{verb} {name} with {format_count(result.num_partitions, 'partition')}")

    with cluster.connect() as client:
        for_each(names, create_one)


def delete(
    names: Topics,
    *,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if a topic does not exist.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Delete topics with all their records."""
    confirm(f"Delete {', '.join(names)} with all records?", yes=yes)

    def delete_one(name: str) -> None:
        if if_exists and all(topic.name != name for topic in client.topics()):
            print_result(as_json, {"topic": name, "deleted": False}, f"{name} does not exist")
            return
        delete_topic(client, name)
        print_result(as_json, {"topic": name, "deleted": True}, f"deleted {name}")

    with cluster.connect() as client:
        for_each(names, delete_one)


def add_partitions(
    name: Topic,
    count: Annotated[int, typer.Argument(metavar="COUNT", help="Partitions the topic is to have in all.")],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask the cluster whether it would add them; add none.")
    ] = False,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Raise the number of partitions of a topic.

    Keys may move to other partitions: records that have the same key are no longer in one partition.
    """
    with cluster.connect() as client:
        create_partitions(client, name, count, validate_only=dry_run)
    row = {"topic": name, "partitions": count, "changed": not dry_run}
    print_result(as_json, row, f"{name} {'would have' if dry_run else 'has'} {format_count(count, 'partition')}")


def trim(
    name: Topic,
    *,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition", "-p", metavar="N", help="Trim only this partition; repeatable.", show_default=False
        ),
    ] = None,
    before: Annotated[
        int,
        typer.Option(
            "--before", metavar="OFFSET", help="Delete the records before this offset; -1 is the high watermark."
        ),
    ] = -1,
    yes: Yes = False,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Delete the oldest records, up to an offset."""
    which = "all records" if before < 0 else f"the records before offset {before}"
    confirm(f"Delete {which} of {name}{_partition_list(partition)}?", yes=yes)

    def trim_one(index: int) -> None:
        start = delete_records(client, name, {index: before})[index]
        row = {"topic": name, "partition": index, "start": start}
        print_result(as_json, row, f"{name}-{index} starts at offset {start}")

    with cluster.connect() as client:
        for_each(partition or sorted(client.topics([name])[0].partitions), trim_one)


def _partition_list(partitions: list[int] | None) -> str:
    return "" if not partitions else f", partition {', '.join(map(str, partitions))}"


def _replication_factor(topic: TopicInfo) -> int:
    return max((len(partition.replicas) for partition in topic.partitions.values()), default=0)


def _describe(client: Client, topic: TopicInfo) -> dict[str, Any]:
    with_leader = [partition.index for partition in topic.partitions.values() if partition.leader >= 0]
    known = bounds(client, topic.name, with_leader)
    return {
        "topic": topic.name,
        "id": str(topic.id),
        "internal": topic.internal,
        "replication_factor": _replication_factor(topic),
        "configs": {
            config.name: config.value
            for config in describe_configs(client, Resource.TOPIC, topic.name)
            if config.config_source == DYNAMIC_TOPIC_CONFIG
        },
        "partitions": [
            {
                "partition": partition.index,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "in_sync": list(partition.in_sync),
                "start": known[partition.index].start if partition.index in known else None,
                "end": known[partition.index].end if partition.index in known else None,
                **({"error": partition.error.name} if partition.error else {}),
            }
            for partition in topic.partitions.values()
        ],
    }


def _note(partition: dict[str, Any]) -> str:
    return str(partition.get("error", "" if partition["leader"] >= 0 else "no leader"))


def _print_description(topic: dict[str, Any]) -> None:
    echo(f"{topic['topic']}  id {topic['id']}, {format_count(len(topic['partitions']), 'partition')}")
    for key, value in topic["configs"].items():
        echo(f"  {key}={value}")
    noted = any(_note(partition) for partition in topic["partitions"])
    print_table(
        ("PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "START", "END", "OFFSETS", *(("NOTE",) if noted else ())),
        [
            (
                partition["partition"],
                partition["leader"],
                partition["leader_epoch"],
                ",".join(map(str, partition["replicas"])),
                ",".join(map(str, partition["in_sync"])),
                partition["start"],
                partition["end"],
                None if partition["end"] is None else partition["end"] - partition["start"],
                *((_note(partition),) if noted else ()),
            )
            for partition in topic["partitions"]
        ],
        right=("PARTITION", "LEADER", "EPOCH", "START", "END", "OFFSETS"),
    )
