"""A Spark session for a command: what its JVM logs stays off the terminal, unless it does not start."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_STDERR = 2


def quiet_session(name: str, *, master: str | None, config: Mapping[str, str]) -> SparkSession:
    """A session whose JVM writes to a file without a name in place of standard error, which it gets at its start."""
    from ottla.spark.session import SparkSetupError, session

    if sys.stderr.isatty():
        typer.echo("starting Spark ...", err=True)
    sys.stderr.flush()
    terminal = os.dup(_STDERR)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), _STDERR)
        try:
            return session(name, master=master, config=config)
        except Exception as error:
            os.dup2(terminal, _STDERR)
            if not isinstance(error, SparkSetupError):
                said.seek(0)
                sys.stderr.write(said.read().decode(errors="replace"))
            raise
        finally:
            os.dup2(terminal, _STDERR)
            os.close(terminal)
