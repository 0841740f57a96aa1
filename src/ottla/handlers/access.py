"""The ACL operations that each API requires: declared beside its versions, checked before or by the handler.

Dispatch checks a requirement of the whole request; its failure is an error of the request. Where each topic or group
has its own result, the handler calls `call.may` for each, and the recorded matrix of Kafka's responses
(tests/security/matrix.py) checks the declaration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.cluster.security.acls import CLUSTER_RESOURCE_NAME, AclOperation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.session import Call


@dataclass(frozen=True, slots=True)
class Need:
    """One operation on one resource type."""

    operation: AclOperation
    resource: ResourceType

    def __str__(self) -> str:
        return f"{self.operation.name} {self.resource.name}"


@dataclass(frozen=True, slots=True)
class Access:
    """The requirements of one API, and the check of the whole request if there is one."""

    needs: tuple[Need, ...] = ()
    check: Callable[[Call, Any], None] | None = None

    def __str__(self) -> str:
        return ", ".join(str(need) for need in self.needs) or "nothing"


EVERYBODY = Access()
"""No requirement: APIs that clients use before authentication, or that concern only the client itself."""


def cluster(operation: AclOperation) -> Access:
    """Require an operation on the cluster."""

    def check(call: Call, _: object) -> None:
        call.require(operation, ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)

    return Access((Need(operation, ResourceType.CLUSTER),), check)


def group(operation: AclOperation, *others: Need) -> Access:
    """Require an operation on the group of the request."""

    def check(call: Call, request: Any) -> None:
        call.require(operation, ResourceType.GROUP, request.group_id)

    return Access((Need(operation, ResourceType.GROUP), *others), check)


def transactional_id(operation: AclOperation, *others: Need) -> Access:
    """Require an operation on the transactional id of the request."""

    def check(call: Call, request: Any) -> None:
        call.require(operation, ResourceType.TRANSACTIONAL_ID, request.transactional_id)

    return Access((Need(operation, ResourceType.TRANSACTIONAL_ID), *others), check)


def per_resource(*needs: Need) -> Access:
    """Declare requirements that the handler checks for each resource."""
    assert needs
    return Access(needs)


def on_topic(operation: AclOperation) -> Need:
    """Return an operation on topics."""
    return Need(operation, ResourceType.TOPIC)


def on_group(operation: AclOperation) -> Need:
    """Return an operation on groups."""
    return Need(operation, ResourceType.GROUP)


def on_cluster(operation: AclOperation) -> Need:
    """Return an operation on the cluster."""
    return Need(operation, ResourceType.CLUSTER)


def on_transactional_id(operation: AclOperation) -> Need:
    """Return an operation on transactional ids."""
    return Need(operation, ResourceType.TRANSACTIONAL_ID)
