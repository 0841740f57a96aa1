"""What a read says of records that are gone: an error, or a warning where it was told to go on without them."""

from __future__ import annotations

import sys


class DataLossError(Exception):
    """Records that a read counted on are no longer there."""


def warn(source: str, message: str) -> None:
    """Say what a read leaves out, where Spark keeps its workers' output."""
    print(f"{source}: {message}", file=sys.stderr, flush=True)
