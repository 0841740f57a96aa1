"""`ottla topic`: list, describe, create, delete topics; add partitions; delete records."""

from typing import Annotated, Any

import typer

from ottla.cli.connect import (
    LOCAL,
    SECONDS,
    AsJson,
    Bootstrap,
    Properties,
    PropertiesFile,
    Timeout,
    connected,
    one_by_one,
)
from ottla.cli.output import counted, echo, examples, print_json, print_rows, print_table, usage
from ottla.client import Client
from ottla.client.client import TopicInfo
from ottla.client.configs import Resource, describe_configs
from ottla.client.reading import bounds
from ottla.client.topics import create_partitions, create_topic, delete_records, delete_topic

DYNAMIC_TOPIC_CONFIG = 1


def register(app: typer.Typer) -> None:
    """Add the commands."""
    topic = typer.Typer(name="topic", help="Topics of any Kafka cluster.", no_args_is_help=True)
    topic.command("list", epilog=examples("ottla topic list", "ottla topic list --internal --json"))(list_)
    topic.command("describe", epilog=examples("ottla topic describe orders"))(describe)
    topic.command("create", epilog=examples("ottla topic create orders -p 3 -c retention.ms=3600000"))(create)
    topic.command("delete", epilog=examples("ottla topic delete orders payments"))(delete)
    topic.command("add-partitions", epilog=examples("ottla topic add-partitions orders 6"))(add_partitions)
    topic.command("trim", epilog=examples("ottla topic trim orders --before 1000", "ottla topic trim orders -p 0"))(
        trim
    )
    app.add_typer(topic)


def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Kafka's own topics too.")] = False,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """List the topics of a cluster."""
    with connected(bootstrap, properties, command_config, timeout) as client:
        topics = [each for each in client.topics() if internal or not each.internal]
        topics.sort(key=lambda each: each.name)
    rows = [
        {
            "topic": each.name,
            "id": str(each.id),
            "partitions": len(each.partitions),
            "replication_factor": _replication_factor(each),
            "internal": each.internal,
        }
        for each in topics
    ]
    print_rows(
        as_json,
        rows,
        ("TOPIC", "PARTITIONS", "REPLICAS", "ID"),
        lambda row: (row["topic"], row["partitions"], row["replication_factor"], row["id"]),
        right=("PARTITIONS", "REPLICAS"),
    )


def describe(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics.")],
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show partitions, leaders, offsets, and the configs that were set."""
    with connected(bootstrap, properties, command_config, timeout) as client:
        found = [_described(client, topic) for topic in client.topics(names)]
    for number, topic in enumerate(found):
        if as_json:
            print_json(topic)
            continue
        if number:
            echo()
        _show(topic)


def create(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics.")],
    partitions: Annotated[int, typer.Option("--partitions", "-p", help="How many; -1 is the broker's default.")] = -1,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", help="How many replicas; -1 is the broker's default.")
    ] = -1,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="KEY=VALUE", help="A topic config; may be repeated.")
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that is there already is fine.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only ask whether it could be created.")] = False,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Create topics."""
    configs = {}
    for word in config or ():
        key, equals, value = word.partition("=")
        if not equals:
            raise usage(f"--config {word}: write key=value")
        configs[key] = value

    def make(name: str) -> None:
        if if_not_exists and any(each.name == name for each in client.topics()):
            _say(as_json, {"topic": name, "created": False}, f"{name} is there already")
            return
        result = create_topic(
            client,
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs,
            validate_only=dry_run,
        )
        told = {
            "topic": name,
            "created": not dry_run,
            "id": str(result.topic_id),
            "partitions": result.num_partitions,
            "replication_factor": result.replication_factor,
        }
        verb = "could create" if dry_run else "created"
        _say(as_json, told, f"{verb} {name} with {counted(result.num_partitions, 'partition')}")

    with connected(bootstrap, properties, command_config, timeout) as client:
        one_by_one(names, make)


def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics.")],
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A topic that is not there is fine.")] = False,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Delete topics with all that is in them."""

    def drop(name: str) -> None:
        if if_exists and all(each.name != name for each in client.topics()):
            _say(as_json, {"topic": name, "deleted": False}, f"there is no {name}")
            return
        delete_topic(client, name)
        _say(as_json, {"topic": name, "deleted": True}, f"deleted {name}")

    with connected(bootstrap, properties, command_config, timeout) as client:
        one_by_one(names, drop)


def add_partitions(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    count: Annotated[int, typer.Argument(help="How many partitions it shall have in all.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only ask whether it could be done.")] = False,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Give a topic more partitions."""
    with connected(bootstrap, properties, command_config, timeout) as client:
        create_partitions(client, name, count, validate_only=dry_run)
    told = {"topic": name, "partitions": count, "changed": not dry_run}
    _say(as_json, told, f"{name} {'could have' if dry_run else 'has'} {counted(count, 'partition')}")


def trim(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", help="Only these; may be repeated.", show_default=False)
    ] = None,
    before: Annotated[
        int, typer.Option("--before", help="The first offset that stays; -1 deletes all that is committed.")
    ] = -1,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Delete the records before an offset."""

    def cut(index: int) -> None:
        start = delete_records(client, name, {index: before})[index]
        _say(as_json, {"topic": name, "partition": index, "start": start}, f"{name}-{index} starts at {start}")

    with connected(bootstrap, properties, command_config, timeout) as client:
        one_by_one(partition or sorted(client.topics([name])[0].partitions), cut)


def _say(as_json: bool, told: dict[str, Any], sentence: str) -> None:
    if as_json:
        print_json(told)
    else:
        echo(sentence)


def _replication_factor(topic: TopicInfo) -> int:
    return max((len(each.replicas) for each in topic.partitions.values()), default=0)


def _described(client: Client, topic: TopicInfo) -> dict[str, Any]:
    led = [each.index for each in topic.partitions.values() if each.leader >= 0]
    known = bounds(client, topic.name, led)
    return {
        "topic": topic.name,
        "id": str(topic.id),
        "internal": topic.internal,
        "replication_factor": _replication_factor(topic),
        "configs": {
            each.name: each.value
            for each in describe_configs(client, Resource.TOPIC, topic.name)
            if each.config_source == DYNAMIC_TOPIC_CONFIG
        },
        "partitions": [
            {
                "partition": each.index,
                "leader": each.leader,
                "leader_epoch": each.leader_epoch,
                "replicas": list(each.replicas),
                "in_sync": list(each.in_sync),
                "start": known[each.index].start if each.index in known else None,
                "end": known[each.index].end if each.index in known else None,
                **({"error": each.error.name} if each.error else {}),
            }
            for each in topic.partitions.values()
        ],
    }


def _show(topic: dict[str, Any]) -> None:
    echo(f"{topic['topic']}  id {topic['id']}, {counted(len(topic['partitions']), 'partition')}")
    for key, value in topic["configs"].items():
        echo(f"  {key}={value}")
    print_table(
        ("PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC", "START", "END", "RECORDS"),
        [
            (
                each["partition"],
                each["leader"],
                each["leader_epoch"],
                ",".join(map(str, each["replicas"])),
                ",".join(map(str, each["in_sync"])),
                each["start"],
                each["end"],
                None if each["end"] is None else each["end"] - each["start"],
            )
            for each in topic["partitions"]
        ],
        right=("PARTITION", "LEADER", "EPOCH", "START", "END", "RECORDS"),
    )
