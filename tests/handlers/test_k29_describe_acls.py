"""DescribeAcls (29), CreateAcls (30) and DeleteAcls (31): entries, filters, and errors of single entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.cluster.security.acls import AclOperation, AclPermission, PatternType, ResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k29_describe_acls import DescribeAclsRequest, DescribeAclsResponse
from ottla.protocol.messages.k30_create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.k31_delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from tests.conversations.local_talk import LocalTalk

if TYPE_CHECKING:
    from collections.abc import Iterator

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture
def local() -> Iterator[LocalTalk]:
    talk = LocalTalk(AUTHORIZER)
    yield talk
    talk.close()


def create(local: LocalTalk, topic: str = "orders", principal: str = "User:alice") -> ErrorCode:
    creation = AclCreation(
        resource_type=ResourceType.TOPIC,
        resource_name=topic,
        resource_pattern_type=PatternType.LITERAL,
        principal=principal,
        host="*",
        operation=AclOperation.READ,
        permission_type=AclPermission.ALLOW,
    )
    response = local.quietly(CreateAclsRequest(creations=[creation]), CreateAclsResponse)
    return ErrorCode(response.results[0].error_code)


def describe(local: LocalTalk, version: int = 3, name: str | None = None) -> list[tuple[str, str]]:
    request = DescribeAclsRequest(
        resource_type_filter=ResourceType.ANY,
        resource_name_filter=name,
        pattern_type_filter=PatternType.ANY,
        principal_filter=None,
        host_filter=None,
        operation=AclOperation.ANY,
        permission_type=AclPermission.ANY,
    )
    response = local.quietly(request, DescribeAclsResponse, version=version)
    assert response.error_code == ErrorCode.NONE
    return [(resource.resource_name, acl.principal) for resource in response.resources for acl in resource.acls]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_created_entries_are_described(local: LocalTalk, version: int) -> None:
    assert [create(local), create(local, "payments"), create(local)] == [ErrorCode.NONE] * 3
    assert sorted(describe(local, version)) == [("orders", "User:alice"), ("payments", "User:alice")]
    assert describe(local, version, "orders") == [("orders", "User:alice")]
    assert describe(local, version, "nothing") == []


def test_entries_survive_a_restart(local: LocalTalk) -> None:
    create(local)
    local.restart()
    assert describe(local) == [("orders", "User:alice")]


@pytest.mark.parametrize(("topic", "principal"), [("", "User:alice"), ("orders", "alice")])
def test_invalid_entry_fails_alone(local: LocalTalk, topic: str, principal: str) -> None:
    assert create(local, topic, principal) is ErrorCode.INVALID_REQUEST
    assert describe(local) == []


def test_delete_returns_the_matching_entries_of_each_filter(local: LocalTalk) -> None:
    create(local)
    create(local, "payments")
    filters = [
        DeleteAclsFilter(
            resource_type_filter=ResourceType.TOPIC,
            resource_name_filter=name,
            pattern_type_filter=PatternType.LITERAL,
            principal_filter=None,
            host_filter=None,
            operation=AclOperation.ANY,
            permission_type=AclPermission.ANY,
        )
        for name in ("orders", "nothing")
    ]
    response = local.quietly(DeleteAclsRequest(filters=filters), DeleteAclsResponse)
    matches = [[acl.resource_name for acl in result.matching_acls] for result in response.filter_results]
    assert matches == [["orders"], []]
    assert describe(local) == [("payments", "User:alice")]


def test_without_an_authorizer_security_is_disabled() -> None:
    local = LocalTalk({})
    assert create(local) is ErrorCode.SECURITY_DISABLED
    request = DescribeAclsRequest(resource_type_filter=ResourceType.ANY, operation=AclOperation.ANY, permission_type=1)
    assert local.quietly(request, DescribeAclsResponse).error_code == ErrorCode.SECURITY_DISABLED
    local.close()
