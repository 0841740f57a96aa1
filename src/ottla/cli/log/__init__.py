"""`ottla log`: inspect and repair Kafka log directories, written by ottla or by Apache Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cli.log import dump, ls, repair, verify
from ottla.cli.options.commands import add_group

if TYPE_CHECKING:
    import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""
    log = add_group(app, "log")
    for module in (ls, dump, verify, repair):
        module.register(log)
