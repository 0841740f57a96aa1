"""`ottla decode`: what a frame says, byte by byte."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.dumps import NotADumpError, read_dump
from ottla.cli.output import examples
from ottla.protocol.api import APIS
from ottla.protocol.capture import REQUEST, is_capture, read_capture
from ottla.protocol.errors import ProtocolError
from ottla.protocol.inspector import NULL, Inspection, Inspector, Line
from ottla.records.inspect import batch_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.text import Text

BAD_BYTES = 1
BAD_USAGE = 2
WIDTH = 16
EXAMPLES = examples(
    'echo "00 00 00 23 00 12 00 04 ..." | ottla decode',
    "ottla decode answer.hex --api ApiVersions --version 4",
    "ottla decode capture.jsonl --json",
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("decode", epilog=EXAMPLES)(decode)


def decode(
    source: Annotated[
        str | None, typer.Argument(help="A file, or - (or nothing) for standard input.", show_default=False)
    ] = None,
    api: Annotated[
        str | None,
        typer.Option("--api", help="The frames are answers of this API (name or key); else they are read as requests."),
    ] = None,
    version: Annotated[int | None, typer.Option("--version", "-v", help="The version of the answers.")] = None,
    form: Annotated[
        str, typer.Option("--format", "-f", help="auto, hex (a hexdump in any usual shape), base64 or binary.")
    ] = "auto",
    records: Annotated[
        bool, typer.Option("--records", "-r", help="The input is record batches (a log segment), not frames.")
    ] = False,
    values: Annotated[
        str | None,
        typer.Option("--values", help="Open the records' values: metadata, offsets, transactions or share."),
    ] = None,
    hexdump: Annotated[bool, typer.Option("--hexdump/--no-hexdump", help="Print the bytes above each tree.")] = True,
    show_secrets: Annotated[
        bool, typer.Option("--show-secrets", help="Print passwords and tokens instead of hiding them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per frame, for programs.")] = False,
) -> None:
    """Explain Kafka frames byte by byte.

    Reads one or many frames, each with its four bytes of length before it. Requests explain themselves. An answer is
    recognised when its request is in the input too; otherwise say --api and --version. A capture of `ottla tap` is read
    as it is.

    Exit code 1 means that the bytes are not what they should be: the tree is printed as far as it went and the byte
    where it stopped is marked.
    """
    if form not in ("auto", "hex", "base64", "binary"):
        _usage(f"--format {form}: use auto, hex, base64 or binary")
    if values not in (None, "metadata", "offsets", "transactions", "share"):
        _usage(f"--values {values}: use metadata, offsets, transactions or share")
    key = None if api is None else _find_api(api)
    if version is not None and key is None:
        _usage("--version says nothing without --api")
    try:
        data = _read(source)
        if form != "auto" or not is_capture(data):
            data = read_dump(data, form)
    except NotADumpError as error:
        _usage(str(error))
    if records:
        inspections: Iterator[Inspection] = iter([_inspect_records(data, values)])
    elif is_capture(data):
        inspections = _inspect_capture(data, values)
    else:
        inspector = Inspector(lambda frame, start, end, depth: batch_lines(frame, start, end, depth, values))
        inspections = inspector.stream(data, api=key, version=version)
    console = None if as_json else make_console()
    failed = False
    for number, found in enumerate(inspections):
        failed |= found.error is not None
        if console is None:
            typer.echo(json.dumps(as_object(found, show_secrets), ensure_ascii=False))
        else:
            if number:
                console.print()
            print_inspection(console, found, hexdump, show_secrets)
    raise typer.Exit(BAD_BYTES if failed else 0)


def _usage(problem: str) -> None:
    typer.echo(f"ottla decode: {problem}", err=True)
    raise typer.Exit(BAD_USAGE)


def _read(source: str | None) -> bytes:
    if source is None or source == "-":
        if sys.stdin.isatty():
            typer.echo("reading standard input; end with Ctrl-D", err=True)
        return sys.stdin.buffer.read()
    try:
        return Path(source).read_bytes()
    except OSError as error:
        _usage(f"{source}: {error.strerror or error}")
        raise


def _find_api(text: str) -> int:
    wanted = text.replace("_", "").replace("-", "").lower()
    for known in APIS:
        if wanted in (str(known.key), known.name.lower()):
            return known.key
    near = [known.name for known in APIS if wanted[:4] and wanted[:4] in known.name.lower()]
    hint = f"; did you mean {', '.join(near)}?" if near else "; use a name such as Fetch, or a key such as 1"
    _usage(f"--api {text}: Kafka has no such API{hint}")
    return -1


def _inspect_capture(data: bytes, values: str | None) -> Iterator[Inspection]:
    inspector = Inspector(lambda frame, start, end, depth: batch_lines(frame, start, end, depth, values))
    try:
        for frame in read_capture(data.splitlines(keepends=True)):
            whole = len(frame.frame).to_bytes(4, "big") + frame.frame
            if frame.direction == REQUEST:
                yield inspector.request(whole)
            else:
                yield inspector.response(whole, frame.api_key, frame.version)
    except ProtocolError as error:
        yield Inspection(b"", "capture", error=error)


def _inspect_records(data: bytes, values: str | None) -> Inspection:
    found = Inspection(data, "record batches")
    try:
        for line in batch_lines(data, 0, len(data), 0, values):
            found.lines.append(line)
    except ProtocolError as error:
        found.error = error
    return found


# For people.


def make_console() -> Console:
    """Where trees are printed."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def print_inspection(console: Console, found: Inspection, hexdump: bool, show_secrets: bool) -> None:
    """Print a frame as a tree, its bytes above it if wanted."""
    from rich.text import Text

    hidden = set() if show_secrets else _hidden_bytes(found)
    stop = found.error.position if found.error is not None else None
    correlation = f", correlation id {found.correlation_id}" if found.correlation_id is not None else ""
    console.print(Text(f"{found.name}, {len(found.frame)} bytes{correlation}", style="bold"))
    if hexdump:
        for row in _hexdump(found.frame, hidden, stop):
            console.print(row)
        console.print()
    for line in found.lines:
        console.print(_tree_line(line, show_secrets))
    if found.error is not None:
        where = f"byte {stop} ({stop:#x})" if stop is not None else "the end"
        console.print(Text(f"stopped at {where}: {found.error}", style="bold red"))


