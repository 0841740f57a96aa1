"""A mark in a query's checkpoint that it has decided batches: expired bookkeeping is not taken for a first batch.

Brokers delete the offsets of idle groups (offsets.retention.minutes, 7 days by default). A query that stopped in the
middle of a batch and starts after that cannot know whether the batch was decided.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlparse

from ottla.spark.sink.decision import BookkeepingError, group_name

if TYPE_CHECKING:
    from collections.abc import Mapping

MARK: Final = "ottla-sink"
_OLD: Final = 6 * 3600  # seconds; a batch that began before that was not begun by this start of the query


class BookkeepingExpiredError(BookkeepingError):
    """The bookkeeping of a query is gone, and its unfinished batch may have been written."""


@dataclass(frozen=True, slots=True)
class CheckpointMark:
    """The file `ottla-sink` in a checkpoint folder on a local or mounted disk."""

    folder: Path

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> CheckpointMark | None:
        """Return the mark of a query's options; None if the checkpoint is not in a local folder."""
        location = next((value for name, value in options.items() if name.lower() == "checkpointlocation"), None)
        if not location:
            return None
        url = urlparse(str(location))
        if url.scheme not in ("", "file"):
            return None
        folder = Path(unquote(url.path) if url.scheme else str(location))
        return cls(folder) if folder.is_dir() else None

    def write(self, query: str, batch: int) -> None:
        """Write the mark, unless it is there."""
        path = self.folder / MARK
        if not path.exists():
            path.write_text(json.dumps({"query": query, "first_decided_batch": batch}) + "\n")

    def check(self, query: str, batch: int) -> None:
        """Raise if decisions of this checkpoint existed, none is left, and the batch began long ago."""
        path, began = self.folder / MARK, self.folder / "offsets" / str(batch)
        try:
            age = time.time() - began.stat().st_mtime
            marked = path.exists()
        except OSError:
            return
        if marked and age > _OLD:
            raise BookkeepingExpiredError(
                f"batch {batch} of query {query} began {age / 86400:.1f} days ago and is unfinished, and group "
                f"{group_name(query)}, which knows whether its rows are in the topic, is gone: the brokers delete such "
                "groups after offsets.retention.minutes. Nothing was written. Look for the rows of the batch in the "
                f"topic; if they are not there, delete {path} and start again; if they are, use a new checkpoint"
            )
