"""`ottla acl`: list, add and remove access control entries."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ottla.cli.options.commands import add_command, add_group
from ottla.cli.options.connect import AsJson, ClusterOptions
from ottla.cli.terminal.output import echo, print_rows, usage, warn
from ottla.client.access import AclFilter, create_acls, delete_acls, list_acls
from ottla.cluster.security.acls import (
    CLUSTER_RESOURCE_NAME,
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from ottla.quantities import format_count
from ottla.security.authorizer import OPERATIONS

_PRINCIPAL_HELP = "Select a principal: User:alice, or alice for short."
Principal = Annotated[
    str | None, typer.Option("--principal", "-p", metavar="NAME", help=_PRINCIPAL_HELP, show_default=False)
]
Host = Annotated[
    str | None,
    typer.Option("--host", metavar="ADDRESS", help="Restrict to clients at this address.", show_default=False),
]


@dataclass(frozen=True, slots=True)
class ResourceOptions:
    """The resource that entries are about: `add_command` expands it to one option per field."""

    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", "-t", metavar="NAME", help="Select a topic; * selects every topic.", show_default=False
        ),
    ] = None
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", metavar="ID", help="Select a group; * selects every group.", show_default=False),
    ] = None
    transactional_id: Annotated[
        str | None,
        typer.Option(
            "--transactional-id",
            metavar="ID",
            help="Select a transactional id; * selects every one.",
            show_default=False,
        ),
    ] = None
    token: Annotated[
        str | None, typer.Option("--token", metavar="ID", help="Select a delegation token.", show_default=False)
    ] = None
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            metavar="NAME",
            help="Select the delegation tokens of a user, such as User:alice.",
            show_default=False,
        ),
    ] = None
    whole_cluster: Annotated[bool, typer.Option("--cluster", help="Select the cluster itself.")] = False
    prefixed: Annotated[
        bool, typer.Option("--prefixed", help="Select every resource with a name that begins with the given one.")
    ] = False

    def resource(self, *, required: bool = False) -> tuple[ResourceType, str | None]:
        """Return the type and name of the resource; ANY and None if none is given."""
        resources = [
            (kind, name)
            for kind, name in (
                (ResourceType.TOPIC, self.topic),
                (ResourceType.GROUP, self.group),
                (ResourceType.TRANSACTIONAL_ID, self.transactional_id),
                (ResourceType.DELEGATION_TOKEN, self.token),
                (ResourceType.USER, None if self.user is None else _parse_principal(self.user)),
                (ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME if self.whole_cluster else None),
            )
            if name is not None
        ]
        if len(resources) > 1 or (required and not resources):
            raise usage("acl: name one resource: --topic, --group, --transactional-id, --token, --user or --cluster")
        return resources[0] if resources else (ResourceType.ANY, None)

    @property
    def pattern(self) -> PatternType:
        """The pattern type of a filter for these resources."""
        if self.prefixed:
            return PatternType.PREFIXED
        return PatternType.ANY if self.resource()[1] is None else PatternType.LITERAL


def register(app: typer.Typer) -> None:
    """Add the commands."""
    acl = add_group(app, "acl")
    add_command(acl, "list", list_, "ottla acl list", "ottla acl list --topic orders --json")
    add_command(
        acl,
        "add",
        add,
        "ottla acl add -p alice -o read --topic orders",
        "ottla acl add -p User:app -o write -o describe --topic app- --prefixed",
        "ottla acl add -p mallory -o all --topic '*' --deny",
    )
    add_command(acl, "remove", remove, "ottla acl remove -p alice --topic orders --yes")


def list_(
    *,
    principal: Principal = None,
    as_json: AsJson = False,
    resources: ResourceOptions,
    cluster: ClusterOptions,
) -> None:
    """List all entries, or those of one resource or principal."""
    kind, name = resources.resource()
    entry_filter = AclFilter(kind, name, resources.pattern, _parse_optional(principal))
    with cluster.connect() as client:
        _print_acls(list_acls(client, entry_filter), as_json)


def add(
    *,
    principal: Annotated[str, typer.Option("--principal", "-p", metavar="NAME", help=_PRINCIPAL_HELP)],
    operation: Annotated[
        list[str],
        typer.Option("--operation", "-o", metavar="NAME", help="Allow read, write, describe, all, ...; repeatable."),
    ],
    host: Host = None,
    deny: Annotated[bool, typer.Option("--deny", help="Deny the operations instead of allowing them.")] = False,
    as_json: AsJson = False,
    resources: ResourceOptions,
    cluster: ClusterOptions,
) -> None:
    """Allow or deny operations on a resource."""
    kind, name = resources.resource(required=True)
    assert name is not None
    entries = [
        Acl(
            kind,
            name,
            PatternType.PREFIXED if resources.prefixed else PatternType.LITERAL,
            _parse_principal(principal),
            host or "*",
            _parse_operation(word, kind),
            AclPermission.DENY if deny else AclPermission.ALLOW,
        )
        for word in operation
    ]
    with cluster.connect() as client:
        create_acls(client, entries)
    _print_acls(entries, as_json)


def remove(
    *,
    principal: Principal = None,
    operation: Annotated[
        list[str] | None,
        typer.Option("--operation", "-o", metavar="NAME", help="Remove only entries of this operation; repeatable."),
    ] = None,
    host: Host = None,
    deny: Annotated[bool, typer.Option("--deny", help="Remove only entries that deny.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Remove the entries; without it they are only shown.")
    ] = False,
    as_json: AsJson = False,
    resources: ResourceOptions,
    cluster: ClusterOptions,
) -> None:
    """Remove the entries that match."""
    kind, name = resources.resource()
    if name is None and principal is None:
        raise usage("acl remove: name a resource, a principal, or both")
    operations = [_parse_operation(word, kind) for word in operation or ()] or [AclOperation.ANY]
    filters = [
        AclFilter(
            kind,
            name,
            resources.pattern,
            _parse_optional(principal),
            host,
            operation_filter,
            AclPermission.DENY if deny else AclPermission.ANY,
        )
        for operation_filter in operations
    ]
    with cluster.connect() as client:
        find = delete_acls if yes else list_acls
        matching = [acl for entry_filter in filters for acl in find(client, entry_filter)]
    _print_acls(matching, as_json)
    if not matching:
        warn("no entry matches; nothing was removed")
    elif not yes:
        echo(f"would remove {format_count(len(matching), 'ACL')}; add --yes to do it", err=True)


def _parse_optional(word: str | None) -> str | None:
    return None if word is None else _parse_principal(word)


def _parse_principal(word: str) -> str:
    return word if ":" in word else f"User:{word}"


def _parse_operation(word: str, kind: ResourceType) -> AclOperation:
    try:
        operation = AclOperation[word.upper().replace("-", "_")]
    except KeyError:
        operation = AclOperation.UNKNOWN
    allowed = (AclOperation.ALL, *OPERATIONS.get(kind, tuple(AclOperation)[3:]))
    if operation not in allowed:
        names = ", ".join(allowed_operation.name.lower() for allowed_operation in allowed)
        raise usage(f"acl: a {kind.name.lower().replace('_', ' ')} has no operation {word}; use {names}")
    return operation


def _row(acl: Acl) -> dict[str, Any]:
    return {
        "resource_type": ResourceType(acl.resource_type).name.lower(),
        "resource_name": acl.resource_name,
        "pattern_type": PatternType(acl.pattern_type).name.lower(),
        "principal": acl.principal,
        "host": acl.host,
        "operation": AclOperation(acl.operation).name.lower(),
        "permission": AclPermission(acl.permission_type).name.lower(),
    }


def _print_acls(acls: list[Acl], as_json: bool) -> None:
    rows = sorted((_row(acl) for acl in acls), key=lambda row: tuple(row.values()))
    fields = ("permission", "principal", "operation", "resource_type", "resource_name", "pattern_type", "host")
    columns = ("PERMISSION", "PRINCIPAL", "OPERATION", "RESOURCE", "NAME", "PATTERN", "HOST")
    print_rows(as_json, rows, columns, lambda row: [row[field] for field in fields])
