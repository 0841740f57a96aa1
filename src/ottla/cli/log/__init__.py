"""`ottla log`: looks into any Kafka log directory, ottla's or Apache Kafka's, and mends one."""

from __future__ import annotations

import typer

from ottla.cli.log import dump, ls, repair, verify


def register(app: typer.Typer) -> None:
    """Add the commands."""
    log = typer.Typer(
        name="log",
        help="Look into a Kafka log directory, and mend it. Nothing but `repair` writes.",
        no_args_is_help=True,
    )
    for module in (ls, dump, verify, repair):
        module.register(log)
    app.add_typer(log)
