"""`ottla pipeline run`, `dry-run` and `backfill`: start the runner, show its progress, stop it, print how it ended."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ottla.cli.spark.session import SparkOptions
from ottla.cli.terminal.output import UNREACHABLE, console, echo, fail, print_json, print_table, usage
from ottla.quantities import parse_time

Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder of the pipeline, or its file.")]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar="OTTLA_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Connect to these brokers. Without it: localhost:9092 if a broker answers there, else a broker is started "
        "for the run.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
POLL_SECONDS = 0.3
STOP_SECONDS = 60
_SIGNALLED = 128


def run(
    folder: Folder = Path(),
    *,
    bootstrap: Bootstrap = None,
    once: Annotated[bool, typer.Option("--once", help="Process the records that exist now, then stop.")] = False,
    full_refresh: Annotated[
        bool, typer.Option("--full-refresh", help="Recompute all tables of a declarative pipeline.")
    ] = False,
    restarts: Annotated[
        int, typer.Option("--restarts", metavar="N", min=0, help="Start it again up to N times if it fails.")
    ] = 0,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="[HOST:]PORT",
            help="Serve metrics for Prometheus over HTTP while it runs; 0 picks a free port.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    spark: SparkOptions,
) -> None:
    """Run a pipeline until its queries end, or until Ctrl-C.

    The next run continues where this one ends. Ctrl-C stops the queries; the exit code is 0 then, and `ottla pipeline
    status` shows "stopped".
    """
    if full_refresh and not find(folder).declarative:
        raise usage("--full-refresh requires a declarative pipeline; for this one, delete .ottla/checkpoints")
    with _metrics_page(find(folder), metrics, quiet=as_json):
        _run(folder, bootstrap, spark, as_json=as_json, restarts=restarts, once=once, full_refresh=full_refresh)


def dry_run(
    folder: Folder = Path(), *, bootstrap: Bootstrap = None, as_json: AsJson = False, spark: SparkOptions
) -> None:
    """Check a pipeline without running it.

    Loads it, connects to its sources and sinks, and lets Spark analyze its plans.
    """
    _run(folder, bootstrap, spark, as_json=as_json, dry=True)


def backfill(
    folder: Folder = Path(),
    *,
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Read records from this time on: 2026-11-15T10:00:00Z, -2d.")
    ],
    until: Annotated[str, typer.Option("--until", metavar="TIME", help="Read records before this time.")],
    query: Annotated[
        list[str] | None,
        typer.Option("--query", metavar="NAME", help="Run only this query; repeatable.", show_default=False),
    ] = None,
    files_to: Annotated[
        str | None,
        typer.Option(
            "--files-to", metavar="DIR", help="Write queries with a file sink below this folder.", show_default=False
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    as_json: AsJson = False,
    spark: SparkOptions,
) -> None:
    """Run a pipeline over a past range, beside the running stream.

    The stream and its checkpoints are not touched. Results are appended to the sinks: running a range twice writes its
    results twice.
    """
    pipeline = find(folder, part="backfill")
    if pipeline.declarative:
        raise usage("backfill is for plain pipelines; a declarative one has `ottla pipeline run --full-refresh`")
    try:
        times = {"start": parse_time(start), "until": parse_time(until)}
    except ValueError as error:
        raise usage(str(error)) from error
    if times["start"] >= times["until"]:
        raise usage("--from must be before --until")
    target = files_to if files_to is None or "://" in files_to else str(Path(files_to).resolve())
    chosen = {**times, "files_to": target, "queries": query or []}
    _run(folder, bootstrap, spark, as_json=as_json, part="backfill", backfill=chosen)


COLUMNS = ("QUERY", "SOURCE", "BATCH", "ROWS", "ROWS/S", "LAG")


def status_rows(current: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    """Return the rows of a status table: one for each source of each query."""
    for query in current["queries"]:
        for source in query["sources"] or [{}]:
            yield (
                query["name"],
                source.get("source", ""),
                query["batch"],
                query.get("total_rows", query["rows"]),
                query["rows_per_second"],
                source.get("lag"),
            )


def find(folder: Path, *, part: str = "") -> Any:
    """Return the pipeline of a folder, or end with a usage error."""
    from ottla.spark.pipeline.folder import PipelineError, find_pipeline

    try:
        return replace(find_pipeline(folder), part=part)
    except PipelineError as error:
        raise usage(str(error)) from error


def _run(
    folder: Path,
    bootstrap: str | None,
    spark: SparkOptions,
    *,
    as_json: bool,
    restarts: int = 0,
    part: str = "",
    **options: Any,
) -> None:
    """Run the pipeline in a process of its own, and print how it ended."""
    from ottla.spark.pipeline.broker import broker
    from ottla.spark.pipeline.folder import PipelineError, RunSettings, end_status, error_in_log, read_status, start
    from ottla.spark.session import SparkSetupError, check_setup

    pipeline = find(folder, part=part)
    properties = spark.properties
    try:
        check_setup()
    except SparkSetupError as error:
        raise fail(str(error)) from error
    code, interrupted = 0, False
    try:
        with _signals_interrupt(), broker(bootstrap, pipeline.state / "broker") as (address, started):
            _create_topics(pipeline.folder / "topics.txt", address)
            if not as_json:
                echo(f"{pipeline.name} on {address}" + (" (started for this run)" if started else ""))
            for remaining in reversed(range(restarts + 1)):
                process = start(pipeline, RunSettings(address, spark.master, properties, **options))
                try:
                    with _ended(process):
                        _watch(pipeline, process, quiet=as_json)
                except KeyboardInterrupt:
                    interrupted = True
                    end_status(pipeline)
                    break
                code = process.returncode
                # Below zero, or 128 and more: a signal ended it.
                if code <= 0 or code >= _SIGNALLED or not remaining:
                    break
                echo(f"ottla: the run failed and is started again: {error_in_log(pipeline)}", err=True)
    except PipelineError as error:
        raise fail(str(error), code=UNREACHABLE) from error
    result = read_status(pipeline)
    failed = code != 0 and not interrupted
    if as_json:
        print_json(result)
    elif not failed and options.get("dry"):
        for plan in result.get("plans", []):
            echo(f"{plan['name'] or '(no name)'} -> {plan['format']}: {plan['schema']}")
        echo("the pipeline is valid; nothing was run")
    elif result["queries"]:
        print_table(COLUMNS, status_rows(result), right=COLUMNS[2:])
    elif not failed:
        for event in result.get("events", []):
            echo(event)
    if failed:
        problem = result.get("problem") or error_in_log(pipeline)
        raise fail(f"{problem} (more in {pipeline.log_file})")
    if interrupted and not as_json:
        echo(f"stopped; `ottla pipeline run {folder}` continues", err=True)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C: the runner, in a session of its own, does not get them."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave no runner behind. On Ctrl-C ask it to stop its queries, and wait; a second Ctrl-C kills it."""
    try:
        yield
    except KeyboardInterrupt:
        echo("ottla: stopping the queries; Ctrl-C again kills them", err=True)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            process.kill()
        raise
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _watch(pipeline: Any, process: subprocess.Popen[bytes], *, quiet: bool) -> None:
    """Wait for the runner; on a terminal show rows per second and lag meanwhile."""
    from ottla.spark.pipeline.folder import read_status

    if quiet or not sys.stdout.isatty():
        process.wait()
        return
    from rich.live import Live
    from rich.table import Table

    with Live(console=console(), refresh_per_second=4, transient=True) as live:
        while process.poll() is None:
            current = read_status(pipeline)
            table = Table(*COLUMNS, box=None, title=f"{pipeline.name}: {current['state']}", title_justify="left")
            for row in status_rows(current):
                table.add_row(*["-" if cell is None else str(cell) for cell in row])
            live.update(table)
            time.sleep(POLL_SECONDS)


