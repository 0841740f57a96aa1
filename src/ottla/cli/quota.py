"""`ottla quota`: how much users, client ids and addresses may use, in any Kafka cluster."""

from typing import Annotated

import typer

from ottla.cli.connect import LOCAL, SECONDS, AsJson, Bootstrap, Properties, PropertiesFile, Timeout, connected
from ottla.cli.output import echo, examples, print_json, print_table, usage
from ottla.client.security import Entity, alter_quotas, list_quotas
from ottla.cluster.client_quotas import CLIENT_ID, IP, USER

User = Annotated[str | None, typer.Option("--user", "-u", help="A user's name, <default> for all others.")]
ClientId = Annotated[str | None, typer.Option("--client-id", help="A client id, <default> for all others.")]
Address = Annotated[str | None, typer.Option("--ip", help="An address, <default> for all others.")]
DEFAULT = "<default>"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    quota = typer.Typer(name="quota", help="Quotas of any Kafka cluster.", no_args_is_help=True)
    quota.command("list", epilog=examples("ottla quota list", "ottla quota list --user alice"))(list_)
    quota.command(
        "set",
        epilog=examples(
            "ottla quota set --user alice producer_byte_rate=1048576 consumer_byte_rate=2097152",
            "ottla quota set --client-id '<default>' request_percentage=50",
            "ottla quota set --ip 10.0.0.7 connection_creation_rate=10",
        ),
    )(set_)
    quota.command("remove", epilog=examples("ottla quota remove --user alice producer_byte_rate"))(remove)
    app.add_typer(quota)


def list_(
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """List quotas: all, or those of exactly one entity."""
    with connected(bootstrap, properties, command_config, timeout) as client:
        found = sorted(list_quotas(client, _entity(user, client_id, ip) or None).items(), key=str)
    if as_json:
        for entity, values in found:
            print_json({"entity": dict(entity), "quotas": values})
        return
    print_table(
        ("ENTITY", "QUOTA", "VALUE"),
        [(_shown(entity), key, f"{value:g}") for entity, values in found for key, value in sorted(values.items())],
        right=("VALUE",),
    )


def set_(
    quotas: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Quotas and their values.")],
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Set quotas of a user, a client id, both, or an address."""
    values: dict[str, float | None] = {}
    for word in quotas:
        key, _, value = word.partition("=")
        try:
            values[key] = float(value)
        except ValueError:
            raise usage(f"quota set {word}: write key=number, such as producer_byte_rate=1048576") from None
    entity = _entity(user, client_id, ip)
    if not entity:
        raise usage("quota set: say for whom: --user, --client-id, both, or --ip")
    with connected(bootstrap, properties, command_config, timeout) as client:
        alter_quotas(client, entity, values)
    if as_json:
        print_json({"entity": entity, "quotas": values})
    else:
        echo(f"set for {_shown(tuple(entity.items()))}: {', '.join(quotas)}")


def remove(
    quotas: Annotated[list[str], typer.Argument(metavar="KEY...", help="Quotas to remove.")],
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Remove quotas."""
    entity = _entity(user, client_id, ip)
    if not entity:
        raise usage("quota remove: say for whom: --user, --client-id, both, or --ip")
    with connected(bootstrap, properties, command_config, timeout) as client:
        alter_quotas(client, entity, dict.fromkeys(quotas))
    if as_json:
        print_json({"entity": entity, "removed": quotas})
    else:
        echo(f"removed for {_shown(tuple(entity.items()))}: {', '.join(quotas)}")


def _entity(user: str | None, client_id: str | None, ip: str | None) -> dict[str, str | None]:
    given = {USER: user, CLIENT_ID: client_id, IP: ip}
    return {kind: None if name == DEFAULT else name for kind, name in given.items() if name is not None}


def _shown(entity: Entity) -> str:
    return " ".join(f"{kind}={DEFAULT if name is None else name}" for kind, name in entity)
