"""Work that is cut into pieces, so that other connections have their turn in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ottla.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ottla.world.clock import Clock

R = TypeVar("R")

PIECE = 2000
"""Units of work, of about a microsecond each, between two turns of the loop."""


def run_in_pieces(
    clock: Clock, steps: Generator[int, None, R | Pending[R]], on_error: Callable[[Exception], R]
) -> R | Pending[R]:
    """Run a generator that yields the units of work it has done; return its result, or a Pending if that takes turns.

    Errors of the first piece are raised; `on_error` makes the response of a later one. A client that disconnects stops
    the work.
    """
    finished, result = _run(steps)
    if finished:
        return result  # type: ignore[return-value]
    waiting: Pending[R] | None = None

    def cancel() -> None:
        steps.close()
        if waiting is not None:
            waiting.cancel()

    pending: Pending[R] = Pending(cancel)

    def next_piece() -> None:
        nonlocal waiting
        if pending.settled:
            return
        try:
            finished, result = _run(steps)
        except Exception as error:
            finished, result = True, on_error(error)
        if isinstance(result, Pending):
            waiting = result
            result.on_complete(pending.complete)
        elif finished:
            pending.complete(result)  # type: ignore[arg-type]
        else:
            clock.call_soon(next_piece)

    clock.call_soon(next_piece)
    return pending


def run_to_end(steps: Generator[int, None, R]) -> R:
    """Run a generator of steps in one piece; return its result."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: R = end.value
        return result


def _run(steps: Generator[int, None, R]) -> tuple[bool, R | None]:
    done = 0
    try:
        while done < PIECE:
            done += next(steps)
    except StopIteration as end:
        return True, end.value
    return False, None
