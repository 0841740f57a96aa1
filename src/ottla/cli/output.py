"""How commands speak: JSON for programs, tables for people, one sentence for what went wrong, and exit codes."""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from ottla.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import Console

Row = TypeVar("Row")

FAILED = 1
BAD_USAGE = 2


def echo(text: str = "", *, err: bool = False) -> None:
    """Print lines of text, with control characters that a client may have put into a name escaped."""
    typer.echo(printable(text, keep="\n"), err=err)


def fail(problem: str, *, code: int = FAILED) -> typer.Exit:
    """Tell what went wrong on standard error; the exception to raise."""
    echo(f"ottla: {problem}", err=True)
    return typer.Exit(code)


def usage(problem: str) -> typer.Exit:
    """Tell how the command was called wrongly; the exception to raise."""
    return fail(problem, code=BAD_USAGE)


def pairs(option: str, words: Iterable[str] | None) -> dict[str, str]:
    """What an option that may be repeated says as `key=value`."""
    found = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise usage(f"{option} {word}: write key=value")
        found[key] = value
    return found


def examples(*lines: str) -> str:
    """The end of a command's help: examples, one per line."""
    return "\n\n".join(["Examples:", *lines])


def print_json(value: Any) -> None:
    """One JSON document on one line."""
    typer.echo(printable(json.dumps(value, ensure_ascii=False)))


def console() -> Console:
    """Where tables and colours go: standard output, as wide as it is; not folded when it is no terminal."""
    from rich.console import Console

    wide = None if sys.stdout.isatty() else 10_000
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty(), width=wide)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()) -> None:
    """A table without frames, which `awk` can read too; `right` names the columns of numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    aligned = set(right)
    for column in columns:
        table.add_column(column, justify="right" if column in aligned else "left", overflow="fold")
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
    """What a command found: an object a line for programs, a table for people."""
    if as_json:
        for row in rows:
            print_json(json_of(row))
        return
    print_table(columns, [cells(row) for row in rows], right=right)


def _cell(value: object) -> str:
    from rich.markup import escape

    return "-" if value is None or value == "" else escape(printable(str(value)))


def counted(count: int, what: str) -> str:
    """A number of things, in the right grammatical number."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def size(count: int) -> str:
    """Bytes as people read them."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def when(timestamp_ms: int) -> str | None:
    """A timestamp in ISO 8601, UTC; None for no timestamp."""
    if timestamp_ms < 0:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


def plain_bytes(name: str, value: bytes | None) -> dict[str, Any]:
    """Bytes as an entry of a JSON object: text under their name, what is no text under `<name>_base64`."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


def shown_bytes(value: bytes | None) -> str:
    """Bytes for a person: quoted text, or hexadecimal."""
    if value is None:
        return "null"
    try:
        return printable(json.dumps(value.decode("utf-8"), ensure_ascii=False))
    except UnicodeDecodeError:
        return "0x" + value.hex()
