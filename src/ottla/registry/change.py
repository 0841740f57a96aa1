"""A decision of the registry that waits for its records to be appended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Change:
    """Records to append, and how to make the response once they are replayed."""

    records: list[tuple[bytes, bytes | None]]
    result: Callable[[], Any]
