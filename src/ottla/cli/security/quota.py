"""`ottla quota`: list, set and remove client quotas."""

from typing import Annotated

import typer

from ottla.cli.options.commands import add_command, add_group
from ottla.cli.options.connect import AsJson, ClusterOptions
from ottla.cli.terminal.output import print_json, print_result, print_table, usage
from ottla.client.access import Entity, alter_quotas, list_quotas
from ottla.cluster.security.client_quotas import CLIENT_ID, IP, USER

DEFAULT = "<default>"
_OTHERS = f"{DEFAULT} selects those without their own quota."
User = Annotated[
    str | None, typer.Option("--user", "-u", metavar="NAME", help=f"Select a user; {_OTHERS}", show_default=False)
]
ClientId = Annotated[
    str | None, typer.Option("--client-id", metavar="ID", help=f"Select a client id; {_OTHERS}", show_default=False)
]
Address = Annotated[
    str | None, typer.Option("--ip", metavar="ADDRESS", help=f"Select an IP address; {_OTHERS}", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    quota = add_group(app, "quota")
    add_command(quota, "list", list_, "ottla quota list", "ottla quota list --user alice")
    add_command(
        quota,
        "set",
        set_,
        "ottla quota set --user alice producer_byte_rate=1048576",
        "ottla quota set --client-id '<default>' request_percentage=50",
        "ottla quota set --ip 10.0.0.7 connection_creation_rate=10",
    )
    add_command(quota, "remove", remove, "ottla quota remove --user alice producer_byte_rate")


def list_(
    *,
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """List all quotas, or those of exactly one entity."""
    with cluster.connect() as client:
        listed = sorted(list_quotas(client, _entity(user, client_id, ip) or None).items(), key=str)
    if as_json:
        for entity, values in listed:
            print_json({"entity": dict(entity), "quotas": values})
        return
    print_table(
        ("ENTITY", "QUOTA", "VALUE"),
        [(_format(entity), key, f"{value:.15g}") for entity, values in listed for key, value in sorted(values.items())],
        right=("VALUE",),
    )


def set_(
    quotas: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            help="producer_byte_rate or consumer_byte_rate (bytes/s), request_percentage (of one thread's time), "
            "controller_mutation_rate or connection_creation_rate (per second).",
        ),
    ],
    *,
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Set quotas of a user, a client id, both, or an address."""
    values: dict[str, float | None] = {}
    for word in quotas:
        key, _, value = word.partition("=")
        if key in values:
            raise usage(f"quota set: {key} is given twice")
        try:
            values[key] = float(value)
        except ValueError:
            raise usage(f"quota set {word}: write key=number, such as producer_byte_rate=1048576") from None
    entity = _required_entity("set", user, client_id, ip)
    with cluster.connect() as client:
        alter_quotas(client, entity, values)
    row = {"entity": entity, "quotas": values}
    print_result(as_json, row, f"set for {_format(tuple(entity.items()))}: {', '.join(quotas)}")


def remove(
    quotas: Annotated[list[str], typer.Argument(metavar="KEY...", help="Names of the quotas to remove.")],
    *,
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Remove quotas of a user, a client id, both, or an address."""
    entity = _required_entity("remove", user, client_id, ip)
    with cluster.connect() as client:
        current = list_quotas(client, entity).get(tuple(sorted(entity.items())), {})
        missing = [key for key in quotas if key not in current]
        if missing:
            raise ValueError(f"{_format(tuple(entity.items()))} has no quota {', '.join(missing)}; nothing was removed")
        alter_quotas(client, entity, dict.fromkeys(quotas))
    row = {"entity": entity, "removed": quotas}
    print_result(as_json, row, f"removed for {_format(tuple(entity.items()))}: {', '.join(quotas)}")


def _entity(user: str | None, client_id: str | None, ip: str | None) -> dict[str, str | None]:
    entity = {USER: user, CLIENT_ID: client_id, IP: ip}
    return {kind: None if name == DEFAULT else name for kind, name in entity.items() if name is not None}


def _required_entity(command: str, user: str | None, client_id: str | None, ip: str | None) -> dict[str, str | None]:
    entity = _entity(user, client_id, ip)
    if not entity:
        raise usage(f"quota {command}: name an entity with --user, --client-id, both, or --ip")
    return entity


def _format(entity: Entity) -> str:
    return " ".join(f"{kind}={DEFAULT if name is None else name}" for kind, name in entity)
