"""What the five APIs of share partitions' state (83 to 87) have in common: each answers partition by partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ottla.groups.coordinator import wait_for_all
from ottla.protocol.error_texts import error_text
from ottla.protocol.errors import ErrorCode
from ottla.shares.environment import SharePartitionKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ottla.pending import Pending
    from ottla.protocol.schema import Uuid
    from ottla.shares.coordinator import StateAnswer
    from ottla.shares.environment import ShareState

R = TypeVar("R")
_UNAVAILABLE: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class StateApi(Generic[R]):
    """One of them: the classes of its response, and what it does, in words."""

    def __init__(self, action: str, response: Callable[..., R], topic: Any, partition: Any) -> None:
        self._action = action
        self._response = response
        self._topic = topic
        self._partition = partition

    def on_error(self, request: Any, version: int, code: ErrorCode, message: str | None) -> R:
        """Nothing was done to any partition."""
        told = message or error_text(code)
        return self._answer(
            (
                topic.topic_id,
                [
                    self._partition(partition=each.partition, error_code=code, error_message=told)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        )

    def for_each_partition(
        self,
        request: Any,
        ask: Callable[[SharePartitionKey, Any], Pending[StateAnswer]],
        found: Callable[[ShareState], dict[str, Any]] = lambda state: {},
    ) -> R | Pending[R]:
        """Ask the share coordinator about each partition, and answer when all are known; `found` is told of each state.

        A request that names no group, no topic, or a topic without partitions is answered with nothing.
        """
        if not request.group_id or any(not topic.partitions for topic in request.topics):
            return self._answer(())
        wanted = {
            SharePartitionKey(request.group_id, topic.topic_id, each.partition): each
            for topic in request.topics
            for each in topic.partitions
        }

        def combine(answers: list[StateAnswer]) -> R:
            results: dict[Uuid, list[Any]] = {}
            for key, answer in zip(wanted, answers, strict=True):
                told = answer.message or error_text(answer.error)
                if answer.error in _UNAVAILABLE:
                    told = f"Unable to {self._action}: {told}"
                fields = {} if answer.error else found(answer.state)
                results.setdefault(key.topic_id, []).append(
                    self._partition(partition=key.partition, error_code=answer.error, error_message=told, **fields)
                )
            return self._answer(results.items())

        asked: list[StateAnswer | Pending[StateAnswer]] = [ask(key, each) for key, each in wanted.items()]
        return wait_for_all(asked, combine)

    def _answer(self, results: Iterable[tuple[Uuid, list[Any]]]) -> R:
        return self._response(results=[self._topic(topic_id=topic_id, partitions=each) for topic_id, each in results])
