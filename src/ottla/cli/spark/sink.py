"""`ottla sink`: list the exactly-once sinks of Spark queries on a cluster, and retire them."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ottla.cli.options.commands import add_command, add_group
from ottla.cli.options.connect import AsJson, ClusterOptions
from ottla.cli.terminal.output import NOT_FOUND, confirm, fail, print_result, print_rows, usage, warn
from ottla.client import Client
from ottla.client.producer import Producer
from ottla.client.transactions import describe_transactions
from ottla.quantities import format_time
from ottla.spark.sink.bookkeeping import SinkQuery, delete_bookkeeping, list_queries, read_decision
from ottla.spark.sink.commit import BatchCommit, RowsRemovedError
from ottla.spark.sink.decision import BookkeepingError, Decision, driver_id


def register(app: typer.Typer) -> None:
    """Add the commands."""
    sink = add_group(app, "sink")
    add_command(sink, "list", list_, "ottla sink list", "ottla sink list --json")
    add_command(
        sink,
        "retire",
        retire,
        "ottla sink retire 0d1c2f5e-7a53-4e0c-9d0e-3d6f0a8b9c11 --yes",
        "ottla sink retire --checkpoint ./checkpoints/orders",
    )


def list_(*, as_json: AsJson = False, cluster: ClusterOptions) -> None:
    """List the queries that write exactly once.

    Shows the last decided batch and the open transactions of each. A query that is `in doubt` stopped while it
    committed a batch: its next start, or `ottla sink retire`, makes the rest of that batch visible.
    """
    with cluster.connect() as client:
        rows = [_row(client, query) for _, query in sorted(list_queries(client).items())]
    print_rows(
        as_json,
        rows,
        ("QUERY", "STATE", "BATCH", "ROWS", "DECIDED", "TOPICS", "TRANSACTIONAL IDS", "OPEN"),
        lambda row: (
            row["query"],
            row["state"],
            "-" if row["batch"] is None else row["batch"],
            "-" if row["rows"] is None else row["rows"],
            row["decided"] or "-",
            ",".join(row["topics"]) or "-",
            row["transactional_ids"],
            row["open"],
        ),
        right=("BATCH", "ROWS", "TRANSACTIONAL IDS", "OPEN"),
    )


def retire(
    queries: Annotated[
        list[str] | None, typer.Argument(metavar="[QUERY]...", help="Query ids, as `ottla sink list` shows them.")
    ] = None,
    *,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(
            "--checkpoint",
            metavar="FOLDER",
            help="Retire the query of this checkpoint; repeatable.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Finish and forget queries that write exactly once.

    Finishes the last batch of each, aborts its open transactions and deletes its bookkeeping. Do so when a checkpoint
    is deleted or not used any more. A query that is started again from a retired checkpoint may
    write its last batch a second time. Brokers remove the transactional ids after transactional.id.expiration.ms.
    """
    names = [*(queries or ()), *(_query_id(folder) for folder in checkpoint or ())]
    if not names:
        raise usage("sink retire: give query ids, or --checkpoint FOLDER")
    with cluster.connect() as client:
        existing = list_queries(client)
        chosen: dict[str, SinkQuery] = {}
        for name in names:
            matching = {key: query for key, query in existing.items() if key == name or key.startswith(f"{name}@")}
            if not matching:
                raise fail(f"no exactly-once sink of query {name} is on this cluster", code=NOT_FOUND)
            chosen.update(matching)
        confirm(
            f"Retire {', '.join(chosen)}? A query that still runs fails, and may write its last batch twice.", yes=yes
        )
        for name, query in chosen.items():
            try:
                commit = BatchCommit(cluster.connect, lambda client, key: Producer(client, transactional_id=key), name)
                decision = commit.finish_last() if driver_id(name) in query.groups else None
            except (RowsRemovedError, BookkeepingError) as error:
                warn(str(error))
                decision = None
            delete_bookkeeping(client, query)
            row = {
                "query": name,
                "batch": None if decision is None else decision.batch,
                "groups": len(query.groups),
                "transactional_ids": len(query.transactional_ids),
                "aborted": len(query.ongoing),
            }
            print_result(
                as_json,
                row,
                f"retired {name}: {row['groups']} groups deleted, {row['transactional_ids']} transactional ids fenced",
            )


def _row(client: Client, query: SinkQuery) -> dict[str, Any]:
    decision = None
    try:
        decision = read_decision(client, query.query) if driver_id(query.query) in query.groups else None
        state = _state(client, query, decision)
    except BookkeepingError as error:
        warn(str(error))
        state = "unreadable"
    return {
        "query": query.query,
        "state": state,
        "batch": None if decision is None else decision.batch,
        "rows": None if decision is None else decision.rows,
        "decided": None if decision is None else format_time(decision.decided_ms),
        "topics": [] if decision is None else list(decision.topics),
        "transactional_ids": len(query.transactional_ids),
        "open": len(query.ongoing),
    }


def _state(client: Client, query: SinkQuery, decision: Decision | None) -> str:
    """Return `in doubt` if a transaction of the decision is open, or was aborted; else whether a batch is written."""
    if decision is None:
        return "old version" if query.task_groups else "writing" if query.ongoing else "idle"
    states = describe_transactions(client, [entry.transactional_id for entry in decision.transactions])
    for entry in decision.transactions:
        state = states.get(entry.transactional_id)
        if state is None or state.producer_id != entry.producer_id:
            continue  # expired, or used for later batches
        open_now = state.transaction_state == "Ongoing" and state.producer_epoch == entry.epoch
        # The coordinator bumps the epoch when a transaction times out.
        timed_out = state.transaction_state == "CompleteAbort" and state.producer_epoch == entry.epoch + 1
        if open_now or timed_out:
            return "in doubt"
    return "writing" if query.ongoing else "idle"


def _query_id(folder: Path) -> str:
    """Return the query id in a checkpoint folder of Spark."""
    path = folder / "metadata"
    try:
        return str(json.loads(path.read_text())["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise usage(f"sink retire: {folder} is not a checkpoint of a streaming query: {path}: {error}") from None