def _hidden_bytes(found: Inspection) -> set[int]:
    return {position for line in found.lines if line.secret for position in range(line.position, line.end)}


def _hexdump(frame: bytes, hidden: set[int], stop: int | None) -> Iterator[Text]:
    from rich.text import Text

    for start in range(0, len(frame), WIDTH):
        row = Text(f"{start:08x}  ", style="dim")
        shown = Text()
        for position in range(start, start + WIDTH):
            if position == start + WIDTH // 2:
                row.append(" ")
            if position >= len(frame):
                row.append("   ")
                continue
            byte = frame[position]
            style = "bold white on red" if position == stop else "default"
            row.append("**" if position in hidden else f"{byte:02x}", style=style)
            row.append(" ")
            printable = 32 <= byte < 127 and position not in hidden
            shown.append(chr(byte) if printable else ".", style=style)
        yield row.append(" |").append_text(shown).append("|")
    if stop is not None and stop >= len(frame):
        yield Text(f"{len(frame):08x}  ^ the input ends here", style="bold red")


def _tree_line(line: Line, show_secrets: bool) -> Text:
    from rich.text import Text

    place = f"{line.position:>6}" if line.end > line.position else " " * 6
    row = Text(f"{place}  ", style="dim")
    row.append("  " * line.depth + "- ", style="dim")
    row.append(f".{line.label}", style="cyan" if line.value is not None or line.type else "bold cyan")
    if line.value is not None:
        row.append(" (", style="dim").append(_shown(line, show_secrets), style="green").append(")", style="dim")
    return row


def _shown(line: Line, show_secrets: bool) -> str:
    value = line.value
    if isinstance(value, memoryview):
        if line.secret and not show_secrets:
            return f"{len(value)} bytes, hidden"
        size = f"{len(value)} bytes" if len(value) != 1 else "1 byte"
        if line.type == "records" or not len(value):
            return size
        return f"{size}: {_preview(bytes(value))}"
    if line.secret and not show_secrets:
        return "hidden"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _preview(value: bytes, most: int = 64) -> str:
    head = value[:most]
    more = "..." if len(value) > most else ""
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError:
        return head.hex(" ") + more
    return (text if text.isprintable() else head.hex(" ")) + more


# For programs.


def as_object(found: Inspection, show_secrets: bool = False) -> dict[str, Any]:
    """An inspection as plain data: what it is, its tree with positions, and where and why it stopped."""
    root: list[dict[str, Any]] = []
    stack: list[tuple[int, list[dict[str, Any]]]] = [(-1, root)]
    for line in found.lines:
        entry: dict[str, Any] = {"name": line.label, "position": line.position, "end": line.end}
        if line.type:
            entry["type"] = line.type
        if line.value is not None:
            entry["value"] = _plain(line, show_secrets)
        while stack[-1][0] >= line.depth:
            stack.pop()
        stack[-1][1].append(entry)
        entry["fields"] = []
        stack.append((line.depth, entry["fields"]))
    _drop_empty(root)
    result: dict[str, Any] = {
        "kind": found.kind,
        "name": found.name,
        "api_key": found.api_key,
        "version": found.version,
        "correlation_id": found.correlation_id,
        "size": len(found.frame),
        "tree": root,
        "error": None,
    }
    if found.error is not None:
        result["error"] = {
            "position": found.error.position,
            "path": found.error.path,
            "expected": found.error.expected,
            "text": str(found.error),
        }
    return result


def _plain(line: Line, show_secrets: bool) -> Any:
    if line.value is NULL:
        return None
    if line.secret and not show_secrets:
        return "(hidden)"
    if isinstance(line.value, memoryview):
        return bytes(line.value).hex()
    return line.value


def _drop_empty(entries: list[dict[str, Any]]) -> None:
    for entry in entries:
        if entry["fields"]:
            _drop_empty(entry["fields"])
        else:
            del entry["fields"]
