"""Shared by the handlers of group APIs: enabled protocols, the sender of a request, and changes of a response."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

from ottla.cluster.features import GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION
from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.groups.environment import RequestContext
from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from ottla.broker.session import Call

GroupProtocol = Literal["consumer", "share", "streams"]
_FEATURES: Final[dict[GroupProtocol, str]] = {
    "consumer": GROUP_VERSION,
    "share": SHARE_VERSION,
    "streams": STREAMS_VERSION,
}

_UUID_LENGTH: Final = 36

R = TypeVar("R")
S = TypeVar("S")


class Described(Protocol):
    """A described group of the consumer, share or streams protocol."""

    group_id: str
    error_code: int
    authorized_operations: int


class TopicResult(Protocol):
    """The part of a response about one topic."""

    partitions: list[Any]


D = TypeVar("D", bound=Described)
T = TypeVar("T", bound=TopicResult)


def supports_protocol(call: Call, protocol: GroupProtocol) -> bool:
    """Return whether the cluster's features and `group.coordinator.rebalance.protocols` enable a protocol."""
    if call.broker.runtime.image.features.get(_FEATURES[protocol], 0) < 1:
        return False
    protocols = call.broker.config("group.coordinator.rebalance.protocols")
    # Share groups depend on their feature alone, as in Kafka.
    return protocol == "share" or not isinstance(protocols, tuple) or protocol in protocols


def require_protocol(call: Call, protocol: GroupProtocol) -> None:
    """Raise UNSUPPORTED_VERSION if a protocol is not enabled."""
    if not supports_protocol(call, protocol):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


def request_context(call: Call) -> RequestContext:
    """Return the sender and version of a request for the group coordinator."""
    context = RequestContext(call.version, call.client_id or "", f"/{call.session.host}")
    if call.broker.runtime.authorizer is None:
        return context
    return replace(
        context, describable=lambda names: [name for name in names if call.may_topic(AclOperation.DESCRIBE, name)]
    )


def map_response(response: R | Pending[R], change: Callable[[R], S]) -> S | Pending[S]:
    """Return the changed response, or the Pending of it."""
    return response.map(change) if isinstance(response, Pending) else change(response)


def split(items: Iterable[R], passes: Callable[[R], bool]) -> tuple[list[R], list[R]]:
    """Return the items that pass a check and those that do not; each is checked once."""
    passed: list[R] = []
    failed: list[R] = []
    for item in items:
        (passed if passes(item) else failed).append(item)
    return passed, failed


def merge_topics(topics: Iterable[T], key: Callable[[T], Hashable]) -> list[T]:
    """Merge entries of the same topic, as Kafka does; partitions keep their order and may repeat."""
    by_key: dict[Hashable, T] = {}
    for topic in topics:
        first = by_key.setdefault(key(topic), topic)
        if first is not topic:
            first.partitions += topic.partitions
    return list(by_key.values())


def describe_authorized(
    call: Call,
    request: Any,
    described: Callable[..., D],
    describe: Callable[[list[str]], list[D] | Pending[list[D]]],
    topics_of: Callable[[D], set[str]],
    unauthorized_message: str,
) -> list[D] | Pending[list[D]]:
    """Describe the groups of a request; a group with a topic that the caller may not describe becomes an error."""

    def authorize_topics(group: D) -> D:
        if group.error_code:
            return group
        if request.include_authorized_operations:
            group.authorized_operations = call.authorized_operations(ResourceType.GROUP, group.group_id)
        if all(call.may_topic(AclOperation.DESCRIBE, topic) for topic in topics_of(group)):
            return group
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return described(group_id=group.group_id, error_code=code, error_message=unauthorized_message)

    allowed, unauthorized = split(
        request.group_ids, lambda group_id: call.may(AclOperation.DESCRIBE, ResourceType.GROUP, group_id)
    )
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    refused = [described(group_id=group_id, error_code=code) for group_id in unauthorized]
    return map_response(describe(allowed), lambda groups: refused + [authorize_topics(group) for group in groups])


def require_share_member_id(member_id: str | None) -> None:
    """Raise INVALID_REQUEST for a text that cannot be the id of a share group member."""
    if not member_id or len(member_id) > _UUID_LENGTH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
