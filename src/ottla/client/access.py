"""Lists and changes ACLs, SCRAM users and client quotas. Errors are KafkaErrors."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.cluster.security.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages import k31_delete_acls, k48_describe_client_quotas, k49_alter_client_quotas
from ottla.protocol.messages.k29_describe_acls import DescribeAclsRequest, DescribeAclsResponse
from ottla.protocol.messages.k30_create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.k50_describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from ottla.protocol.messages.k51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.security.sasl.scram import HASHES, MECHANISM_IDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.client.client import Client

SALT_BYTES = 20
MECHANISM_NAMES = {number: name for name, number in MECHANISM_IDS.items()}
Entity = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects ACLs; a field that is not given matches every value."""

    resource_type: int = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = AclOperation.ANY
    permission: int = AclPermission.ANY


def list_acls(client: Client, entry_filter: AclFilter) -> list[Acl]:
    """Return the ACLs that match."""
    response = client.to_any(
        DescribeAclsRequest(
            resource_type_filter=entry_filter.resource_type,
            resource_name_filter=entry_filter.resource_name,
            pattern_type_filter=entry_filter.pattern_type,
            principal_filter=entry_filter.principal,
            host_filter=entry_filter.host,
            operation=entry_filter.operation,
            permission_type=entry_filter.permission,
        ),
        DescribeAclsResponse,
    )
    _check(response.error_code, response.error_message)
    return [
        Acl(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for resource in response.resources
        for acl in resource.acls
    ]


def create_acls(client: Client, acls: Sequence[Acl]) -> None:
    """Create ACLs; raise the first error."""
    response = client.to_controller(
        CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=acl.resource_type,
                    resource_name=acl.resource_name,
                    resource_pattern_type=acl.pattern_type,
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission_type,
                )
                for acl in acls
            ]
        ),
        CreateAclsResponse,
    )
    for result in response.results:
        _check(result.error_code, result.error_message)


def delete_acls(client: Client, entry_filter: AclFilter) -> list[Acl]:
    """Delete the ACLs that match, and return them."""
    response = client.to_controller(
        k31_delete_acls.DeleteAclsRequest(
            filters=[
                k31_delete_acls.DeleteAclsFilter(
                    resource_type_filter=entry_filter.resource_type,
                    resource_name_filter=entry_filter.resource_name,
                    pattern_type_filter=entry_filter.pattern_type,
                    principal_filter=entry_filter.principal,
                    host_filter=entry_filter.host,
                    operation=entry_filter.operation,
                    permission_type=entry_filter.permission,
                )
            ]
        ),
        k31_delete_acls.DeleteAclsResponse,
    )
    removed = []
    for result in response.filter_results:
        _check(result.error_code, result.error_message)
        for acl in result.matching_acls:
            _check(acl.error_code, acl.error_message)
            removed.append(
                Acl(
                    acl.resource_type,
                    acl.resource_name,
                    acl.pattern_type,
                    acl.principal,
                    acl.host,
                    acl.operation,
                    acl.permission_type,
                )
            )
    return removed


def list_users(client: Client, names: Sequence[str] = ()) -> dict[str, dict[str, int]]:
    """Return the iterations of each SCRAM mechanism of each user; raise KafkaError for a named user without any."""
    response = client.to_any(
        DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in names]),
        DescribeUserScramCredentialsResponse,
    )
    _check(response.error_code, response.error_message)
    users: dict[str, dict[str, int]] = {}
    for result in response.results:
        _check(result.error_code, result.error_message)
        users[result.user] = {
            MECHANISM_NAMES.get(info.mechanism, str(info.mechanism)): info.iterations
            for info in result.credential_infos
        }
    return users


def set_password(client: Client, name: str, password: str, mechanism: str, iterations: int) -> None:
    """Set a user's SCRAM credential; only the salted password is sent."""
    salt = os.urandom(SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
    _alter_users(
        client,
        AlterUserScramCredentialsRequest(
            upsertions=[
                ScramCredentialUpsertion(
                    name=name,
                    mechanism=MECHANISM_IDS[mechanism],
                    iterations=iterations,
                    salt=salt,
                    salted_password=salted,
                )
            ]
        ),
    )


def delete_user(client: Client, name: str, mechanisms: Sequence[str]) -> None:
    """Delete a user's credentials, with one request per mechanism: Kafka refuses two changes of a user in one."""
    for mechanism in mechanisms:
        deletion = ScramCredentialDeletion(name=name, mechanism=MECHANISM_IDS[mechanism])
        _alter_users(client, AlterUserScramCredentialsRequest(deletions=[deletion]))


def _alter_users(client: Client, request: AlterUserScramCredentialsRequest) -> None:
    response = client.to_controller(request, AlterUserScramCredentialsResponse)
    for result in response.results:
        _check(result.error_code, result.error_message)


def list_quotas(client: Client, entity: Mapping[str, str | None] | None = None) -> dict[Entity, dict[str, float]]:
    """Return all quotas, or those of one entity; the name None means Kafka's default entity."""
    components = [
        k48_describe_client_quotas.ComponentData(entity_type=kind, match_type=1 if name is None else 0, match=name)
        for kind, name in (entity or {}).items()
    ]
    response = client.to_any(
        k48_describe_client_quotas.DescribeClientQuotasRequest(components=components, strict=bool(entity)),
        k48_describe_client_quotas.DescribeClientQuotasResponse,
    )
    _check(response.error_code, response.error_message)
    return {
        tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)): {
            quota.key: quota.value for quota in entry.values
        }
        for entry in response.entries or []
    }


def alter_quotas(client: Client, entity: Mapping[str, str | None], values: Mapping[str, float | None]) -> None:
    """Set quotas of one entity; the value None removes a quota."""
    response = client.to_controller(
        k49_alter_client_quotas.AlterClientQuotasRequest(
            entries=[
                k49_alter_client_quotas.RequestEntryData(
                    entity=[
                        k49_alter_client_quotas.EntityData(entity_type=kind, entity_name=name)
                        for kind, name in entity.items()
                    ],
                    ops=[
                        k49_alter_client_quotas.OpData(key=key, value=value or 0.0, remove=value is None)
                        for key, value in values.items()
                    ],
                )
            ]
        ),
        k49_alter_client_quotas.AlterClientQuotasResponse,
    )
    for entry in response.entries:
        _check(entry.error_code, entry.error_message)


def _check(code: int, message: str | None) -> None:
    if code:
        raise KafkaError(code, message)
