"""`ottla config`: configs of topics, brokers, groups and loggers, read and changed."""

from enum import StrEnum
from typing import Annotated

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
)
from ottla.cli.output import examples, fail, print_json, print_table, usage
from ottla.client import Client
from ottla.client.configs import SOURCES, TYPES, Operation, Resource, alter_configs, describe_configs

DEFAULT_SOURCE = 5


class Kind(StrEnum):
    """What has configs, as the command line calls it."""

    TOPIC = "topic"
    BROKER = "broker"
    GROUP = "group"
    LOGGER = "logger"
    CLIENT_METRICS = "client-metrics"


RESOURCES = {
    Kind.TOPIC: Resource.TOPIC,
    Kind.BROKER: Resource.BROKER,
    Kind.GROUP: Resource.GROUP,
    Kind.LOGGER: Resource.BROKER_LOGGER,
    Kind.CLIENT_METRICS: Resource.CLIENT_METRICS,
}
Which = Annotated[Kind, typer.Argument(help="What has the configs.")]
Name = Annotated[str, typer.Argument(help="Its name; a broker's or logger's is the node id, `default` is all brokers.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    config = typer.Typer(name="config", help="Configs of any Kafka cluster.", no_args_is_help=True)
    config.command(
        "describe", epilog=examples("ottla config describe topic orders --all", "ottla config describe broker 1")
    )(describe)
    config.command(
        "alter",
        epilog=examples(
            "ottla config alter topic orders --set retention.ms=3600000 --delete segment.bytes",
            "ottla config alter broker default --set log.retention.ms=86400000",
        ),
    )(alter)
    app.add_typer(config)


def describe(
    kind: Which,
    name: Name,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Only these.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Those with their default value too.")] = False,
    documentation: Annotated[bool, typer.Option("--documentation", help="Say what each is for.")] = False,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show configs, where each value comes from, and what it hides."""
    with connected(bootstrap, properties, command_config, timeout) as client:
        _check_exists(client, kind, name)
        found = describe_configs(
            client,
            RESOURCES[kind],
            _resource_name(kind, name),
            keys or None,
            synonyms=True,
            documentation=documentation,
        )
    missing = [key for key in keys or () if all(each.name != key for each in found)]
    if missing:
        raise fail(f"{kind.value} {name} has no config {', '.join(missing)}", code=NOT_FOUND)
    if not everything and not keys:
        found = [each for each in found if each.config_source != DEFAULT_SOURCE]
    if as_json:
        for each in found:
            row = {
                "key": each.name,
                "value": each.value,
                "source": SOURCES.get(each.config_source, str(each.config_source)),
                "type": TYPES.get(each.config_type, str(each.config_type)),
                "read_only": each.read_only,
                "sensitive": each.is_sensitive,
                "synonyms": [
                    {"key": other.name, "value": other.value, "source": SOURCES.get(other.source, str(other.source))}
                    for other in each.synonyms
                ],
            }
            if documentation:
                row["documentation"] = each.documentation
            print_json(row)
        return
    print_table(
        ("KEY", "VALUE", "SOURCE", "TYPE", "NOTE"),
        [
            (
                each.name,
                "(hidden)" if each.is_sensitive else each.value,
                SOURCES.get(each.config_source, each.config_source),
                TYPES.get(each.config_type, each.config_type),
                each.documentation if documentation else ("read only" if each.read_only else ""),
            )
            for each in found
        ],
    )


def alter(
    kind: Which,
    name: Name,
    sets: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set it.", show_default=False)
    ] = None,
    deletes: Annotated[
        list[str] | None, typer.Option("--delete", metavar="KEY", help="Back to the default.", show_default=False)
    ] = None,
    appends: Annotated[
        list[str] | None, typer.Option("--append", metavar="KEY=VALUE", help="Add to a list.", show_default=False)
    ] = None,
    subtracts: Annotated[
        list[str] | None,
        typer.Option("--subtract", metavar="KEY=VALUE", help="Take from a list.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only ask whether it would be taken.")] = False,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Change configs; all changes of one call or none."""
    changes: list[tuple[str, Operation, str | None]] = [(key, Operation.DELETE, None) for key in deletes or ()]
    for operation, words in ((Operation.SET, sets), (Operation.APPEND, appends), (Operation.SUBTRACT, subtracts)):
        for word in words or ():
            key, equals, value = word.partition("=")
            if not equals:
                raise usage(f"--{operation.name.lower()} {word}: write key=value")
            changes.append((key, operation, value))
    if not changes:
        raise usage("nothing to change: use --set, --delete, --append or --subtract")
    with connected(bootstrap, properties, command_config, timeout) as client:
        _check_exists(client, kind, name)
        alter_configs(client, RESOURCES[kind], _resource_name(kind, name), changes, validate_only=dry_run)
    if as_json:
        print_json({"kind": kind.value, "name": name, "changes": len(changes), "changed": not dry_run})
    else:
        typer.echo(f"{kind.value} {name}: {len(changes)} {'would be' if dry_run else ''} changed".replace("  ", " "))


def _resource_name(kind: Kind, name: str) -> str:
    if kind in (Kind.BROKER, Kind.LOGGER):
        if kind is Kind.BROKER and name == "default":
            return ""
        if not name.lstrip("-").isdigit():
            raise usage(f"{kind.value} {name}: write a node id" + (", or `default`" if kind is Kind.BROKER else ""))
    return name


def _check_exists(client: Client, kind: Kind, name: str) -> None:
    """Kafka answers for topics that are not there with an error; say which topic it was."""
    if kind is Kind.TOPIC:
        client.topics([name])
