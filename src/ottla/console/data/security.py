"""ACLs and the decision about a request, with the rule that decides; delegation tokens by id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.client.access import AclFilter, delete_acls, list_acls
from ottla.client.configs import Resource, describe_configs
from ottla.client.tokens import expire_token, list_tokens
from ottla.cluster.security.acls import WILDCARD, Acl, AclOperation, AclPermission, PatternType, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.authorizer import ANYBODY, IMPLIED_BY, parse_super_users

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.client.client import Client


@dataclass(frozen=True, slots=True)
class AclRow:
    """An ACL with names instead of numbers."""

    acl: Acl
    resource: str
    pattern: str
    operation: str
    permission: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a principal may do something, and why."""

    allowed: bool
    reason: str
    rule: AclRow | None = None


@dataclass(frozen=True, slots=True)
class AuthorizerConfig:
    """What the brokers' configs say about authorization."""

    enabled: bool | None
    """None if the configs may not be read."""
    super_users: frozenset[str]
    allow_without_acl: bool


def all_acls(client: Client) -> list[AclRow]:
    """Return all ACLs, sorted by resource and principal."""
    rows = [named(acl) for acl in list_acls(client, AclFilter())]
    return sorted(rows, key=lambda row: (row.resource, row.acl.resource_name, row.acl.principal, row.operation))


def named(acl: Acl) -> AclRow:
    """Return an ACL with the names of its parts."""
    return AclRow(
        acl,
        ResourceType(acl.resource_type).name.lower(),
        PatternType(acl.pattern_type).name.lower(),
        AclOperation(acl.operation).name.lower(),
        AclPermission(acl.permission_type).name.lower(),
    )


def remove_acl(client: Client, acl: Acl) -> int:
    """Delete exactly this ACL; return how many were deleted."""
    return len(
        delete_acls(
            client,
            AclFilter(
                acl.resource_type,
                acl.resource_name,
                acl.pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            ),
        )
    )


def authorizer_config(client: Client) -> AuthorizerConfig:
    """Return the authorizer's configs of the first broker."""
    keys = ["authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found"]
    try:
        configs = describe_configs(client, Resource.BROKER, str(min(client.brokers)), keys)
    except KafkaError:
        return AuthorizerConfig(None, frozenset(), False)
    values = {config.name: config.value or "" for config in configs}
    try:
        super_users = frozenset(parse_super_users(values.get("super.users", "")))
    except ValueError:
        super_users = frozenset()
    enabled = bool(values["authorizer.class.name"]) if "authorizer.class.name" in values else None
    return AuthorizerConfig(
        enabled, super_users, values.get("allow.everyone.if.no.acl.found", "").strip().lower() == "true"
    )


def decide(
    acls: Sequence[Acl],
    config: AuthorizerConfig,
    principal: str,
    host: str,
    operation: AclOperation,
    resource: ResourceType,
    name: str,
) -> Decision:
    """Return whether Kafka's StandardAuthorizer allows a request, and the rule that decides."""
    if config.enabled is False:
        return Decision(True, "The brokers have no authorizer: everyone may do everything.")
    if principal in config.super_users:
        return Decision(True, f"{principal} is one of super.users.")
    implied_by = IMPLIED_BY.get(operation, frozenset())
    matching = [acl for acl in acls if acl.resource_type == resource and _covers(acl, name)]
    allow = None
    for acl in matching:
        if acl.principal not in (principal, ANYBODY) or acl.host not in (host, WILDCARD):
            continue
        direct = acl.operation in (operation, AclOperation.ALL)
        if acl.permission_type == AclPermission.DENY and direct:
            return Decision(False, "This rule denies it. A DENY wins over every ALLOW.", named(acl))
        if acl.permission_type == AclPermission.ALLOW and allow is None and (direct or acl.operation in implied_by):
            allow = acl
    if allow is not None:
        rule = named(allow)
        direct = allow.operation in (operation, AclOperation.ALL)
        implied = "" if direct else f" {rule.operation} includes {operation.name.lower()}."
        return Decision(True, f"This rule allows it.{implied}", rule)
    if not matching and config.allow_without_acl:
        return Decision(True, "No rule names the resource, and allow.everyone.if.no.acl.found is true.")
    known = "" if config.enabled is not None else " Super users are not known: the brokers' configs may not be read."
    return Decision(False, f"No rule allows it.{known}")


def _covers(acl: Acl, name: str) -> bool:
    if acl.pattern_type == PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, WILDCARD)


def expire_token_by_id(client: Client, token_id: str) -> None:
    """Expire a token; its HMAC never leaves the console's process."""
    token = next((entry for entry in list_tokens(client) if entry.token_id == token_id), None)
    if token is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, f"token {token_id}")
    expire_token(client, token.hmac)