def _create_topics(file: Path, bootstrap: str) -> None:
    """Create the missing topics of a pipeline's topics.txt."""
    from ottla.client import Client
    from ottla.client.topics import create_topic
    from ottla.protocol.errors import ErrorCode, KafkaError
    from ottla.spark.pipeline.folder import PipelineError, parse_topics

    try:
        topics = parse_topics(file)
    except PipelineError as error:
        raise usage(str(error)) from error
    if not topics:
        return
    with Client(bootstrap) as client:
        for name, partitions in topics:
            try:
                create_topic(client, name, partitions=partitions or -1, replication_factor=-1)
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise fail(str(error)) from error


@contextmanager
def _metrics_page(pipeline: Any, address: str | None, *, quiet: bool) -> Iterator[None]:
    """Serve the metrics of the pipeline's status file over HTTP, in a thread of its own."""
    if address is None:
        yield
        return
    from ottla.server.web_options import parse_web_options
    from ottla.spark.pipeline.folder import read_status

    try:
        from ottla.spark.pipeline.metrics import render

        server = parse_web_options("--metrics", address).server()
        url = server.bind()
    except ImportError as error:
        raise usage(f"--metrics requires prometheus-client: pip install 'ottla[metrics]' ({error})") from error
    except (ValueError, OSError) as error:
        raise usage(str(error)) from error
    from ottla.server.web import METRICS_PATH, metrics_routes

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    routes = metrics_routes(lambda: render(pipeline.name, read_status(pipeline)))
    asyncio.run_coroutine_threadsafe(server.serve(routes), loop).result()
    if not quiet:
        echo(f"metrics: {url}{METRICS_PATH}")
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
