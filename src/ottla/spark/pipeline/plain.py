"""Run a plain PySpark file as a pipeline, with a session that has ottla's formats, until its queries end.

The file gets the session from `SparkSession.builder.getOrCreate()` and the brokers from `OTTLA_BOOTSTRAP`. Named
queries keep their checkpoints in `.ottla/checkpoints/<name>`, so that a second run continues where the first one ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.expectations import counts
from ottla.spark.pipeline.folder import STATE, begin_status, write_status
from ottla.spark.pipeline.locate import caller_in, with_location
from ottla.spark.pipeline.progress import query_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_EVERY: Final = 0.5


def main(file: str, settings: dict[str, Any]) -> int:
    """Run the file and return the exit code."""
    from ottla.spark.session import session

    path = Path(file)
    state = path.parent / STATE / settings.get("part", "")
    status = begin_status(state)
    stopper = Stopper(state / "status.json", status)
    stopper.install()
    config = {
        "spark.sql.streaming.checkpointLocation": str(state / "checkpoints"),
        "spark.sql.warehouse.dir": str(path.parent / STATE / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={state}",
        **settings["config"],
    }
    spark = session(path.parent.name, master=settings["master"], config=config)
    spark.sparkContext.setLogLevel("WARN")
    watch = Watch(spark, state / "status.json", status)
    stopper.spark = spark
    stopper.install()  # again: SparkContext replaces the handler
    try:
        if settings["dry"]:
            status["plans"] = plans = []
            _replace_start(lambda writer, _: plans.append(_describe(writer)))
        elif settings.get("backfill"):
            from ottla.spark.pipeline.backfill import BackfillRange, install

            install(BackfillRange(**settings["backfill"]), status)
        else:
            _replace_start(
                lambda writer, start: watch.started(_start(writer, start, once=settings["once"]), path.parent)
            )
        watch.start()
        sys.path.insert(0, str(path.parent))
        runpy.run_path(str(path), run_name="__main__")
        while active := spark.streams.active:
            with contextlib.suppress(Exception):  # raised below, with the line that started the query
                active[0].awaitTermination()
        watch.raise_failure()
    except BaseException as error:
        if not stopper.stopping:
            watch.stop("failed", with_location(error, path.parent))
            raise
    watch.stop("stopped" if stopper.stopping else "finished")
    spark.stop()
    return 0


class Stopper:
    """Stop all queries on SIGINT or SIGTERM. A second signal, or one while no query runs, ends the process."""

    def __init__(self, file: Path, status: dict[str, Any]) -> None:
        self._file = file
        self._status = status
        self.spark: SparkSession | None = None
        self.stopping = False

    def install(self) -> None:
        """Install the signal handlers."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, *_: object) -> None:
        if self.stopping or self.spark is None:
            self._end()
        self.stopping = True
        # In another thread: this one may be inside a call to the JVM.
        threading.Thread(target=self._stop_queries, daemon=True).start()

    def _stop_queries(self) -> None:
        assert self.spark is not None
        queries = self.spark.streams.active
        for query in queries:
            query.stop()
        if not queries:
            self._end()

    def _end(self) -> None:
        write_status(self._file, {**self._status, "state": "stopped", "ended": time.time()})
        os._exit(0)


