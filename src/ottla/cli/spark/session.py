"""Options and session of the commands that run on Spark. The JVM's log stays off the terminal."""

from __future__ import annotations

import os
import re
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
_RAISED = re.compile(
    r"^(?:Caused by: |Exception in thread \S+ )?(?:[\w$]+\.)+[\w$]*(?:Exception|Error): (.+)$", re.MULTILINE
)
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
        try:
            yield spark
        finally:
            spark.stop()


def quiet_session(name: str, *, master: str | None, config: Mapping[str, str]) -> SparkSession:
    """Start a session whose JVM writes to a temporary file instead of standard error.

    Raises `SparkSetupError` with one sentence, and the file's name, if Spark does not start.
    """
    from ottla.spark.session import SparkSetupError, session

    if sys.stderr.isatty():
        typer.echo("starting Spark ...", err=True)
    sys.stderr.flush()
    terminal = os.dup(_STDERR)
    with tempfile.NamedTemporaryFile(prefix="ottla-spark-", suffix=".log", delete=False) as log:
        kept = False
        os.dup2(log.fileno(), _STDERR)
        try:
            return session(name, master=master, config=config)
        except SparkSetupError:
            raise
        except Exception as error:
            kept = True
            log.seek(0)
            sentence = _start_problem(error, log.read().decode(errors="replace"))
            raise SparkSetupError(f"Spark did not start: {sentence} (its output is in {log.name})") from error
        finally:
            os.dup2(terminal, _STDERR)
            os.close(terminal)
            if not kept:
                os.unlink(log.name)


def _start_problem(error: Exception, output: str) -> str:
    """Return why Spark did not start: the JVM's own words if it has ended, else the exception's."""
    from ottla.spark.reasons import reason

    sentence = reason(error)
    if "JAVA_GATEWAY_EXITED" in str(error) or "Java gateway" in sentence:
        raised = _RAISED.findall(output)
        lines = [line for line in output.splitlines() if line.strip() and not line.startswith(("\tat ", "WARNING"))]
        sentence = raised[-1] if raised else lines[-1] if lines else sentence
    return sentence
