"""A connection's session, and one request in progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.cluster.security.acls import CLUSTER_RESOURCE_NAME, AclOperation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.authorizer import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.broker import Broker
    from ottla.security.sasl.conversation import Conversation

ANONYMOUS = "User:ANONYMOUS"
REFUSALS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


LARGE_FRAME = 1 << 20
"""Requests above this size get a separate receive buffer."""


class Disconnect(Exception):  # noqa: N818 - a signal, not an error
    """Raised to close the connection instead of responding."""


@dataclass(slots=True, eq=False)
class Session:
    """State of one connection: client, principal, authentication."""

    id: int
    listener: str
    host: str
    port: int
    principal: str = ANONYMOUS
    authenticated: bool = True
    client_id: str | None = None
    software_name: str = "unknown"
    software_version: str = "unknown"
    conversation: Conversation | None = None
    """The SASL exchange; None on listeners without SASL."""
    by_delegation_token: bool = False
    internal: bool = False
    """Set for a connection from within this process, which is authorized for everything."""
    closing: bool = False
    """Set when the connection accepts no further requests and closes after its last response."""
    mute: Callable[[float], None] = lambda seconds: None
    """Take no requests for some seconds, after the responses are sent (KIP-219)."""
    close: Callable[[str], None] = lambda reason: None
    """Close the connection and log the reason."""

    def authenticated_by(self, conversation: Conversation) -> None:
        """Take the principal of a completed SASL exchange."""
        result = conversation.result
        assert result is not None
        self.principal = result.principal
        self.by_delegation_token = result.by_delegation_token
        self.authenticated = True


@dataclass(slots=True, eq=False)
class Call:
    """One request in progress: broker, session, API and version. Kafka's RequestContext."""

    broker: Broker
    session: Session
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    size: int = 0
    """Size of the request in bytes."""
    route: Any = None
    """The dispatcher's route of the request."""
    began: float = 0.0
    large_response: bool = False
    """Set by a handler whose response is large: it is encoded in a worker."""

    @property
    def owns_frame(self) -> bool:
        """Return whether the request's buffer stays valid after the handler returns: a large frame has its own."""
        return self.size > LARGE_FRAME

    def check_time(self, timeout_ms: int) -> None:
        """Raise REQUEST_TIMED_OUT for a deadline that has passed, as Kafka's controller does."""
        if timeout_ms <= 0:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    # Authorization. Without an authorizer everything is allowed.

    def may(self, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        """Return whether the principal may perform an operation on a resource."""
        authorizer = self.broker.runtime.authorizer
        if authorizer is None or self.session.internal:
            return True
        session = self.session
        return authorizer.allowed(session.principal, session.host, operation, resource, name)

    def may_topic(self, operation: AclOperation, topic: str) -> bool:
        """Return whether the principal may perform an operation on a topic, which need not exist."""
        return self.may(operation, ResourceType.TOPIC, topic)

    def may_cluster(self, operation: AclOperation) -> bool:
        """Return whether the principal may perform an operation on the cluster."""
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)

    def may_any(self, operation: AclOperation, resource: ResourceType) -> bool:
        """Return whether the principal may perform an operation on any resource of a type."""
        authorizer = self.broker.runtime.authorizer
        if authorizer is None or self.session.internal:
            return True
        return authorizer.allowed_on_any(self.session.principal, self.session.host, operation, resource)

    def require(self, operation: AclOperation, resource: ResourceType, name: str) -> None:
        """Raise the resource type's authorization error if the operation is not allowed, for missing resources too."""
        if not self.may(operation, resource, name):
            # Kafka has a message for this error only.
            message = "Cluster authorization failed." if resource is ResourceType.CLUSTER else None
            raise KafkaError(REFUSALS[resource], message)

    def authorized_operations(self, resource: ResourceType, name: str) -> int:
        """Return the allowed operations on a resource as the bit field of KIP-430."""
        authorizer = self.broker.runtime.authorizer
        if authorizer is None:
            return sum(1 << operation for operation in OPERATIONS[resource])
        return authorizer.operations(self.session.principal, self.session.host, resource, name)

    def cluster_operations(self) -> int:
        """Return the allowed operations on the cluster; none without DESCRIBE."""
        if not self.may_cluster(AclOperation.DESCRIBE):
            return 0
        return self.authorized_operations(ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)
