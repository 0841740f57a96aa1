"""Report records that a read expected and that are gone: an error, or a warning with `failOnDataLoss=false`."""

from __future__ import annotations

import sys


class DataLossError(Exception):
    """Records that a read expected no longer exist."""


def warn(source: str, message: str) -> None:
    """Print a warning to standard error, which Spark collects from its workers."""
    print(f"{source}: {message}", file=sys.stderr, flush=True)


def report_loss(source: str, message: str, way_out: str, *, fail: bool) -> None:
    """Raise `DataLossError` with the way out, or warn."""
    if fail:
        raise DataLossError(f"{message}; {way_out}")
    warn(source, message)
