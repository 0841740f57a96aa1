"""Options and session of the commands that run on Spark. The JVM's log stays off the terminal unless Spark fails."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.terminal.output import fail, pairs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

_STDERR = 2
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Run on this Spark master.", show_default="all cores of this machine"),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="Set a Spark property; repeatable.", show_default=False),
]


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Spark's master and properties: `add_command` expands it to one option per field."""

    master: Master = None
    conf: Conf = None

    @property
    def properties(self) -> dict[str, str]:
        """The properties of --conf."""
        return pairs("--conf", self.conf)

    @contextmanager
    def session(self, name: str, defaults: Mapping[str, str]) -> Iterator[SparkSession]:
        """Start Spark for the length of a command, with `defaults` for properties that --conf does not set."""
        from ottla.spark.session import SparkSetupError

        try:
            spark = quiet_session(name, master=self.master, config={**defaults, **self.properties})
        except SparkSetupError as error:
            raise fail(str(error)) from error
        except Exception as error:
            raise fail("Spark did not start; its output is above") from error
        try:
            yield spark
        finally:
            spark.stop()


def quiet_session(name: str, *, master: str | None, config: Mapping[str, str]) -> SparkSession:
    """Start a session whose JVM writes to a temporary file instead of standard error; print it if Spark fails."""
    from ottla.spark.session import SparkSetupError, session

    if sys.stderr.isatty():
        typer.echo("starting Spark ...", err=True)
    sys.stderr.flush()
    terminal = os.dup(_STDERR)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), _STDERR)
        try:
            return session(name, master=master, config=config)
        except Exception as error:
            os.dup2(terminal, _STDERR)
            if not isinstance(error, SparkSetupError):
                log.seek(0)
                sys.stderr.write(log.read().decode(errors="replace"))
            raise
        finally:
            os.dup2(terminal, _STDERR)
            os.close(terminal)
