"""ACL decisions, as Kafka's StandardAuthorizer makes them.

DENY wins over ALLOW in any order of entries; super users are allowed everything. Entries come from the metadata image;
they are indexed when they change, and decisions are cached until the next change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.cluster.security.acls import WILDCARD, AclOperation, AclPermission, PatternType, ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from ottla.cluster.security.acls import Acl
    from ottla.cluster.server_config import ServerConfig

STANDARD_AUTHORIZER: Final = "StandardAuthorizer"
ANYBODY: Final = "User:*"
MAX_CACHED_DECISIONS: Final = 50_000
"""Bound of the cache of decisions: names come from clients."""

IMPLIED_BY: Final = {
    AclOperation.DESCRIBE: frozenset({AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}
"""ALLOW of one of these also allows the operation; DENY of one of them does not deny it."""

OPERATIONS: Final = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""The operations of each resource type."""


@dataclass(slots=True)
class _Entries:
    """The entries of one resource type, indexed by name and by length of prefix."""

    literal: dict[str, list[Acl]] = field(default_factory=dict)
    prefixed: dict[str, list[Acl]] = field(default_factory=dict)
    prefix_lengths: list[int] = field(default_factory=list)

    def matching(self, name: str) -> Iterator[Acl]:
        """Yield the entries whose pattern matches a name."""
        yield from self.literal.get(name, ())
        if name != WILDCARD:
            yield from self.literal.get(WILDCARD, ())
        for length in self.prefix_lengths:
            if length > len(name):
                break
            yield from self.prefixed.get(name[:length], ())


class Authorizer:
    """Decides whether a principal may perform an operation, from the ACLs of the metadata image."""

    def __init__(
        self,
        acls: Callable[[], Iterable[Acl]],
        *,
        super_users: Collection[str] = (),
        allow_everyone_if_no_acl: bool = False,
    ) -> None:
        self._acls = acls
        self._super_users = frozenset(super_users)
        self._allow_without_acl = allow_everyone_if_no_acl
        self._entries: dict[int, _Entries] | None = None
        self._decisions: dict[tuple[str, str, int, int, str], bool] = {}

    def acls_changed(self) -> None:
        """Drop the index and all cached decisions, because the image's ACLs changed."""
        self._entries = None
        self._decisions.clear()

    def allowed(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> bool:
        """Return whether a principal may perform an operation on a resource."""
        key = (principal, host, operation, resource_type, name)
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= MAX_CACHED_DECISIONS:
                self._decisions.clear()
            decision = self._decisions[key] = self._decide(*key)
        return decision

    def allowed_on_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Return whether a principal may perform an operation on any resource of a type (KIP-679)."""
        key = (principal, host, operation, resource_type, "")  # no resource has an empty name
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decisions[key] = self._decide_any(principal, host, operation, resource_type)
        return decision

    def operations(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        """Return the allowed operations on a resource as a bit field (KIP-430)."""
        return sum(
            1 << operation
            for operation in OPERATIONS[resource_type]
            if self.allowed(principal, host, operation, resource_type, name)
        )

    # Private parts

    def _decide(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> bool:
        if principal in self._super_users:
            return True
        implied_by = IMPLIED_BY.get(operation, frozenset())  # type: ignore[call-overload]
        any_entry = found_allow = False
        for acl in self._of_type(resource_type).matching(name):
            any_entry = True
            if acl.principal not in (principal, ANYBODY) or acl.host not in (host, WILDCARD):
                continue
            if acl.permission_type == AclPermission.DENY:
                if acl.operation in (operation, AclOperation.ALL):
                    return False
            elif acl.operation in (operation, AclOperation.ALL) or acl.operation in implied_by:
                found_allow = True
        return found_allow or (not any_entry and self._allow_without_acl)

    def _decide_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        # A name that no resource has: allowed to super users, and to all where there are no entries.
        if self._decide(principal, host, operation, resource_type, "hardcode"):
            return True
        allowed: list[tuple[int, str]] = []
        denied: set[tuple[int, str]] = set()
        entries = self._of_type(resource_type)
        for group in (*entries.literal.values(), *entries.prefixed.values()):
            for acl in group:
                if (
                    acl.principal not in (principal, ANYBODY)
                    or acl.host not in (host, WILDCARD)
                    or acl.operation not in (operation, AclOperation.ALL)
                ):
                    continue
                pattern = (acl.pattern_type, acl.resource_name)
                if acl.permission_type == AclPermission.ALLOW:
                    allowed.append(pattern)
                elif pattern == (PatternType.LITERAL, WILDCARD):
                    return False
                else:
                    denied.add(pattern)
        return any(not _dominated(kind, name, denied) for kind, name in allowed)

    def _of_type(self, resource_type: int) -> _Entries:
        if self._entries is None:
            self._entries = self._index()
        return self._entries.get(resource_type) or _NO_ENTRIES

    def _index(self) -> dict[int, _Entries]:
        entries_of: dict[int, _Entries] = {}
        for acl in self._acls():
            entries = entries_of.setdefault(acl.resource_type, _Entries())
            group = entries.prefixed if acl.pattern_type == PatternType.PREFIXED else entries.literal
            group.setdefault(acl.resource_name, []).append(acl)
        for entries in entries_of.values():
            entries.prefix_lengths = sorted({len(prefix) for prefix in entries.prefixed})
        return entries_of


_NO_ENTRIES: Final = _Entries()


def _dominated(kind: int, name: str, denied: set[tuple[int, str]]) -> bool:
    """Return whether another pattern denies everything that a pattern allows."""
    if (kind, name) == (PatternType.LITERAL, WILDCARD):
        return False
    if kind == PatternType.LITERAL and (PatternType.LITERAL, name) in denied:
        return True
    return any((PatternType.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))


def parse_super_users(text: str) -> list[str]:
    """Parse `super.users`: principals separated by semicolons, because distinguished names contain commas."""
    principals = []
    for part in text.split(";"):
        principal = part.strip()
        if not principal:
            continue
        if ":" not in principal:
            raise ValueError(f"super.users: {principal!r} is no principal; write User:name, several with ; between")
        principals.append(principal)
    return principals


def authorizer_from_config(config: ServerConfig, acls: Callable[[], Collection[Acl]]) -> Authorizer | None:
    """Return the authorizer that `authorizer.class.name` selects, or None; raise ValueError for an unknown class."""
    name = config.value("authorizer.class.name")
    if not name:
        return None
    if not isinstance(name, str) or name.rpartition(".")[2] != STANDARD_AUTHORIZER:
        raise ValueError(
            f"authorizer.class.name: {name} is not supported; use "
            f"org.apache.kafka.metadata.authorizer.{STANDARD_AUTHORIZER}, or leave it empty for no authorizer"
        )
    return Authorizer(
        acls,
        super_users=parse_super_users(config.values.get("super.users", "")),
        allow_everyone_if_no_acl=config.values.get("allow.everyone.if.no.acl.found", "").strip().lower() == "true",
    )
