"""ACLs in the metadata: create, describe and delete entries (Kafka's AclControlManager). `security` evaluates them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Self

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas.metadata import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from ottla.protocol.schema import Uuid

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ottla.cluster.image import ClusterImage
    from ottla.protocol.messages.k29_describe_acls import DescribeAclsRequest
    from ottla.protocol.messages.k30_create_acls import AclCreation
    from ottla.protocol.messages.k31_delete_acls import DeleteAclsFilter
    from ottla.protocol.schema import Message
    from ottla.world.random import Random


@dataclass(frozen=True, slots=True)
class Acl:
    """An access control entry, with Kafka's numbers (`ResourceType`, `PatternType`, `AclOperation`, ...)."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    @classmethod
    def from_record(cls, record: AccessControlEntryRecord) -> Acl:
        """Create the entry from its record."""
        return cls(
            record.resource_type,
            record.resource_name,
            record.pattern_type,
            record.principal,
            record.host,
            record.operation,
            record.permission_type,
        )

    def to_record(self, acl_id: Uuid) -> AccessControlEntryRecord:
        """Return the record that adds this entry."""
        return AccessControlEntryRecord(
            id=acl_id,
            resource_type=self.resource_type,
            resource_name=self.resource_name,
            pattern_type=self.pattern_type,
            principal=self.principal,
            host=self.host,
            operation=self.operation,
            permission_type=self.permission_type,
        )


CLUSTER_RESOURCE_NAME: Final = "kafka-cluster"
WILDCARD: Final = "*"
MAX_DELETED: Final = 10_000


class _Code(IntEnum):
    """An enumeration of the protocol; unknown numbers become UNKNOWN (0)."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        return cls(0)


class ResourceType(_Code):
    """Type of an ACL's resource."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Code):
    """How a resource name in an ACL or a filter matches."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_Code):
    """Operation that an ACL allows or denies."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(_Code):
    """Whether an ACL allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


def _refuse(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def validate_new_acl(acl: Acl) -> None:
    """Raise for an entry that is a filter or lacks a name."""
    resource, pattern = ResourceType(acl.resource_type), PatternType(acl.pattern_type)
    operation, permission = AclOperation(acl.operation), AclPermission(acl.permission_type)
    if resource is ResourceType.CLUSTER and acl.resource_name != CLUSTER_RESOURCE_NAME:
        raise _refuse(f"The only valid name for the CLUSTER resource is {CLUSTER_RESOURCE_NAME}")
    if not acl.resource_name:
        raise _refuse("Invalid empty resource name")
    if resource in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise _refuse(f"Invalid resourceType {resource.name}")
    if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _refuse(f"Invalid patternType {pattern.name}")
    if operation in (AclOperation.UNKNOWN, AclOperation.ANY):
        raise _refuse(f"Invalid operation {operation.name}")
    if permission not in (AclPermission.DENY, AclPermission.ALLOW):
        raise _refuse(f"Invalid permissionType {permission.name}")
    if ":" not in acl.principal:
        raise _refuse(
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type "
            "from the principal name)"
        )


def create_acls(
    image: ClusterImage, creations: Sequence[AclCreation], *, random: Random
) -> tuple[list[KafkaError | None], list[Message]]:
    """Add entries; an existing one succeeds without a record. Return one result per entry."""
    existing = set(image.acls.values())
    results: list[KafkaError | None] = []
    records: list[Message] = []
    for creation in creations:
        acl = Acl(
            creation.resource_type,
            creation.resource_name,
            creation.resource_pattern_type,
            creation.principal,
            creation.host,
            creation.operation,
            creation.permission_type,
        )
        try:
            validate_new_acl(acl)
        except KafkaError as error:
            results.append(error)
            continue
        if acl not in existing:
            existing.add(acl)
            records.append(acl.to_record(Uuid(random.uuid())))
        results.append(None)
    return results, records


def delete_acls(
    image: ClusterImage, filters: Sequence[DeleteAclsFilter]
) -> tuple[list[list[Acl] | KafkaError], list[Message]]:
    """Delete matching entries; return for each filter what it deleted, or its error."""
    results: list[list[Acl] | KafkaError] = []
    removed: dict[Uuid, Message] = {}
    for acl_filter in filters:
        try:
            validate_filter(acl_filter)
        except KafkaError as error:
            results.append(error)
            continue
        deleted: list[Acl] = []
        for acl_id, acl in matching_acls(image, acl_filter):
            deleted.append(acl)
            removed[acl_id] = RemoveAccessControlEntryRecord(id=acl_id)
            if len(removed) > MAX_DELETED:
                raise _refuse(f"Cannot remove more than {MAX_DELETED} acls in a single delete operation.")
        results.append(deleted)
    return results, list(removed.values())


def validate_filter(acl_filter: DeleteAclsFilter | DescribeAclsRequest) -> None:
    """Raise for a filter with UNKNOWN elements."""
    if not ResourceType(acl_filter.resource_type_filter) or not PatternType(acl_filter.pattern_type_filter):
        raise _refuse("Unknown patternFilter.")
    if not AclOperation(acl_filter.operation) or not AclPermission(acl_filter.permission_type):
        raise _refuse("Unknown entryFilter.")


def matching_acls(
    image: ClusterImage, acl_filter: DeleteAclsFilter | DescribeAclsRequest
) -> Iterator[tuple[Uuid, Acl]]:
    """Yield the entries that a filter matches, with their ids."""
    for acl_id, acl in image.acls.items():
        if (
            acl_filter.resource_type_filter in (ResourceType.ANY, acl.resource_type)
            and _pattern_matches(acl_filter.pattern_type_filter, acl_filter.resource_name_filter, acl)
            and acl_filter.principal_filter in (None, acl.principal)
            and acl_filter.host_filter in (None, acl.host)
            and acl_filter.operation in (AclOperation.ANY, acl.operation)
            and acl_filter.permission_type in (AclPermission.ANY, acl.permission_type)
        ):
            yield acl_id, acl


def _pattern_matches(kind: int, name: str | None, acl: Acl) -> bool:
    if kind not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
        return False
    if name is None:
        return True
    if kind != PatternType.MATCH:
        return name == acl.resource_name
    if acl.pattern_type == PatternType.LITERAL:
        return acl.resource_name in (name, WILDCARD)
    return name.startswith(acl.resource_name)
