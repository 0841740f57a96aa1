"""Who is on the other end of a connection, and one request of theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.cluster.acls import CLUSTER_RESOURCE_NAME, AclOperation, ResourceType
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
"""Bytes of a request above which a connection receives it into a buffer of its own."""


class Disconnect(Exception):  # noqa: N818 - it is what happens, not what went wrong
    """Close the connection instead of answering."""


@dataclass(slots=True, eq=False)
class Session:
    """What the broker remembers of a connection."""

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
    """How it authenticates; None where nobody has to."""
    by_delegation_token: bool = False
    closing: bool = False
    """Nothing more is taken from it, and it is closed when it has its answers."""
    mute: Callable[[float], None] = lambda seconds: None
    """Take nothing from it for some seconds, once what is known is sent (KIP-219)."""
    close: Callable[[str], None] = lambda reason: None
    """Close the connection at once and log the reason."""

    def authenticated_by(self, conversation: Conversation) -> None:
        """The exchange is over and somebody is known."""
        result = conversation.result
        assert result is not None
        self.principal = result.principal
        self.by_delegation_token = result.by_delegation_token
        self.authenticated = True


@dataclass(slots=True, eq=False)
class Call:
    """One request in progress: which broker, who asks, at which version."""

    broker: Broker
    session: Session
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    size: int = 0
    """Bytes of the request."""
    route: Any = None
    """The dispatcher's own note of where the request goes."""
    began: float = 0.0
    large_response: bool = False
    """Set by a handler whose response is large: it is encoded in a worker."""

    @property
    def owns_frame(self) -> bool:
        """Whether the request's buffer stays as it is after the handler returned: a large frame has one of its own."""
        return self.size > LARGE_FRAME

    def check_time(self, timeout_ms: int) -> None:
        """Refuse what the controller has no time to do; Kafka's has none for a deadline that is over."""
        if timeout_ms <= 0:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    # What the caller may do. Without an authorizer everybody may do everything.

    def may(self, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        """Whether the caller may do something to a resource."""
        authorizer = self.broker.cluster.authorizer
        if authorizer is None:
            return True
        session = self.session
        return authorizer.allowed(session.principal, session.host, operation, resource, name)

    def may_topic(self, operation: AclOperation, topic: str) -> bool:
        """Whether the caller may do something to a topic, existing or not."""
        return self.may(operation, ResourceType.TOPIC, topic)

    def may_cluster(self, operation: AclOperation) -> bool:
        """Whether the caller may do something to the cluster."""
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)

    def may_any(self, operation: AclOperation, resource: ResourceType) -> bool:
        """Whether there can be a resource of a type to which the caller may do something."""
        authorizer = self.broker.cluster.authorizer
        if authorizer is None:
            return True
        return authorizer.allowed_on_any(self.session.principal, self.session.host, operation, resource)

    def require(self, operation: AclOperation, resource: ResourceType, name: str) -> None:
        """Refuse a caller who may not; whether the resource exists plays no part."""
        if not self.may(operation, resource, name):
            # Kafka has words for this one only; they stand in answers that have room for a message.
            message = "Cluster authorization failed." if resource is ResourceType.CLUSTER else None
            raise KafkaError(REFUSALS[resource], message)

    def authorized_operations(self, resource: ResourceType, name: str) -> int:
        """What the caller may do to a resource, as the bit field of KIP-430."""
        authorizer = self.broker.cluster.authorizer
        if authorizer is None:
            return sum(1 << operation for operation in OPERATIONS[resource])
        return authorizer.operations(self.session.principal, self.session.host, resource, name)

    def cluster_operations(self) -> int:
        """What the caller may do to the cluster; nothing to somebody who may not describe it."""
        if not self.may_cluster(AclOperation.DESCRIBE):
            return 0
        return self.authorized_operations(ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)
