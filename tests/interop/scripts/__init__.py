"""Scripts for the side-by-side test: each is a conversation that Apache Kafka and ottla must answer alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conversations.side_by_side import Talk

SCRIPTS: dict[str, Callable[[Talk], None]] = {}
KNOWN_DIFFERENCES: dict[str, dict[str, str]] = {}


def script(
    differs: dict[str, str] | None = None,
) -> Callable[[Callable[[Talk], None]], Callable[[Talk], None]]:
    """Register a script; `differs` names the answers that are meant to differ, each with its reason."""

    def register(function: Callable[[Talk], None]) -> Callable[[Talk], None]:
        SCRIPTS[function.__name__] = function
        KNOWN_DIFFERENCES[function.__name__] = differs or {}
        return function

    return register