class Watch:
    """Write the status file while the pipeline runs."""

    def __init__(self, spark: SparkSession, file: Path, status: dict[str, Any]) -> None:
        self._spark = spark
        self._file = file
        self._status = status
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._seen: dict[str, Any] = {}
        self._locations: dict[str, str] = {}
        self._totals: dict[str, QueryTotals] = {}

    def start(self) -> None:
        """Start the thread that writes."""
        self._status["state"] = "running"
        self._thread.start()

    def started(self, query: Any, folder: Path) -> Any:
        """Remember where in the pipeline's folder a query was started; return the query."""
        if query is not None:
            self._seen.setdefault(str(query.id), query)
            location = caller_in(folder)
            if location is not None:
                self._locations[str(query.id)] = location
        return query

    def raise_failure(self) -> None:
        """Raise the failure of the first query that failed, with the line that started it."""
        for key, query in self._seen.items():
            failure = query.exception()
            if failure is not None:
                name = f"query {query.name}" if query.name else "a query without a name"
                failure.add_note(f"{self._locations.get(key, '')}: {name}")
                raise failure

    def stop(self, state: str, problem: str | None = None) -> None:
        """Write the last status."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self._look()
        self._status["state"] = state
        self._status["ended"] = time.time()
        if problem is not None:
            self._status["problem"] = problem
        write_status(self._file, self._status)

    def _run(self) -> None:
        while not self._done.wait(_EVERY):
            self._look()
            write_status(self._file, self._status)

    def _look(self) -> None:
        """Read the progress of every query seen; an ended query still has its last progress."""
        try:
            for query in self._spark.streams.active:
                self._seen.setdefault(str(query.id), query)
            if not self._seen:
                return  # a backfill writes its own
            queries = []
            for key, query in self._seen.items():
                totals = self._totals.setdefault(key, QueryTotals())
                for batch in query.recentProgress:
                    totals.add(json.loads(batch.json))
                progress = query.lastProgress
                shown = query_progress(progress and json.loads(progress.json), query.name or key, query.isActive)
                queries.append({**shown, **totals.shown()})
            self._status["queries"] = queries
        except Exception as error:  # the session is stopping: keep the last progress
            self._status.setdefault("notes", str(error)[:200])


class QueryTotals:
    """Rows and violated expectations of a query in this run. Batches are added once, by their id."""

    def __init__(self) -> None:
        self._rows = 0
        self._last_batch = -1
        self._expectations: dict[str, dict[str, int]] = {}

    def add(self, progress: dict[str, Any]) -> None:
        """Add the progress of a batch, unless it was added."""
        batch = int(progress["batchId"])
        if batch <= self._last_batch:
            return
        self._last_batch = batch
        self._rows += int(progress["numInputRows"])
        for name, metrics in counts(progress.get("observedMetrics") or {}).items():
            totals = self._expectations.setdefault(name, {})
            for key, value in metrics.items():
                totals[key] = totals.get(key, 0) + value

    def shown(self) -> dict[str, Any]:
        """Return the entries of a query's status."""
        return {"total_rows": self._rows, "expectations": self._expectations}


def _replace_start(instead: Callable[[Any, Callable[..., Any]], Any]) -> None:
    """Call `instead` with the writer and the original function where the file calls `start` or `toTable`."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    for name in ("start", "toTable"):
        setattr(DataStreamWriter, name, _replacement(getattr(DataStreamWriter, name), instead))


def _replacement(original: Callable[..., Any], instead: Callable[[Any, Callable[..., Any]], Any]) -> Callable[..., Any]:
    def started(self: Any, *arguments: Any, **named: Any) -> Any:
        if named:
            self.options(**{key: value for key, value in named.items() if key not in _NOT_OPTIONS})
        return instead(self, lambda: original(self, *arguments, **named))

    return started


_NOT_OPTIONS: Final = frozenset({"path", "tableName", "format", "outputMode", "partitionBy", "queryName"})


def _start(writer: Any, start: Callable[[], Any], *, once: bool) -> Any:
    """Start a query; with `once` it processes the available data and stops, whatever trigger the file sets."""
    if once:
        writer.trigger(availableNow=True)
    return start()


def _describe(writer: Any) -> dict[str, Any]:
    """Describe a query that a dry run does not start: its columns, and whether it could start."""
    jvm_writer = writer._jwrite
    options = _private(jvm_writer, "extraOptions")
    name = options.get("queryName")
    return {
        "name": str(name.get()) if name.isDefined() else None,
        "format": str(_private(jvm_writer, "source")),
        "schema": writer._df.schema.simpleString(),
    }


def _private(target: Any, name: str) -> Any:
    field = target.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(target)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
