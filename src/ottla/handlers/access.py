"""What a request needs to be allowed: declared beside a handler's versions, checked before or by the handler.

A need of the whole request is checked by the dispatcher, and the answer is the request's error. Where each topic or
group has an answer of its own, the handler asks `call.may` for each; the declaration then says what it asks for, and
the matrix of recorded answers holds it to that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.cluster.acls import CLUSTER_RESOURCE_NAME, AclOperation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.session import Call


@dataclass(frozen=True, slots=True)
class Need:
    """One operation on one kind of resource."""

    operation: AclOperation
    resource: ResourceType

    def __str__(self) -> str:
        return f"{self.operation.name} {self.resource.name}"


@dataclass(frozen=True, slots=True)
class Access:
    """The needs of one API, and the check of the whole request where there is one."""

    needs: tuple[Need, ...] = ()
    check: Callable[[Call, Any], None] | None = None

    def __str__(self) -> str:
        return ", ".join(str(need) for need in self.needs) or "nothing"


EVERYBODY = Access()
"""Needs nothing: what a client must be able to ask before anybody knows who it is, or what tells only itself."""


def cluster(operation: AclOperation) -> Access:
    """The request needs an operation on the cluster."""

    def check(call: Call, _: object) -> None:
        call.require(operation, ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)

    return Access((Need(operation, ResourceType.CLUSTER),), check)


def group(operation: AclOperation, *others: Need) -> Access:
    """The request needs an operation on the group that it names."""

    def check(call: Call, request: Any) -> None:
        call.require(operation, ResourceType.GROUP, request.group_id)

    return Access((Need(operation, ResourceType.GROUP), *others), check)


def transactional_id(operation: AclOperation, *others: Need) -> Access:
    """The request needs an operation on the transactional id that it names."""

    def check(call: Call, request: Any) -> None:
        call.require(operation, ResourceType.TRANSACTIONAL_ID, request.transactional_id)

    return Access((Need(operation, ResourceType.TRANSACTIONAL_ID), *others), check)


def each(*needs: Need) -> Access:
    """The handler asks for each resource of the request."""
    assert needs
    return Access(needs)


def on_topic(operation: AclOperation) -> Need:
    """An operation on topics."""
    return Need(operation, ResourceType.TOPIC)


def on_group(operation: AclOperation) -> Need:
    """An operation on groups."""
    return Need(operation, ResourceType.GROUP)


def on_cluster(operation: AclOperation) -> Need:
    """An operation on the cluster."""
    return Need(operation, ResourceType.CLUSTER)


def on_transactional_id(operation: AclOperation) -> Need:
    """An operation on transactional ids."""
    return Need(operation, ResourceType.TRANSACTIONAL_ID)
