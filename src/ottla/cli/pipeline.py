"""`ottla pipeline`: make, run, check, test and watch a Spark pipeline on topics."""

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
from typing import Annotated, Any

import typer

from ottla.cli.connect import UNREACHABLE
from ottla.cli.output import console, examples, fail, pairs, print_json, print_table, usage

Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The pipeline's folder, or its file.")]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar="OTTLA_BOOTSTRAP",
        metavar="HOST:PORT",
        help="The brokers; else localhost:9092, else one is started for the length of the run.",
        show_default=False,
    ),
]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="The Spark master; else all cores of this machine.")
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; may be repeated.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_POLL = 0.3
_SIGNALLED = 128
_NOT_PASSED = {"failure": "failed", "error": "error", "skipped": "skipped"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(name="pipeline", help="Spark pipelines on topics: a folder, one command.", no_args_is_help=True)
    group.command("init", epilog=examples("ottla pipeline init shop", "ottla pipeline init shop --declarative"))(init)
    group.command("run", epilog=examples("ottla pipeline run shop", "ottla pipeline run shop --once -b kafka:9092"))(
        run
    )
    group.command("dry-run", epilog=examples("ottla pipeline dry-run shop"))(dry_run)
    group.command("test", epilog=examples("ottla pipeline test shop", "ottla pipeline test shop -- -k totals"))(
        run_tests
    )
    group.command("status", epilog=examples("ottla pipeline status shop --json"))(status)
    app.add_typer(group)


def init(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to make.")],
    declarative: Annotated[
        bool, typer.Option("--declarative", help="A Spark Declarative Pipelines spec instead of a PySpark file.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a pipeline that runs, with a test."""
    from ottla.spark.pipeline.folder import PipelineError
    from ottla.spark.pipeline.templates import make_pipeline

    try:
        made = make_pipeline(name, declarative=declarative)
    except PipelineError as error:
        raise usage(str(error)) from error
    if as_json:
        print_json({"pipeline": str(name), "files": [str(path) for path in made]})
        return
    for path in made:
        typer.echo(str(path))
    typer.echo(f"next: ottla pipeline run {name}" + ("" if declarative else f", ottla pipeline test {name}"))


def run(
    folder: Folder = Path(),
    bootstrap: Bootstrap = None,
    master: Master = None,
    conf: Conf = None,
    once: Annotated[bool, typer.Option("--once", help="Take what is there, then stop.")] = False,
    full_refresh: Annotated[bool, typer.Option("--full-refresh", help="Declarative: compute all tables anew.")] = False,
    restarts: Annotated[
        int, typer.Option("--restarts", metavar="N", min=0, help="How often to start it again when it fails.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline until its queries end, or until Ctrl-C; a second run goes on where the first one ended."""
    options = {"once": once, "full_refresh": full_refresh}
    _go(folder, bootstrap, master, conf, options, as_json=as_json, restarts=restarts)


def dry_run(
    folder: Folder = Path(),
    bootstrap: Bootstrap = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Check a pipeline without running it: it loads, its sources and sinks answer, its plans are accepted."""
    _go(folder, bootstrap, master, conf, {"dry": True}, as_json=as_json)


def run_tests(
    folder: Folder = Path(),
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PYTEST ARGUMENT]...", help="For pytest; those with a dash after `--`."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one object per test; what pytest says goes to standard error.")
    ] = False,
) -> None:
    """Run the pipeline's tests with pytest, with the fixture `spark_kafka`."""
    from ottla.spark.session import SparkSetupError, check_setup

    pipeline = _find(folder)
    if find_spec("pytest") is None:
        raise fail("tests of pipelines need pytest: pip install pytest")
    try:
        check_setup()
    except SparkSetupError as error:
        typer.echo(f"ottla: tests that use spark_kafka are skipped: {error}", err=True)
    command = [sys.executable, "-m", "pytest", "-p", "ottla.testing.spark", "-p", "no:cacheprovider"]
    command += ["--rootdir", str(pipeline.folder), *(arguments or [])]
    with TemporaryDirectory() as folder_of_report:
        report = Path(folder_of_report) / "report.xml"
        if as_json:
            command += ["--junit-xml", str(report)]
        said = sys.__stderr__ if as_json else None
        code = subprocess.run(command, cwd=pipeline.folder, check=False, stdout=said).returncode
        for result in _results(report) if report.is_file() else ():
            print_json(result)
    if code == 5:
        raise fail(f"{folder} has no tests (test_*.py)")
    raise typer.Exit(code)


def _results(report: Path) -> Iterator[dict[str, Any]]:
    """What pytest wrote of each test."""
    for case in ElementTree.parse(report).iter("testcase"):
        problem = next((part for part in case if part.tag in _NOT_PASSED), None)
        yield {
            "test": f"{case.get('classname')}::{case.get('name')}",
            "result": "passed" if problem is None else _NOT_PASSED[problem.tag],
            "seconds": float(case.get("time", 0)),
            "problem": None if problem is None else problem.get("message"),
        }


def status(folder: Folder = Path(), as_json: AsJson = False) -> None:
    """How a pipeline is doing, or how its last run ended."""
    from ottla.spark.pipeline.folder import read_status

    found = read_status(_find(folder))
    if as_json:
        print_json(found)
        return
    typer.echo(f"{folder}: {found['state']}" + (f": {found['problem']}" if found.get("problem") else ""))
    if found["queries"]:
        print_table(_COLUMNS, _rows(found), right=_COLUMNS[2:])


_COLUMNS = ("query", "source", "batch", "rows", "rows/s", "lag")


def _rows(found: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for query in found["queries"]:
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


def _go(
    folder: Path,
    bootstrap: str | None,
    master: str | None,
    conf: list[str] | None,
    options: dict[str, bool],
    *,
    as_json: bool,
    restarts: int = 0,
) -> None:
    from ottla.spark.pipeline.broker import broker
    from ottla.spark.pipeline.folder import PipelineError, RunSettings, error_in_log, read_status, start
    from ottla.spark.session import SparkSetupError, check_setup

    pipeline = _find(folder)
    config = pairs("--conf", conf)
    try:
        check_setup()
    except SparkSetupError as error:
        raise fail(str(error)) from error
    try:
        with broker(bootstrap, pipeline.state / "broker") as (address, ours):
            _make_topics(pipeline.folder / "topics.txt", address)
            if not as_json:
                typer.echo(f"{pipeline.name} on {address}" + (" (started for this run)" if ours else ""))
            for left in reversed(range(restarts + 1)):
                process = start(pipeline, RunSettings(address, master, config, **options))
                with _ended(process):
                    _watch(pipeline, process, quiet=as_json)
                code = process.returncode
                # Less than zero: a signal ended it, such as Ctrl-C.
                if code <= 0 or code >= _SIGNALLED or not left:
                    break
                typer.echo(f"ottla: it failed and is started again: {error_in_log(pipeline)}", err=True)
    except PipelineError as error:
        raise fail(str(error), code=UNREACHABLE) from error
    found = read_status(pipeline)
    if as_json:
        print_json(found)
    elif code == 0 and options.get("dry"):
        for plan in found.get("plans", []):
            typer.echo(f"{plan['name'] or '(no name)'} -> {plan['format']}: {plan['schema']}")
        typer.echo("nothing was run; the pipeline is fine")
    elif found["queries"]:
        print_table(_COLUMNS, _rows(found), right=_COLUMNS[2:])
    elif code == 0:
        for event in found.get("events", []):
            typer.echo(event)
    if code:
        problem = found.get("problem") or error_in_log(pipeline)
        raise fail(f"{problem} (more in {pipeline.log_file})")


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Never leave the runner behind: Ctrl-C and errors end it too."""
    try:
        yield
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _watch(pipeline: Any, process: subprocess.Popen[bytes], *, quiet: bool) -> None:
    """Show rows per second and lag while it runs, if somebody looks."""
    from ottla.spark.pipeline.folder import read_status

    if quiet or not sys.stdout.isatty():
        process.wait()
        return
    from rich.live import Live
    from rich.table import Table

    with Live(console=console(), refresh_per_second=4, transient=True) as live:
        while process.poll() is None:
            found = read_status(pipeline)
            table = Table(*_COLUMNS, box=None, title=f"{pipeline.name}: {found['state']}", title_justify="left")
            for row in _rows(found):
                table.add_row(*["-" if cell is None else str(cell) for cell in row])
            live.update(table)
            time.sleep(_POLL)


def _make_topics(file: Path, bootstrap: str) -> None:
    """Create the topics that a pipeline lists (`name:partitions`, one per line), where they are missing."""
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
