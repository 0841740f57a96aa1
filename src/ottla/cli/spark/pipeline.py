"""`ottla pipeline`: create, run, check and test a Spark pipeline on topics."""

import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NoReturn

import typer

from ottla.cli.options.commands import add_command, add_group
from ottla.cli.spark.session import SparkOptions
from ottla.cli.terminal.output import UNREACHABLE, console, echo, fail, print_json, print_table, usage

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
_NO_TESTS = 5
_NOT_PASSED = {"failure": "failed", "error": "error", "skipped": "skipped"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = add_group(app, "pipeline")
    add_command(group, "init", init, "ottla pipeline init shop", "ottla pipeline init shop --declarative")
    add_command(group, "run", run, "ottla pipeline run shop", "ottla pipeline run shop --once -b kafka:9092")
    add_command(group, "dry-run", dry_run, "ottla pipeline dry-run shop")
    add_command(group, "test", run_tests, "ottla pipeline test shop", "ottla pipeline test shop -- -k totals")
    add_command(group, "status", status, "ottla pipeline status shop --json")


def init(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="Folder to create.")],
    *,
    declarative: Annotated[
        bool, typer.Option("--declarative", help="Create a Spark Declarative Pipelines spec, not a PySpark file.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a pipeline that runs, with a test."""
    from ottla.spark.pipeline.folder import PipelineError
    from ottla.spark.pipeline.templates import make_pipeline

    try:
        created = make_pipeline(name, declarative=declarative)
    except PipelineError as error:
        raise usage(str(error)) from error
    if as_json:
        print_json({"pipeline": str(name), "files": [str(path) for path in created]})
        return
    for path in created:
        echo(str(path))
    echo(f"next: ottla pipeline run {name}" + ("" if declarative else f", ottla pipeline test {name}"))


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
    as_json: AsJson = False,
    spark: SparkOptions,
) -> None:
    """Run a pipeline until its queries end, or until Ctrl-C.

    The next run continues where this one ends. Ctrl-C stops the queries; the exit code is 0 then, and `ottla pipeline
    status` shows "stopped".
    """
    if full_refresh and not _find(folder).declarative:
        raise usage("--full-refresh requires a declarative pipeline; for this one, delete .ottla/checkpoints")
    _run(folder, bootstrap, spark, as_json=as_json, restarts=restarts, once=once, full_refresh=full_refresh)


def dry_run(
    folder: Folder = Path(), *, bootstrap: Bootstrap = None, as_json: AsJson = False, spark: SparkOptions
) -> None:
    """Check a pipeline without running it.

    Loads it, connects to its sources and sinks, and lets Spark analyze its plans.
    """
    _run(folder, bootstrap, spark, as_json=as_json, dry=True)


def run_tests(
    folder: Folder = Path(),
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PYTEST ARGUMENT]...", help="Arguments of pytest; those with a dash after `--`."),
    ] = None,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one object per test; pytest prints to standard error.")
    ] = False,
) -> None:
    """Run the pipeline's tests with pytest and the fixture spark_kafka."""
    from ottla.spark.session import SparkSetupError, check_setup

    pipeline = _find(folder)
    if find_spec("pytest") is None:
        raise fail("pytest is not installed: pip install pytest")
    try:
        check_setup()
    except SparkSetupError as error:
        echo(f"ottla: tests that use spark_kafka are skipped: {error}", err=True)
    command = [sys.executable, "-m", "pytest", "-p", "ottla.testing.spark", "-p", "no:cacheprovider"]
    command += ["--rootdir", str(pipeline.folder), *(arguments or [])]
    with TemporaryDirectory() as report_folder:
        report = Path(report_folder) / "report.xml"
        if as_json:
            command += ["--junit-xml", str(report)]
        output = sys.__stderr__ if as_json else None
        code = subprocess.run(command, cwd=pipeline.folder, check=False, stdout=output).returncode
        for result in _results(report) if report.is_file() else ():
            print_json(result)
    if code == _NO_TESTS:
        raise fail(f"{folder} has no tests (test_*.py)")
    raise typer.Exit(code)


def _results(report: Path) -> Iterator[dict[str, Any]]:
    """Return the result of each test in pytest's report."""
    for case in ElementTree.parse(report).iter("testcase"):
        problem = next((part for part in case if part.tag in _NOT_PASSED), None)
        yield {
            "test": f"{case.get('classname')}::{case.get('name')}",
            "result": "passed" if problem is None else _NOT_PASSED[problem.tag],
            "seconds": float(case.get("time", 0)),
            "problem": None if problem is None else problem.get("message"),
        }


def status(folder: Folder = Path(), *, as_json: AsJson = False) -> None:
    """Show the state of a pipeline, or how its last run ended."""
    from ottla.spark.pipeline.folder import read_status

    current = read_status(_find(folder))
    if as_json:
        print_json(current)
        return
    echo(f"{folder}: {current['state']}" + (f": {current['problem']}" if current.get("problem") else ""))
    if current["queries"]:
        print_table(_COLUMNS, _rows(current), right=_COLUMNS[2:])


_COLUMNS = ("QUERY", "SOURCE", "BATCH", "ROWS", "ROWS/S", "LAG")


def _rows(current: dict[str, Any]) -> Iterator[tuple[object, ...]]:
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


def _find(folder: Path) -> Any:
    from ottla.spark.pipeline.folder import PipelineError, find_pipeline

    try:
        return find_pipeline(folder)
    except PipelineError as error:
        raise usage(str(error)) from error


def _run(
    folder: Path,
    bootstrap: str | None,
    spark: SparkOptions,
    *,
    as_json: bool,
    restarts: int = 0,
    **options: bool,
) -> None:
    """Run the pipeline in a process of its own, and print how it ended."""
    from ottla.spark.pipeline.broker import broker
    from ottla.spark.pipeline.folder import PipelineError, RunSettings, end_status, error_in_log, read_status, start
    from ottla.spark.session import SparkSetupError, check_setup

    pipeline = _find(folder)
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
        print_table(_COLUMNS, _rows(result), right=_COLUMNS[2:])
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
            table = Table(*_COLUMNS, box=None, title=f"{pipeline.name}: {current['state']}", title_justify="left")
            for row in _rows(current):
                table.add_row(*["-" if cell is None else str(cell) for cell in row])
            live.update(table)
            time.sleep(POLL_SECONDS)


def _create_topics(file: Path, bootstrap: str) -> None:
    """Create the missing topics of a pipeline's topics.txt: one `name:partitions` per line, # begins a comment."""
    if not file.is_file():
        return
    from ottla.client import Client
    from ottla.client.topics import create_topic
    from ottla.protocol.errors import ErrorCode, KafkaError

    with Client(bootstrap) as client:
        for line in file.read_text().splitlines():
            name, _, partitions = line.partition("#")[0].strip().partition(":")
            if not name:
                continue
            if partitions and not partitions.isdigit():
                raise usage(f"{file}: {line!r}: write name:partitions, such as orders:3")
            try:
                create_topic(client, name, partitions=int(partitions or -1), replication_factor=-1)
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise fail(str(error)) from error
