"""`ottla acl`: who may do what, in any Kafka cluster."""

from typing import Annotated, Any

import typer

from ottla.cli.connect import LOCAL, SECONDS, AsJson, Bootstrap, Properties, PropertiesFile, Timeout, connected
from ottla.cli.output import examples, print_rows, usage
from ottla.client.security import AclFilter, create_acls, delete_acls, list_acls
from ottla.cluster.acls import (
    CLUSTER_RESOURCE_NAME,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from ottla.cluster.registrations import Acl
from ottla.security.authorizer import OPERATIONS

Topic = Annotated[str | None, typer.Option("--topic", "-t", help="A topic's name, * for all.", show_default=False)]
Group = Annotated[str | None, typer.Option("--group", "-g", help="A group's id, * for all.", show_default=False)]
TransactionalId = Annotated[
    str | None, typer.Option("--transactional-id", help="A transactional id, * for all.", show_default=False)
]
Token = Annotated[str | None, typer.Option("--token", help="A delegation token's id.", show_default=False)]
UserResource = Annotated[
    str | None, typer.Option("--user", help="A user whose tokens are meant: User:name.", show_default=False)
]
OfCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="The name stands for all that begin with it.")]
Principal = Annotated[
    str | None, typer.Option("--principal", "-p", help="User:name, or just a name.", show_default=False)
]
Host = Annotated[str | None, typer.Option("--host", help="An address that it holds for.", show_default=False)]
Operations = Annotated[
    list[str] | None, typer.Option("--operation", "-o", help="read, write, describe, all, ...; may be repeated.")
]
Deny = Annotated[bool, typer.Option("--deny", help="Deny instead of allow.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    acl = typer.Typer(name="acl", help="Access control of any Kafka cluster.", no_args_is_help=True)
    acl.command("list", epilog=examples("ottla acl list", "ottla acl list --topic orders --json"))(list_)
    acl.command(
        "add",
        epilog=examples(
            "ottla acl add -p alice -o read --topic orders",
            "ottla acl add -p User:app -o write -o describe --topic app- --prefixed",
            "ottla acl add -p mallory -o all --topic '*' --deny",
        ),
    )(add)
    acl.command("remove", epilog=examples("ottla acl remove -p alice --topic orders --yes"))(remove)
    app.add_typer(acl)


def list_(
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    token: Token = None,
    user: UserResource = None,
    cluster: OfCluster = False,
    prefixed: Prefixed = False,
    principal: Principal = None,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """List entries: all, or those of one resource or principal."""
    kind, name = _resource(topic, group, transactional_id, token, user, cluster, needed=False)
    wanted = _filter(kind, name, prefixed, principal)
    with connected(bootstrap, properties, command_config, timeout) as client:
        _print(list_acls(client, wanted), as_json)


def add(
    principal: Annotated[str, typer.Option("--principal", "-p", help="User:name, or just a name.")],
    operation: Annotated[list[str], typer.Option("--operation", "-o", help="read, write, ...; may be repeated.")],
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    token: Token = None,
    user: UserResource = None,
    cluster: OfCluster = False,
    prefixed: Prefixed = False,
    host: Host = None,
    deny: Deny = False,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Allow (or deny) operations on one resource."""
    kind, name = _resource(topic, group, transactional_id, token, user, cluster, needed=True)
    assert name is not None
    entries = [
        Acl(
            kind,
            name,
            PatternType.PREFIXED if prefixed else PatternType.LITERAL,
            _principal(principal),
            host or "*",
            _operation(each, kind),
            AclPermission.DENY if deny else AclPermission.ALLOW,
        )
        for each in operation
    ]
    with connected(bootstrap, properties, command_config, timeout) as client:
        create_acls(client, entries)
    _print(entries, as_json)


def remove(
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    token: Token = None,
    user: UserResource = None,
    cluster: OfCluster = False,
    prefixed: Prefixed = False,
    principal: Principal = None,
    operation: Operations = None,
    host: Host = None,
    deny: Annotated[bool, typer.Option("--deny", help="Only entries that deny.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this, only show what would go.")] = False,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Remove the entries that match."""
    kind, name = _resource(topic, group, transactional_id, token, user, cluster, needed=False)
    if name is None and principal is None:
        raise usage("acl remove: say which: a resource, a principal, or both")
    base = _filter(kind, name, prefixed, principal)
    chosen: list[str | None] = list(operation or []) or [None]
    filters = [
        AclFilter(
            base.resource_type,
            base.resource_name,
            base.pattern_type,
            base.principal,
            host,
            AclOperation.ANY if each is None else _operation(each, kind),
            AclPermission.DENY if deny else AclPermission.ANY,
        )
        for each in chosen
    ]
    with connected(bootstrap, properties, command_config, timeout) as client:
        change = delete_acls if yes else list_acls
        removed = [acl for wanted in filters for acl in change(client, wanted)]
    _print(removed, as_json)
    if not yes and removed:
        typer.echo(f"{len(removed)} would be removed; say --yes to remove them.", err=True)


def _resource(
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    token: str | None,
    user: str | None,
    cluster: bool,
    *,
    needed: bool,
) -> tuple[ResourceType, str | None]:
    given = [
        (kind, name)
        for kind, name in (
            (ResourceType.TOPIC, topic),
            (ResourceType.GROUP, group),
            (ResourceType.TRANSACTIONAL_ID, transactional_id),
            (ResourceType.DELEGATION_TOKEN, token),
            (ResourceType.USER, None if user is None else _principal(user)),
            (ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME if cluster else None),
        )
        if name is not None
    ]
    if len(given) > 1 or (needed and not given):
        raise usage("acl: name one resource: --topic, --group, --transactional-id, --token, --user or --cluster")
    return given[0] if given else (ResourceType.ANY, None)


def _filter(kind: ResourceType, name: str | None, prefixed: bool, principal: str | None) -> AclFilter:
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL if name is not None else PatternType.ANY
    return AclFilter(kind, name, pattern, None if principal is None else _principal(principal))


def _principal(word: str) -> str:
    return word if ":" in word else f"User:{word}"


def _operation(word: str, kind: ResourceType) -> AclOperation:
    try:
        found = AclOperation[word.upper().replace("-", "_")]
    except KeyError:
        found = AclOperation.UNKNOWN
    allowed = (AclOperation.ALL, *OPERATIONS.get(kind, tuple(AclOperation)[3:]))
    if found not in allowed:
        names = ", ".join(each.name.lower() for each in allowed)
        raise usage(f"acl: {word} is no operation on a {kind.name.lower().replace('_', ' ')}; there are {names}")
    return found


def _shown(acl: Acl) -> dict[str, Any]:
    return {
        "resource_type": ResourceType(acl.resource_type).name.lower(),
        "resource_name": acl.resource_name,
        "pattern_type": PatternType(acl.pattern_type).name.lower(),
        "principal": acl.principal,
        "host": acl.host,
        "operation": AclOperation(acl.operation).name.lower(),
        "permission": AclPermission(acl.permission_type).name.lower(),
    }


def _print(acls: list[Acl], as_json: bool) -> None:
    rows = sorted((_shown(acl) for acl in acls), key=lambda row: tuple(row.values()))
    columns = ("permission", "principal", "operation", "resource_type", "resource_name", "pattern_type", "host")
    shown = [column.replace("_", " ").upper() for column in columns]
    print_rows(as_json, rows, shown, lambda row: [row[column] for column in columns])
