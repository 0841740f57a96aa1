"""`ottla log verify`: check every file of a log directory."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.log import paths
from ottla.cli.options.commands import format_examples
from ottla.cli.terminal.output import FAILED, console, fail, print_json, until_pipe_closes
from ottla.cli.terminal.progress import byte_progress
from ottla.quantities import format_size
from ottla.storage.check.verify import bytes_to_check
from ottla.storage.check.verify import verify as verify_files
from ottla.world.disk_real import RealDisk

if TYPE_CHECKING:
    from ottla.storage.check.verify import Finding, VerifyReport

PROGRESS_BYTES = 64 << 20
EXAMPLES = format_examples(
    "ottla log verify /var/lib/kafka/data",
    "ottla log verify ./data/orders-0 --deep",
    "ottla log verify ./data --json | jq 'select(.wrong)'",
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify", epilog=EXAMPLES)(verify)


def verify(
    path: Annotated[str, typer.Argument(help="A log directory, or a partition's folder.")],
    deep: Annotated[bool, typer.Option("--deep", help="Decompress every batch and check its records too.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one object per finding, then one with totals.")
    ] = False,
) -> None:
    """Check logs, indexes, snapshots, epochs and checkpoints.

    Exit code 1 means that something is wrong; each finding names file, byte and offset. Nothing is changed: see
    `ottla log repair`.
    """
    full = paths.directory(path)
    disk = RealDisk()
    holder = paths.lock_holder(paths.root_of(full))
    try:
        with byte_progress("verifying", bytes_to_check(disk, full), at_least=PROGRESS_BYTES) as progress:
            report = verify_files(disk, full, deep=deep, progress=progress)
    except OSError as error:
        raise fail(str(error)) from error
    with until_pipe_closes():  # the exit code stays the verdict
        if as_json:
            for finding in report.findings:
                print_json(asdict(finding))
            print_json(totals(report) | {"in_use_by": holder})
        else:
            print_findings(report.findings, full)
            _print_totals(report, full, holder)
    if report.wrong:
        raise typer.Exit(FAILED)


def totals(report: VerifyReport) -> dict[str, int]:
    """Return the counts of a verification."""
    return {
        "partitions": report.partitions,
        "segments": report.segments,
        "batches": report.batches,
        "bytes": report.bytes,
        "wrong": len(report.wrong),
    }


def print_findings(findings: list[Finding], root: str) -> None:
    """Print one line per finding."""
    from rich.text import Text

    out = console()
    for finding in findings:
        line = Text("WRONG " if finding.wrong else "note  ", style="bold red" if finding.wrong else "dim")
        line.append(finding.path.removeprefix(root + "/"), style="default")
        if finding.position is not None:
            line.append(f" byte {finding.position}", style="default")
        if finding.offset is not None:
            line.append(f" offset {finding.offset}", style="default")
        line.append(f": {finding.reason}", style="default")
        out.print(line)


def _print_totals(report: VerifyReport, path: str, holder: int | None) -> None:
    looked_at = f"{report.partitions} partitions, {report.segments} segments, {report.batches} batches"
    verdict = f"{len(report.wrong)} wrong" if report.wrong else "all is right"
    typer.echo(f"{path}: {looked_at}, {format_size(report.bytes)}: {verdict}")
    if holder is not None:
        typer.echo(f"process {holder} has the directory open: batches that it is writing may look cut off")
