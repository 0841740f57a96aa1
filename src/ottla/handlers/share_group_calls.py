"""What the handlers of share group APIs share: whether there are share groups at all, and state asked for in bulk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.cluster.features import SHARE_VERSION
from ottla.groups.coordinator import wait_for_all
from ottla.protocol.error_texts import error_text
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.shares.environment import SharePartitionKey

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.schema import Uuid
    from ottla.shares.coordinator import StateAnswer

P = TypeVar("P")
R = TypeVar("R")
_LONGEST_MEMBER_ID: Final = 36  # a UUID as people read it
_UNAVAILABLE: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def share_groups_enabled(call: Call) -> bool:
    """Whether the cluster's `share.version` lets share groups be."""
    return call.broker.cluster.image.features.get(SHARE_VERSION, 0) >= 1


def require_share_groups(call: Call) -> None:
    """Refuse everything about share groups where they are not enabled."""
    if not share_groups_enabled(call):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


def require_member_id(member_id: str | None) -> None:
    """Refuse what cannot be the id of a member."""
    if not member_id or len(member_id) > _LONGEST_MEMBER_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")


def for_each_partition(
    group_id: str,
    topics: Sequence[Any],
    ask: Callable[[SharePartitionKey, Any], Pending[StateAnswer]],
    result: Callable[[int, StateAnswer, str | None], P],
    response: Callable[[list[tuple[Uuid, list[P]]]], R],
    action: str,
) -> R | Pending[R]:
    """Ask the share coordinator about each partition of a request, and answer when all are known.

    A request that names no group, no topic, or a topic without partitions is answered with nothing.
    """
    if not group_id or any(not topic.partitions for topic in topics):
        return response([])
    wanted = {
        SharePartitionKey(group_id, topic.topic_id, each.partition): each
        for topic in topics
        for each in topic.partitions
    }

    def combine(answers: list[StateAnswer]) -> R:
        results: dict[Uuid, list[P]] = {}
        for key, answer in zip(wanted, answers, strict=True):
            message = answer.message or error_text(answer.error)
            if answer.error in _UNAVAILABLE:
                message = f"Unable to {action}: {message}"
            results.setdefault(key.topic_id, []).append(result(key.partition, answer, message))
        return response(list(results.items()))

    asked: list[StateAnswer | Pending[StateAnswer]] = [ask(key, each) for key, each in wanted.items()]
    return wait_for_all(asked, combine)
