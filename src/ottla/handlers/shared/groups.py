"""What the handlers of group APIs share: whether there are such groups, who asks, and what to do with an answer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

from ottla.cluster.acls import AclOperation, ResourceType
from ottla.cluster.features import GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION
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
    """A group as the newer group protocols describe one."""

    group_id: str
    error_code: int
    authorized_operations: int


class Topical(Protocol):
    """What an answer says of a topic."""

    partitions: list[Any]


D = TypeVar("D", bound=Described)
T = TypeVar("T", bound=Topical)


def speaks(call: Call, protocol: GroupProtocol) -> bool:
    """Whether the cluster's features and the broker's list of protocols let such groups be."""
    if call.broker.cluster.image.features.get(_FEATURES[protocol], 0) < 1:
        return False
    protocols = call.broker.config("group.coordinator.rebalance.protocols")
    # Kafka leaves share groups to their feature alone.
    return protocol == "share" or not isinstance(protocols, tuple) or protocol in protocols


def require_protocol(call: Call, protocol: GroupProtocol) -> None:
    """Refuse everything about such groups where there are none."""
    if not speaks(call, protocol):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


def request_context(call: Call) -> RequestContext:
    """Who sent a request, as the groups write it down."""
    context = RequestContext(call.version, call.client_id or "", f"/{call.session.host}")
    if call.broker.cluster.authorizer is None:
        return context
    return replace(
        context, describable=lambda names: [each for each in names if call.may_topic(AclOperation.DESCRIBE, each)]
    )


def then(answer: R | Pending[R], change: Callable[[R], S]) -> S | Pending[S]:
    """What `change` makes of an answer, now or when it comes."""
    return answer.map(change) if isinstance(answer, Pending) else change(answer)


def sort_out(things: Iterable[R], passes: Callable[[R], bool]) -> tuple[list[R], list[R]]:
    """What passes a check and what does not, each looked at once: there may be very many."""
    right: list[R] = []
    wrong: list[R] = []
    for each in things:
        (right if passes(each) else wrong).append(each)
    return right, wrong


def merged(topics: Iterable[T], key: Callable[[T], Hashable]) -> list[T]:
    """One entry a topic, however often it was named, as Kafka answers; partitions stay in order, and may repeat."""
    found: dict[Hashable, T] = {}
    for topic in topics:
        first = found.setdefault(key(topic), topic)
        if first is not topic:
            first.partitions += topic.partitions
    return list(found.values())


def describe_visible(
    call: Call,
    request: Any,
    described: Callable[..., D],
    describe: Callable[[list[str]], list[D] | Pending[list[D]]],
    topics_of: Callable[[D], set[str]],
    hidden: str,
) -> list[D] | Pending[list[D]]:
    """The groups of a request as the caller may see them: one that uses a topic they may not see is `hidden`."""

    def shown(group: D) -> D:
        if group.error_code:
            return group
        if request.include_authorized_operations:
            group.authorized_operations = call.authorized_operations(ResourceType.GROUP, group.group_id)
        if all(call.may_topic(AclOperation.DESCRIBE, topic) for topic in topics_of(group)):
            return group
        return described(group_id=group.group_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=hidden)

    allowed, kept_out = sort_out(
        request.group_ids, lambda each: call.may(AclOperation.DESCRIBE, ResourceType.GROUP, each)
    )
    refused = [described(group_id=each, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED) for each in kept_out]
    return then(describe(allowed), lambda groups: refused + [shown(each) for each in groups])


def require_share_member_id(member_id: str | None) -> None:
    """Raise INVALID_REQUEST for a text that cannot be the id of a share group member."""
    if not member_id or len(member_id) > _UUID_LENGTH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
