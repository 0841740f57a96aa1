"""What a reader does for the Python worker it runs in, which Spark uses for one task after another."""

from __future__ import annotations

import gc
import os

_settled = False


def settle() -> None:
    """Keep what is loaded out of garbage collections, once in each worker.

    Spark's daemon collects all garbage after every task. That walks over every object of pyspark, pyarrow and ottla,
    none of which ever goes, and takes longer than a small task.
    """
    global _settled
    if not _settled and os.environ.get("SPARK_REUSE_WORKER"):
        _settled = True
        gc.freeze()
