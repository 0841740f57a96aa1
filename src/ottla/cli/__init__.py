"""The `ottla` command. Each subcommand is a module of its own, loaded only when it is called or listed."""

from __future__ import annotations

import gc
import importlib
import sys

import typer

INTERRUPTED = 130  # what a shell makes of SIGINT
COMMANDS = {
    "acl": "ottla.cli.acl",
    "analyze": "ottla.cli.analyze",
    "cluster": "ottla.cli.cluster",
    "config": "ottla.cli.config",
    "consume": "ottla.cli.consume",
    "decode": "ottla.cli.decode",
    "export": "ottla.cli.export",
    "group": "ottla.cli.group",
    "log": "ottla.cli.log",
    "pipeline": "ottla.cli.pipeline",
    "produce": "ottla.cli.produce",
    "quota": "ottla.cli.quota",
    "serve": "ottla.cli.serve",
    "tap": "ottla.cli.tap",
    "topic": "ottla.cli.topic",
    "txn": "ottla.cli.txn",
    "user": "ottla.cli.user",
}


def _version(wanted: bool) -> None:
    if wanted:
        from ottla import __version__
        from ottla.records import kernel

        typer.echo(f"ottla {__version__} (kernel: {'compiled' if kernel.COMPILED else 'uncompiled'})")
        raise typer.Exit


def build(names: list[str]) -> typer.Typer:
    """The command with these subcommands."""
    app = typer.Typer(
        name="ottla",
        help="A Kafka-compatible broker in Python, and tools for any Kafka.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def options(
        version: bool = typer.Option(
            False, "--version", callback=_version, is_eager=True, help="Print the version and which kernel runs."
        ),
    ) -> None:
        """A Kafka-compatible broker in Python, and tools for any Kafka."""

    for name in names:
        importlib.import_module(COMMANDS[name]).register(app)
    return app


def main() -> None:
    """Run the command line."""
    wanted = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    if wanted == "serve":
        gc.disable()  # until it has started: what is loaded now stays
    try:
        build([wanted] if wanted in COMMANDS else list(COMMANDS))()
    except KeyboardInterrupt:  # before the command could make something of it
        sys.exit(INTERRUPTED)
