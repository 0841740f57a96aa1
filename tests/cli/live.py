"""Runs commands against a running cluster in this process."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from typer.testing import CliRunner

from ottla.cli import build


class Ran(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The JSON objects that a successful command printed."""
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]


def run(bootstrap: str, *words: object, stdin: str | bytes | None = None) -> Ran:
    """Run `ottla <words> -b <bootstrap>`."""
    listed = [str(word) for word in words]
    result = CliRunner().invoke(build([listed[0]]), [*listed, "-b", bootstrap, "--timeout", "60"], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)
