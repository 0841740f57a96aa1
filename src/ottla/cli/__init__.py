"""The `ottla` command. A subcommand's module is imported when the subcommand is called, never to list it."""

from __future__ import annotations

import difflib
import gc
import importlib
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

INTERRUPTED = 130  # as a shell reports SIGINT
SUMMARY = "Run a Kafka-compatible broker, and inspect, test and analyze any Kafka."


class Subcommand(NamedTuple):
    """A row of `ottla --help`."""

    module: str
    help: str


COMMANDS = {
    "acl": Subcommand("ottla.cli.security.acl", "List, add and remove access control entries."),
    "analyze": Subcommand("ottla.cli.debugging.analyze", "Find out what went wrong from logs, captures and histories."),
    "cluster": Subcommand("ottla.cli.admin.cluster", "Show brokers, APIs, features, quorum and log directories."),
    "config": Subcommand("ottla.cli.admin.config", "Show and change configs of topics, brokers and groups."),
    "console": Subcommand("ottla.cli.serving.console", "Serve a web page for any Kafka: topics, records, groups."),
    "consume": Subcommand("ottla.cli.records.consume", "Read records of a topic."),
    "decode": Subcommand("ottla.cli.debugging.decode", "Explain Kafka frames byte by byte."),
    "export": Subcommand("ottla.cli.spark.export", "Export a topic to Parquet, Delta or Iceberg with Spark."),
    "group": Subcommand("ottla.cli.admin.group", "List, describe, reset and delete groups; show their lag."),
    "log": Subcommand("ottla.cli.log", "Read, verify and repair Kafka log directories."),
    "pipeline": Subcommand("ottla.cli.spark.pipeline", "Create, run, check and test Spark pipelines on topics."),
    "produce": Subcommand("ottla.cli.records.produce", "Write records to a topic."),
    "quota": Subcommand("ottla.cli.security.quota", "List, set and remove client quotas."),
    "registry": Subcommand("ottla.cli.schemas.registry", "Run a schema registry over any Kafka."),
    "schema": Subcommand("ottla.cli.schemas.schema", "List, show, register, check and delete schemas of any registry."),
    "serve": Subcommand("ottla.cli.serving.serve", "Run a Kafka-compatible broker."),
    "sink": Subcommand("ottla.cli.spark.sink", "List and retire exactly-once sinks of Spark queries."),
    "tap": Subcommand("ottla.cli.debugging.tap", "Print, capture and disturb traffic between clients and a Kafka."),
    "topic": Subcommand("ottla.cli.admin.topic", "List, describe, create, change and delete topics."),
    "txn": Subcommand("ottla.cli.admin.txn", "List, describe and abort transactions; find hanging ones."),
    "user": Subcommand("ottla.cli.security.user", "List, set and delete SCRAM users."),
}


class _LazyGroup(TyperGroup):
    """The root command: lists subcommands from COMMANDS and imports the one that is called."""

    names: Iterable[str] = COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the subcommands."""
        return list(self.names)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a subcommand; return None if there is no such subcommand."""
        if cmd_name not in self.names:
            return None
        if cmd_name not in self.commands:
            self.add_command(typer.main.get_group(load(cmd_name)).commands[cmd_name])
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the subcommand of the command line; suggest names that are near to an unknown one."""
        if args and args[0] not in self.names and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], list(self.names), n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(self.names)}"
            ctx.fail(f"no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of subcommands without importing one."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].help) for name in self.names])

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the options of `ottla` itself, of which --help and --version print."""
        with _closed_pipe_ends():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand."""
        with _closed_pipe_ends():
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()


@contextmanager
def _closed_pipe_ends() -> Iterator[None]:
    """End with exit code 0 when the reader of standard output has closed the pipe, as `head` does."""
    try:
        yield
    except BrokenPipeError:
        discard_output()
        raise typer.Exit(0) from None


def discard_output() -> None:
    """Send the rest of standard output to the null device, so that flushing it at exit does not fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _print_version(requested: bool) -> None:
    if requested:
        from ottla import __version__
        from ottla.records import kernel
        from ottla.spark.java import find_java

        typer.echo(f"ottla {__version__} (kernel: {'compiled' if kernel.COMPILED else 'uncompiled'})")
        java, rejected = find_java()
        typer.echo(f"Spark: {java}" if java else f"Spark: no Java 17 or newer ({', '.join(rejected)})")
        raise typer.Exit


def load(name: str) -> typer.Typer:
    """Import a subcommand's module; return an app that has only this subcommand."""
    app = typer.Typer(rich_markup_mode=None)
    app.callback()(lambda: None)  # makes typer build a group for an app with one command too
    importlib.import_module(COMMANDS[name].module).register(app)
    return app


def build(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the app that offers these subcommands."""
    app = typer.Typer(
        name="ottla",
        cls=type("_Group", (_LazyGroup,), {"names": tuple(names)}),
        help=SUMMARY,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def options(
        version: bool = typer.Option(
            False,
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version, the kernel and the Java in use.",
        ),
    ) -> None:
        """Take the options of `ottla` itself."""

    return app


def main() -> None:
    """Run the command line."""
    called = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    if called == "serve":
        gc.disable()  # until the broker has started: the objects loaded now live as long as the process
    try:
        build()()
    except KeyboardInterrupt:  # while the command was being imported
        sys.exit(INTERRUPTED)
