"""`ottla log repair`: rebuild derived files from the log; change records only by explicit options."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.log import paths
from ottla.cli.log.verify import PROGRESS_BYTES, print_findings, totals
from ottla.cli.options.commands import format_examples
from ottla.cli.terminal.output import FAILED, fail, print_json
from ottla.cli.terminal.progress import byte_progress
from ottla.cluster.metadata.repair import MetadataChoice, repair_metadata
from ottla.storage.check.record_removal import RecordLocation, remove_record
from ottla.storage.check.repair import RepairReport, Step
from ottla.storage.check.repair import repair as repair_files
from ottla.storage.check.verify import bytes_to_check
from ottla.storage.environment import StorageEnvironment
from ottla.storage.names import LOCK_FILE
from ottla.world.clock import VirtualClock
from ottla.world.disk_real import RealDisk
from ottla.world.random import SystemRandom

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES = format_examples(
    "ottla log repair ./data --dry-run",
    "ottla log repair ./data",
    "ottla log repair ./data/orders-0 --truncate",
    "ottla log repair ./data --metadata skip",
    "ottla log repair ./data --drop-record __consumer_offsets-3@17",
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("repair", epilog=EXAMPLES)(repair)


def repair(
    path: Annotated[str, typer.Argument(help="A log directory, or a partition's folder.")],
    truncate: Annotated[
        bool,
        typer.Option(
            "--truncate", help="Truncate a damaged log before its first invalid batch; later records are lost."
        ),
    ] = False,
    drop_record: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC-PARTITION@OFFSET",
            help="Remove this record, or the damaged batch that holds this offset; repeatable. Other offsets stay.",
        ),
    ] = None,
    metadata: Annotated[
        MetadataChoice | None,
        typer.Option(
            "--metadata",
            help="Repair a damaged metadata log: `skip` replaces the unreadable records, `truncate` drops everything "
            "from the first of them on.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Show the changes without making them.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one object per step, then one with totals.")
    ] = False,
) -> None:
    """Rebuild wrong or missing indexes, snapshots and checkpoints.

    Records change only with --truncate, which ends a log before its first damaged batch as Kafka's recovery does, with
    --metadata, or with --drop-record, which removes single records, such as one that keeps a coordinator from loading.
    The broker's log names it. The record's content is lost. Copy the directory first. A directory in use by a running
    broker is refused.

    Exit code 1 means that something is still wrong.
    """
    full = paths.directory(path)
    root = paths.root_of(full)
    disk = RealDisk()
    holder = paths.lock_holder(root)
    if holder is not None:
        raise fail(f"{root} is in use by process {holder}; stop that broker first")
    lock = None
    try:
        if not dry_run:
            lock = disk.lock(f"{root}/{LOCK_FILE}")
        env = StorageEnvironment(disk, VirtualClock(time.time_ns() // 1_000_000), SystemRandom())
        with byte_progress("repairing", 2 * bytes_to_check(disk, full), at_least=PROGRESS_BYTES) as progress:
            dropped = [_drop(env, root, record, dry_run=dry_run) for record in _parse_locations(drop_record or ())]
            metadata_steps = repair_metadata(env, root, metadata, dry_run=dry_run)
            report = repair_files(env, full, truncate=truncate, dry_run=dry_run, progress=progress)
            report.steps[:0] = metadata_steps
            report.steps[:0] = dropped
    except BlockingIOError as error:
        raise fail(f"{root} is in use by a running broker; stop it first") from error
    except (LookupError, OSError, ValueError) as error:
        raise fail(error.args[0] if isinstance(error, LookupError) else str(error)) from error
    finally:
        if lock is not None:
            lock.release()
    if as_json:
        _print_json(report, dry_run)
    else:
        _print(report, full, dry_run)
    still_wrong = report.after.wrong if report.after is not None else report.left
    if still_wrong:
        raise typer.Exit(FAILED)


def _parse_locations(texts: Sequence[str]) -> list[RecordLocation]:
    return [RecordLocation.parse(text) for text in texts]


def _drop(env: StorageEnvironment, root: str, record: RecordLocation, *, dry_run: bool) -> Step:
    return Step(*remove_record(env, root, record, dry_run=dry_run))


def _print_json(report: RepairReport, dry_run: bool) -> None:
    for step in report.steps:
        print_json({**asdict(step), "done": not dry_run})
    for finding in report.left:
        print_json({**asdict(finding), "left": True})
    after = report.after or report.before
    print_json({**totals(after), "steps": len(report.steps), "left": len(report.left), "dry_run": dry_run})


def _print(report: RepairReport, root: str, dry_run: bool) -> None:
    for step in report.steps:
        typer.echo(f"{'would' if dry_run else 'done '} {step.path.removeprefix(root + '/')}: {step.action}")
    print_findings(report.left, root)
    if not report.steps and not report.left:
        typer.echo(f"{root}: nothing to repair")
    if report.needs_truncate:
        typer.echo("damaged records stay; --truncate ends the log before the first of them")
    if report.needs_metadata_choice:
        typer.echo("the metadata log stays damaged; --metadata skip or --metadata truncate repairs it")
    if report.after is not None:
        wrong = len(report.after.wrong)
        typer.echo(f"{root}: {len(report.steps)} repairs, " + (f"{wrong} still wrong" if wrong else "all is right now"))
