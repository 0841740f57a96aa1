"""Progress bars on standard error. They appear only on a terminal, and vanish when the work is done."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STEP = 1 << 20
_POLL_SECONDS = 0.2


@contextmanager
def byte_progress(description: str, total: int, *, at_least: int = 0) -> Iterator[Callable[[int], None]]:
    """Show a bar of `total` bytes; yield the function that advances it. Work below `at_least` bytes shows none."""
    if total < at_least or not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(description), BarColumn(), DownloadColumn(True), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(description, total=total)
        pending = 0

        def advance(size: int) -> None:
            nonlocal pending
            pending += size
            if pending >= _STEP:
                bars.advance(bar, pending)
                pending = 0

        yield advance


@contextmanager
def spark_progress(spark: Any, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show a bar of the tasks that Spark runs; yield the function that names the current step."""
    if quiet or not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    done = threading.Event()
    columns = (
        TextColumn("{task.description:12}"),
        BarColumn(40),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("Spark", total=None)

        def watch() -> None:
            tracker = spark.sparkContext.statusTracker()
            while not done.wait(_POLL_SECONDS):
                listed = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                stages = [stage for stage in listed if stage is not None]
                if stages:
                    bars.update(
                        bar,
                        total=sum(stage.numTasks for stage in stages),
                        completed=sum(stage.numCompletedTasks for stage in stages),
                    )

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield lambda step: bars.update(bar, description=step)
        finally:
            done.set()
            watcher.join()
