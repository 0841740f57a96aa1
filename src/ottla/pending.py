"""A response that a later event completes: a fetch waiting for bytes, a join for members, a produce for fsync."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")
S = TypeVar("S")


class Pending(Generic[R]):
    """A future response, completed or cancelled once, on the event loop. Kafka's DelayedOperation.

    `effect_applied` means that the request has taken effect and only its response waits (for fsync, for example), so
    that the next request of the connection may start.
    """

    __slots__ = ("_cancelled", "_done", "_on_cancel", "_on_complete", "_response", "effect_applied")

    def __init__(self, on_cancel: Callable[[], None] | None = None, *, effect_applied: bool = False) -> None:
        self._on_complete: Callable[[R], None] | None = None
        self._on_cancel = on_cancel
        self._done = False
        self._cancelled = False
        self._response: R | None = None
        self.effect_applied = effect_applied

    @property
    def done(self) -> bool:
        """Return whether the response is known."""
        return self._done

    @property
    def settled(self) -> bool:
        """Return whether it was completed or cancelled."""
        return self._done or self._cancelled

    @property
    def response(self) -> R:
        """Return the response; only when `done`."""
        assert self._done
        return self._response  # type: ignore[return-value]

    def complete(self, response: R) -> None:
        """Set the response. Ignore it after a cancellation; a second response is an error."""
        if self._cancelled:
            return
        assert not self._done, "a pending response was completed twice"
        self._done = True
        self._response = response
        self._on_cancel = None
        if self._on_complete is not None:
            callback, self._on_complete = self._on_complete, None
            callback(response)

    def cancel(self) -> None:
        """Cancel: run `on_cancel` and send no response."""
        if self.settled:
            return
        self._cancelled = True
        self._on_complete = None
        if self._on_cancel is not None:
            callback, self._on_cancel = self._on_cancel, None
            callback()

    def on_complete(self, callback: Callable[[R], None]) -> None:
        """Call back with the response, at once if it is known."""
        if self._done:
            callback(self._response)  # type: ignore[arg-type]
        else:
            self._on_complete = callback

    def map(self, change: Callable[[R], S]) -> Pending[S]:
        """Return a Pending with the result of `change` on the response."""
        if self._done:
            return completed_with(change(self.response))
        mapped: Pending[S] = Pending(self.cancel, effect_applied=self.effect_applied)
        self.on_complete(lambda response: mapped.complete(change(response)))
        return mapped


def completed_with(response: R) -> Pending[R]:
    """Return a completed Pending."""
    pending: Pending[R] = Pending()
    pending.complete(response)
    return pending


def wait_for_all(responses: list[R | Pending[R]], combine: Callable[[list[R]], S]) -> S | Pending[S]:
    """Return the combined responses, or a Pending that completes when the last of them is known."""
    waiting = [response for response in responses if isinstance(response, Pending)]
    if not waiting:
        return combine(responses)  # type: ignore[arg-type]
    combined: Pending[S] = Pending(effect_applied=True)
    outstanding = len(waiting)

    def complete_one(_: object) -> None:
        nonlocal outstanding
        outstanding -= 1
        if outstanding == 0:
            combined.complete(combine([item.response if isinstance(item, Pending) else item for item in responses]))

    for response in waiting:
        response.on_complete(complete_one)
    return combined
