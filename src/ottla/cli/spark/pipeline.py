"""`ottla pipeline`: create, run, check, test and observe a Spark pipeline on topics."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from ottla.cli.options.commands import add_command, add_group
from ottla.cli.spark.pipeline_run import COLUMNS, AsJson, Folder, backfill, dry_run, find, run, status_rows
from ottla.cli.spark.redrive import redrive
from ottla.cli.terminal.output import FAILED, NOT_FOUND, echo, fail, print_json, print_table, refuse_together, usage

_NO_TESTS = 5
_NOT_PASSED = {"failure": "failed", "error": "error", "skipped": "skipped"}
_FAILED_STATES = ("failed", "died")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = add_group(app, "pipeline")
    add_command(group, "init", init, "ottla pipeline init shop", "ottla pipeline init shop --template sql")
    add_command(group, "run", run, "ottla pipeline run shop", "ottla pipeline run shop --once -b kafka:9092")
    add_command(group, "dry-run", dry_run, "ottla pipeline dry-run shop")
    add_command(group, "backfill", backfill, "ottla pipeline backfill shop --from 2026-11-01 --until 2026-11-02")
    add_command(group, "redrive", redrive, "ottla pipeline redrive orders-dead --dry-run")
    add_command(group, "test", run_tests, "ottla pipeline test shop", "ottla pipeline test shop -- -k totals")
    add_command(
        group, "status", status, "ottla pipeline status shop --json", "ottla pipeline status shop --max-lag 1000"
    )


def init(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="Folder to create.")],
    *,
    template: Annotated[
        str,
        typer.Option(
            "--template",
            metavar="TEMPLATE",
            help="Create a pipeline in python, in sql (Spark Declarative Pipelines, no Python), a streaming join, or a "
            "declarative one in Python.",
        ),
    ] = "python",
    declarative: Annotated[
        bool,
        typer.Option("--declarative", help="Use --template declarative."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a pipeline that runs, with a test."""
    from ottla.spark.pipeline.folder import PipelineError
    from ottla.spark.pipeline.templates import make_pipeline

    try:
        created = make_pipeline(name, "declarative" if declarative else template)
    except PipelineError as error:
        raise usage(str(error)) from error
    if as_json:
        print_json({"pipeline": str(name), "files": [str(path) for path in created]})
        return
    for path in created:
        echo(str(path))
    tested = any(path.name.startswith("test_") for path in created)
    echo(f"next: ottla pipeline run {name}" + (f", ottla pipeline test {name}" if tested else ""))


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
    """Run the pipeline's tests with pytest and spark_kafka."""
    from ottla.spark.session import SparkSetupError, check_setup

    pipeline = find(folder)
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


def status(
    folder: Folder = Path(),
    *,
    max_lag: Annotated[
        int | None,
        typer.Option("--max-lag", metavar="N", min=0, help="Exit with 1 if a source has more unread records."),
    ] = None,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print metrics in Prometheus' text format, as `run --metrics` serves.")
    ] = False,
    backfill_run: Annotated[bool, typer.Option("--backfill", help="Show the last backfill, not the stream.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the state of a pipeline, or how its last run ended.

    Exit codes: 0 running, finished or stopped; 1 failed or died, or a lag above --max-lag; 4 never run.
    """
    from ottla.spark.pipeline.folder import read_status

    pipeline = find(folder, part="backfill" if backfill_run else "")
    current = read_status(pipeline)
    if prometheus:
        refuse_together("--prometheus", ("--json", as_json))
        _print_metrics(pipeline.name, current)
    elif as_json:
        print_json(current)
    else:
        echo(f"{folder}: {current['state']}" + (f": {current['problem']}" if current.get("problem") else ""))
        if current["queries"]:
            print_table(COLUMNS, status_rows(current), right=COLUMNS[2:])
        _print_expectations(current)
    if current["state"] == "never run":
        raise typer.Exit(NOT_FOUND)
    if current["state"] in _FAILED_STATES:
        raise typer.Exit(FAILED)
    lags = [source["lag"] or 0 for query in current["queries"] for source in query["sources"]]
    if max_lag is not None and max(lags, default=0) > max_lag:
        raise fail(f"a source has {max(lags)} unread records, more than {max_lag}")


def _print_metrics(name: str, current: dict[str, Any]) -> None:
    try:
        from ottla.spark.pipeline.metrics import render
    except ImportError as error:
        raise fail(f"--prometheus requires prometheus-client: pip install 'ottla[metrics]' ({error})") from error
    typer.echo(render(name, current).decode(), nl=False)


def _print_expectations(current: dict[str, Any]) -> None:
    rows = [
        (query["name"], check, name, violations, counts["rows"])
        for query in current["queries"]
        for check, counts in query.get("expectations", {}).items()
        for name, violations in counts.items()
        if name != "rows"
    ]
    if rows:
        columns = ("QUERY", "CHECK", "EXPECTATION", "VIOLATIONS", "ROWS")
        print_table(columns, rows, right=columns[3:])
