"""Output and exit codes of commands: JSON for programs, tables for people, one sentence for an error."""

from __future__ import annotations

import base64
import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from ottla.cli import discard_output
from ottla.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console

Row = TypeVar("Row")

FAILED = 1
BAD_USAGE = 2
UNREACHABLE = 3
NOT_FOUND = 4


def echo(text: str = "", *, err: bool = False) -> None:
    """Print lines of text; control characters that a client may have put into a name are escaped."""
    typer.echo(printable(text, keep="\n"), err=err)


def fail(problem: str, *, code: int = FAILED) -> typer.Exit:
    """Print what went wrong on standard error; return the exception to raise."""
    echo(f"ottla: {problem}", err=True)
    return typer.Exit(code)


def usage(problem: str) -> typer.Exit:
    """Print how the command was called wrongly; return the exception to raise."""
    return fail(problem, code=BAD_USAGE)


def warn(problem: str) -> None:
    """Print on standard error what the command leaves out or changes."""
    echo(f"ottla: warning: {problem}", err=True)


def pairs(option: str, words: Iterable[str] | None) -> dict[str, str]:
    """Parse `key=value` options into a dict; a repeated key is an error."""
    values: dict[str, str] = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise usage(f"{option} {word}: write key=value")
        if key in values:
            raise usage(f"{option} {key} is given twice")
        values[key] = value
    return values


def refuse_together(first: str, *others: tuple[str, bool]) -> None:
    """Raise a usage error if one of the options that `first` makes meaningless is given."""
    for name, value in others:
        if value:
            raise usage(f"{first} and {name} cannot be used together: {name} would be ignored")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is lost; without a terminal to ask on, `--yes` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage(f"{question} Add --yes to confirm: standard input is not a terminal")
    if not typer.confirm(question, err=True):
        raise fail("nothing was changed")


def print_json(value: Any) -> None:
    """Print one JSON document on one line."""
    typer.echo(printable(json.dumps(value, ensure_ascii=False)))


def print_result(as_json: bool, row: dict[str, Any], sentence: str) -> None:
    """Print the result of a change: an object for programs, a sentence for people."""
    if as_json:
        print_json(row)
    else:
        echo(sentence)


@contextmanager
def until_pipe_closes() -> Iterator[None]:
    """Print until the reader closes the pipe; what follows runs, so that the exit code stays the command's verdict."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def console() -> Console:
    """Return a console for tables and colours on standard output. Lines are not folded unless it is a terminal."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # in place of rich's exit with code 1

    terminal = sys.stdout.isatty()
    return PipeConsole(highlight=False, soft_wrap=not terminal, width=None if terminal else 10_000)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()) -> None:
    """Print a table without frames, which `awk` can read; `right` names the columns of numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    numbers = set(right)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*[_cell(value) for value in row])
    console().print(table)


def print_rows(
    as_json: bool,
    rows: Iterable[Row],
    columns: Sequence[str],
    cells: Callable[[Row], Sequence[object]],
    *,
    json_of: Callable[[Row], Any] = lambda row: row,
    right: Iterable[str] = (),
) -> None:
    """Print rows: one JSON object a line for programs, a table for people."""
    if as_json:
        for row in rows:
            print_json(json_of(row))
        return
    print_table(columns, [cells(row) for row in rows], right=right)


def _cell(value: object) -> str:
    from rich.markup import escape

    return "-" if value is None or value == "" else escape(printable(str(value)))


def plain_bytes(name: str, value: bytes | None) -> dict[str, Any]:
    """Return bytes as an entry of a JSON object: text under `name`, bytes that are not text under `<name>_base64`."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


def shown_bytes(value: bytes | None) -> str:
    """Return bytes for a person: quoted text, or hexadecimal."""
    if value is None:
        return "null"
    try:
        return printable(json.dumps(value.decode("utf-8"), ensure_ascii=False))
    except UnicodeDecodeError:
        return "0x" + value.hex()
