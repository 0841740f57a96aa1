"""A response that a later event completes: a fetch waiting for bytes, a join for members, an answer for the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")
S = TypeVar("S")


class Pending(Generic[R]):
    """A promise of a response, kept or cancelled once, on the loop that owns the broker.

    `effect_applied` says that the request has done all it does and only its answer waits (for the disk, say), so that
    the next request on the connection may go ahead.
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
        """Whether the response is known."""
        return self._done

    @property
    def settled(self) -> bool:
        """Whether nothing more will happen: it was completed, or nobody waits any more."""
        return self._done or self._cancelled

    @property
    def response(self) -> R:
        """The response; only when done."""
        assert self._done
        return self._response  # type: ignore[return-value]

    def complete(self, response: R) -> None:
        """Give the response. After a cancellation it is dropped; a second one is a mistake."""
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
        """Nobody waits any more (the client left): undo the waiting, answer nothing."""
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
        """The promise of what `change` makes of this one's response."""
        if self._done:
            return kept(change(self.response))
        mapped: Pending[S] = Pending(self.cancel, effect_applied=self.effect_applied)
        self.on_complete(lambda response: mapped.complete(change(response)))
        return mapped


def kept(response: R) -> Pending[R]:
    """A promise that is kept already."""
    pending: Pending[R] = Pending()
    pending.complete(response)
    return pending
