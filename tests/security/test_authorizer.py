"""Decisions of the authorizer, case by case, as Kafka's StandardAuthorizer makes them."""

from __future__ import annotations

import pytest

from ottla.cluster.security.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType
from ottla.security.authorizer import OPERATIONS, Authorizer, parse_super_users

ALICE, BOB = "User:alice", "User:bob"
HOST = "10.0.0.1"
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, DESCRIBE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALL


def allow(
    operation: AclOperation,
    name: str,
    *,
    principal: str = ALICE,
    host: str = "*",
    prefixed: bool = False,
    resource: ResourceType = TOPIC,
    permission: AclPermission = AclPermission.ALLOW,
) -> Acl:
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    return Acl(resource, name, pattern, principal, host, operation, permission)


def deny(operation: AclOperation, name: str, **options: object) -> Acl:
    return allow(operation, name, permission=AclPermission.DENY, **options)  # type: ignore[arg-type]


def may(
    acls: list[Acl], operation: AclOperation, name: str, *, principal: str = ALICE, host: str = HOST, **options: object
) -> bool:
    authorizer = Authorizer(lambda: acls, **options)  # type: ignore[arg-type]
    return authorizer.allowed(principal, host, operation, TOPIC, name)


def test_without_entries_everything_is_denied() -> None:
    assert not may([], READ, "orders")


def test_entry_allows_only_its_operation_and_resource() -> None:
    acls = [allow(READ, "orders")]
    assert may(acls, READ, "orders")
    assert not may(acls, WRITE, "orders")
    assert not may(acls, READ, "orders2")
    assert not may(acls, READ, "orders", principal=BOB)


def test_prefixed_entry_allows_names_with_the_prefix() -> None:
    acls = [allow(READ, "ord", prefixed=True)]
    assert may(acls, READ, "ord")
    assert may(acls, READ, "orders")
    assert not may(acls, READ, "or")
    assert not may(acls, READ, "xord")


def test_wildcard_matches_every_name_principal_and_host() -> None:
    assert may([allow(READ, "*")], READ, "orders")
    assert may([allow(READ, "orders", principal="User:*")], READ, "orders", principal=BOB)
    assert may([allow(READ, "orders", host=HOST)], READ, "orders")
    assert not may([allow(READ, "orders", host="10.0.0.2")], READ, "orders")
    assert not may([allow(READ, "*", prefixed=True)], READ, "orders"), "a prefix of a star is a star"


@pytest.mark.parametrize("entries", [[0, 1], [1, 0]])
@pytest.mark.parametrize(
    "denial",
    [
        deny(READ, "orders"),
        deny(ALL, "orders"),
        deny(READ, "or", prefixed=True),
        deny(READ, "*"),
        deny(READ, "orders", principal="User:*"),
        deny(READ, "orders", host=HOST),
    ],
)
def test_deny_wins_over_allow_in_any_order(denial: Acl, entries: list[int]) -> None:
    both = [allow(ALL, "orders"), denial]
    assert not may([both[entry] for entry in entries], READ, "orders")


def test_describe_is_implied_by_read_write_delete_alter() -> None:
    for operation in (READ, WRITE, AclOperation.DELETE, AclOperation.ALTER, ALL):
        assert may([allow(operation, "orders")], DESCRIBE, "orders")
    assert not may([allow(AclOperation.CREATE, "orders")], DESCRIBE, "orders")
    assert may([allow(AclOperation.ALTER_CONFIGS, "orders")], AclOperation.DESCRIBE_CONFIGS, "orders")
    assert not may([allow(READ, "orders")], AclOperation.DESCRIBE_CONFIGS, "orders")


def test_denying_read_does_not_deny_describe() -> None:
    assert may([deny(READ, "orders"), allow(WRITE, "orders")], DESCRIBE, "orders")
    assert not may([deny(DESCRIBE, "orders"), allow(WRITE, "orders")], DESCRIBE, "orders")


def test_super_user_is_allowed_despite_deny() -> None:
    assert may([deny(ALL, "*")], READ, "orders", super_users=[ALICE])
    assert parse_super_users("User:alice;User:CN=bob,O=x; ") == [ALICE, "User:CN=bob,O=x"]
    with pytest.raises(ValueError, match=r"super\.users"):
        parse_super_users("alice")


def test_allow_everyone_if_no_acl_found() -> None:
    acls = [allow(READ, "orders", principal=BOB), allow(READ, "pay", principal=BOB, prefixed=True)]
    assert may(acls, WRITE, "other", allow_everyone_if_no_acl=True)
    assert not may(acls, WRITE, "orders", allow_everyone_if_no_acl=True)
    assert not may(acls, WRITE, "payments", allow_everyone_if_no_acl=True)


def test_decisions_follow_changed_entries() -> None:
    acls: list[Acl] = []
    authorizer = Authorizer(lambda: acls)
    assert not authorizer.allowed(ALICE, HOST, READ, TOPIC, "orders")
    acls.append(allow(READ, "orders"))
    assert not authorizer.allowed(ALICE, HOST, READ, TOPIC, "orders"), "decisions are remembered"
    authorizer.acls_changed()
    assert authorizer.allowed(ALICE, HOST, READ, TOPIC, "orders")
    acls.append(deny(ALL, "*"))
    authorizer.acls_changed()
    assert not authorizer.allowed(ALICE, HOST, READ, TOPIC, "orders")


@pytest.mark.parametrize(
    ("acls", "expected"),
    [
        ([], False),
        ([allow(WRITE, "orders")], True),
        ([allow(READ, "orders")], False),
        ([allow(WRITE, "orders", principal=BOB)], False),
        ([allow(WRITE, "*"), deny(WRITE, "orders")], True),
        ([allow(WRITE, "*"), deny(WRITE, "*")], False),
        ([allow(WRITE, "orders"), deny(WRITE, "orders")], False),
        ([allow(WRITE, "orders"), deny(WRITE, "or", prefixed=True)], False),
        ([allow(WRITE, "or", prefixed=True), deny(WRITE, "orders")], True),
        ([allow(WRITE, "or", prefixed=True), deny(WRITE, "o", prefixed=True)], False),
        ([allow(WRITE, "or", prefixed=True), deny(WRITE, "ord", prefixed=True)], True),
        ([allow(ALL, "orders")], True),
    ],
)
def test_operation_allowed_on_any_topic(acls: list[Acl], expected: bool) -> None:
    assert Authorizer(lambda: acls).allowed_on_any(ALICE, HOST, WRITE, TOPIC) is expected


def test_authorized_operations_are_a_bit_field() -> None:
    authorizer = Authorizer(lambda: [allow(READ, "orders"), allow(ALL, "*", resource=GROUP)], super_users=[BOB])
    assert authorizer.operations(ALICE, HOST, TOPIC, "orders") == (1 << READ) | (1 << DESCRIBE)
    assert authorizer.operations(ALICE, HOST, GROUP, "g") == sum(1 << entry for entry in OPERATIONS[GROUP])
    assert authorizer.operations(BOB, HOST, CLUSTER, "kafka-cluster") == sum(
        1 << entry for entry in OPERATIONS[CLUSTER]
    )
    assert authorizer.operations(ALICE, HOST, CLUSTER, "kafka-cluster") == 0


def test_cached_decisions_are_bounded() -> None:
    authorizer = Authorizer(list)
    for number in range(120_000):
        authorizer.allowed(ALICE, HOST, READ, TOPIC, str(number))
    assert len(authorizer._decisions) <= 50_000
