"""Shared by the five APIs of share group state (83 to 87), whose responses have a result for each partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ottla.pending import Pending, wait_for_all
from ottla.protocol.error_texts import error_text
from ottla.protocol.errors import ErrorCode
from ottla.shares.environment import SharePartitionKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ottla.protocol.schema import Uuid
    from ottla.shares.coordinator import StateResult
    from ottla.shares.environment import ShareState

R = TypeVar("R")
_UNAVAILABLE: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class StateApi(Generic[R]):
    """One of the APIs: the classes of its response, and its action for error messages."""

    def __init__(self, action: str, response: Callable[..., R], topic: Any, partition: Any) -> None:
        self._action = action
        self._response = response
        self._topic = topic
        self._partition = partition

    def on_error(self, request: Any, version: int, code: ErrorCode, message: str | None) -> R:
        """Return the same error for every partition."""
        error_message = message or error_text(code)
        return self._build(
            (
                topic.topic_id,
                [
                    self._partition(partition=partition.partition, error_code=code, error_message=error_message)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        )

    def for_each_partition(
        self,
        request: Any,
        operation: Callable[[SharePartitionKey, Any], Pending[StateResult]],
        fields: Callable[[ShareState], dict[str, Any]] = lambda state: {},
    ) -> R | Pending[R]:
        """Call the share coordinator for each partition; respond when all results are known.

        `fields` returns further response fields of a state. A request without a group, without topics or with a topic
        without partitions gets an empty response.
        """
        if not request.group_id or any(not topic.partitions for topic in request.topics):
            return self._build(())
        requested = {
            SharePartitionKey(request.group_id, topic.topic_id, partition.partition): partition
            for topic in request.topics
            for partition in topic.partitions
        }

        def combine(state_results: list[StateResult]) -> R:
            results: dict[Uuid, list[Any]] = {}
            for key, result in zip(requested, state_results, strict=True):
                error_message = result.message or error_text(result.error)
                if result.error in _UNAVAILABLE:
                    error_message = f"Unable to {self._action}: {error_message}"
                state_fields = {} if result.error else fields(result.state)
                results.setdefault(key.topic_id, []).append(
                    self._partition(
                        partition=key.partition, error_code=result.error, error_message=error_message, **state_fields
                    )
                )
            return self._build(results.items())

        results: list[StateResult | Pending[StateResult]] = [
            operation(key, partition) for key, partition in requested.items()
        ]
        return wait_for_all(results, combine)

    def _build(self, results: Iterable[tuple[Uuid, list[Any]]]) -> R:
        return self._response(
            results=[self._topic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in results]
        )
