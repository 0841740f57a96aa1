"""`ottla log`: looks into any Kafka log directory, ottla's or Apache Kafka's, and mends one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cli.commands import add_group
from ottla.cli.log import dump, ls, repair, verify

if TYPE_CHECKING:
    import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""
    log = add_group(app, "log")
    for module in (ls, dump, verify, repair):
        module.register(log)
