"""Settings of the Python worker process that runs a reader's tasks."""

from __future__ import annotations

import gc
import os

_settled = False


def settle() -> None:
    """Exclude loaded modules from garbage collection, once per worker.

    Spark's daemon runs a full collection after every task. It visits every object of pyspark, pyarrow and ottla, none
    of which is ever freed, and takes longer than a small task.
    """
    global _settled
    if not _settled and os.environ.get("SPARK_REUSE_WORKER"):
        _settled = True
        gc.freeze()
