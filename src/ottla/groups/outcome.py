"""The result of a group operation: its response, or the Pending of it, and the records to append."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from ottla.cluster.coordinator_errors import APPEND_ERRORS
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.groups.records import GroupRecord
    from ottla.pending import Pending

R = TypeVar("R")
S = TypeVar("S")


@dataclass(slots=True)
class Outcome(Generic[R]):
    """The result of an operation (Kafka's CoordinatorResult).

    `response` is what the client receives, or a Pending where it depends on other members or coordinators. The shard
    holds it back until all records appended so far are durable.
    `replay` is False where the operation has already changed the state: the soft state of classic groups.
    Records of an outcome that is not `atomic` may be split over several batches.
    `on_appended` is called when the records are in the log. `on_durable` is called with NONE when they are durable, or
    with the error that prevented it. `on_error` builds the error response where it carries more than the error code.
    """

    response: R | Pending[R]
    records: Sequence[GroupRecord] = ()
    replay: bool = True
    atomic: bool = True
    on_appended: Callable[[], None] | None = None
    on_durable: Callable[[ErrorCode], None] | None = None
    on_error: Callable[[ErrorCode, str | None], R] | None = None

    def with_response(self, response: S | Pending[S]) -> Outcome[S]:
        """Return the same changes with a response."""
        return Outcome(response, self.records, self.replay, self.atomic, self.on_appended, self.on_durable)


def no_change() -> Outcome[None]:
    """Return an outcome without response and records."""
    return Outcome(None)


_CLIENT_ERRORS: Final = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    **APPEND_ERRORS,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def client_error(error: KafkaError) -> tuple[ErrorCode, str | None]:
    """Return the code and message that a client receives; errors of the log become errors of the coordinator."""
    code = _CLIENT_ERRORS.get(error.code)
    return (error.code, error.message) if code is None else (code, None)


def client_error_code(code: ErrorCode) -> ErrorCode:
    """Return the code that a client receives for an error of the log."""
    return _CLIENT_ERRORS.get(code, code)
