"""`ottla config`: show and change configs of topics, brokers, groups, loggers and client metrics."""

from enum import StrEnum
from typing import Annotated

import typer

from ottla.cli.options.commands import add_command, add_group
from ottla.cli.options.connect import AsJson, ClusterOptions
from ottla.cli.terminal.output import NOT_FOUND, fail, print_json, print_result, print_table, usage
from ottla.client import Client
from ottla.client.configs import DEFAULT_CONFIG, SOURCES, TYPES, Operation, Resource, alter_configs, describe_configs
from ottla.quantities import format_count


class Kind(StrEnum):
    """The kinds of resource that have configs."""

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
ResourceKind = Annotated[Kind, typer.Argument(metavar="KIND", help=f"One of {', '.join(Kind)}.")]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the topic, group or subscription; node id of a broker, `default` for all brokers."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    config = add_group(app, "config")
    add_command(
        config,
        "describe",
        describe,
        "ottla config describe topic orders --all",
        "ottla config describe broker 1",
        "ottla config describe topic orders retention.ms --documentation",
    )
    add_command(
        config,
        "alter",
        alter,
        "ottla config alter topic orders --set retention.ms=3600000",
        "ottla config alter topic orders --delete segment.bytes",
        "ottla config alter broker default --set log.retention.ms=86400000",
    )


def describe(
    kind: ResourceKind,
    name: Name,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Show only these configs.", show_default=False)
    ] = None,
    *,
    include_defaults: Annotated[
        bool, typer.Option("--all", "-a", help="Show configs that have their default value too.")
    ] = False,
    documentation: Annotated[
        bool, typer.Option("--documentation", help="Show what each config means, as the broker documents it.")
    ] = False,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Show configs and where each value comes from."""
    with cluster.connect() as client:
        _check_exists(client, kind, name)
        configs = describe_configs(
            client,
            RESOURCES[kind],
            _resource_name(kind, name),
            keys or None,
            synonyms=True,
            documentation=documentation,
        )
    missing = [key for key in keys or () if all(config.name != key for config in configs)]
    if missing:
        raise fail(f"{kind.value} {name} has no config {', '.join(missing)}", code=NOT_FOUND)
    if not include_defaults and not keys:
        configs = [config for config in configs if config.config_source != DEFAULT_CONFIG]
    if as_json:
        for config in configs:
            row = {
                "key": config.name,
                "value": config.value,
                "source": SOURCES.get(config.config_source, str(config.config_source)),
                "type": TYPES.get(config.config_type, str(config.config_type)),
                "read_only": config.read_only,
                "sensitive": config.is_sensitive,
                "synonyms": [
                    {"key": other.name, "value": other.value, "source": SOURCES.get(other.source, str(other.source))}
                    for other in config.synonyms
                ],
            }
            if documentation:
                row["documentation"] = config.documentation
            print_json(row)
        return
    print_table(
        ("KEY", "VALUE", "SOURCE", "TYPE", "NOTE"),
        [
            (
                config.name,
                "(hidden)" if config.is_sensitive else config.value,
                SOURCES.get(config.config_source, config.config_source),
                TYPES.get(config.config_type, config.config_type),
                config.documentation if documentation else ("read only" if config.read_only else ""),
            )
            for config in configs
        ],
    )


def alter(
    kind: ResourceKind,
    name: Name,
    *,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a config; repeatable.", show_default=False),
    ] = None,
    deletes: Annotated[
        list[str] | None,
        typer.Option("--delete", metavar="KEY", help="Return a config to its default; repeatable.", show_default=False),
    ] = None,
    appends: Annotated[
        list[str] | None,
        typer.Option(
            "--append", metavar="KEY=VALUE", help="Add a value to a list config; repeatable.", show_default=False
        ),
    ] = None,
    subtracts: Annotated[
        list[str] | None,
        typer.Option(
            "--subtract", metavar="KEY=VALUE", help="Remove a value from a list config; repeatable.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask the cluster whether it would accept them; change nothing.")
    ] = False,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Change configs: all changes of one call, or none."""
    changes: list[tuple[str, Operation, str | None]] = [(key, Operation.DELETE, None) for key in deletes or ()]
    for operation, words in ((Operation.SET, sets), (Operation.APPEND, appends), (Operation.SUBTRACT, subtracts)):
        for word in words or ():
            key, equals, value = word.partition("=")
            if not equals or not key:
                raise usage(f"--{operation.name.lower()} {word}: write key=value")
            changes.append((key, operation, value))
    if not changes:
        raise usage("config alter: nothing to change; use --set, --delete, --append or --subtract")
    with cluster.connect() as client:
        _check_exists(client, kind, name)
        alter_configs(client, RESOURCES[kind], _resource_name(kind, name), changes, validate_only=dry_run)
    row = {"kind": kind.value, "name": name, "changes": len(changes), "changed": not dry_run}
    verb = "would change" if dry_run else "changed"
    print_result(as_json, row, f"{kind.value} {name}: {verb} {format_count(len(changes), 'config')}")


def _resource_name(kind: Kind, name: str) -> str:
    if kind in (Kind.BROKER, Kind.LOGGER):
        if kind is Kind.BROKER and name == "default":
            return ""
        if not name.lstrip("-").isdigit():
            raise usage(f"{kind.value} {name}: write a node id" + (", or `default`" if kind is Kind.BROKER else ""))
    return name


def _check_exists(client: Client, kind: Kind, name: str) -> None:
    """Raise an error that names the topic: Kafka's own error for a missing topic does not."""
    if kind is Kind.TOPIC:
        client.topics([name])
