"""`ottla decode`: explain Kafka frames, captures and record batches byte by byte."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.debugging.dumps import NotADumpError, read_dump
from ottla.cli.options.commands import add_command
from ottla.cli.terminal.output import console as make_console
from ottla.cli.terminal.output import echo, print_json, refuse_together, usage
from ottla.printable import printable
from ottla.protocol.api import APIS
from ottla.protocol.capture import REQUEST, is_capture, read_capture
from ottla.protocol.errors import ProtocolError
from ottla.protocol.inspect.inspector import NULL, Inspection, Inspector, Line
from ottla.records.inspect import batch_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.text import Text

BAD_BYTES = 1
WIDTH = 16
FORMATS = ("auto", "hex", "base64", "binary")
VALUES = ("metadata", "offsets", "transactions", "share")


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(
        app,
        "decode",
        decode,
        'echo "00 00 00 23 00 12 00 04 ..." | ottla decode',
        "ottla decode response.hex --api ApiVersions --version 4",
        "ottla decode capture.jsonl --json",
        "ottla decode 00000000000000000000.log --records",
    )


def decode(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="File to read; - or nothing is standard input.", show_default=False),
    ] = None,
    *,
    api: Annotated[
        str | None,
        typer.Option(
            "--api",
            metavar="API",
            help="Read the frames as responses of this API (name or key); requires --version.",
            show_default="read them as requests",
        ),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option("--version", "-v", metavar="N", help="Decode with this version of --api.", show_default=False),
    ] = None,
    form: Annotated[
        str,
        typer.Option("--format", "-f", metavar="FORMAT", help="Read auto, hex (any usual hexdump), base64 or binary."),
    ] = "auto",
    records: Annotated[
        bool, typer.Option("--records", "-r", help="Read record batches (a log segment) instead of frames.")
    ] = False,
    values: Annotated[
        str | None,
        typer.Option(
            "--values",
            metavar="KIND",
            help="Decode record values as metadata, offsets, transactions or share.",
            show_default=False,
        ),
    ] = None,
    hexdump: Annotated[bool, typer.Option("--hexdump/--no-hexdump", help="Print the bytes above each tree.")] = True,
    show_secrets: Annotated[
        bool, typer.Option("--show-secrets", help="Print passwords and tokens instead of hiding them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per frame.")] = False,
) -> None:
    """Explain Kafka frames byte by byte.

    Reads frames with their four length bytes. A response is recognised if its request is in the input too; otherwise
    give --api and --version. A capture of `ottla tap` needs neither.

    Exit code 1 means that bytes are malformed: the fields are printed up to the byte that is marked.
    """
    if form not in FORMATS:
        raise usage(f"--format {form}: use one of {', '.join(FORMATS)}")
    if values is not None and values not in VALUES:
        raise usage(f"--values {values}: use one of {', '.join(VALUES)}")
    key = None if api is None else _find_api(api)
    if version is not None and key is None:
        raise usage("--version requires --api")
    if records:
        refuse_together("--records", ("--api", api is not None))
    try:
        data = _read(source)
        if form != "auto" or not is_capture(data):
            data = read_dump(data, form)
    except NotADumpError as error:
        raise usage(str(error)) from error
    if is_capture(data):
        refuse_together("a capture", ("--api", api is not None), ("--records", records))
    if records:
        inspections: Iterator[Inspection] = iter([_inspect_records(data, values)])
    elif is_capture(data):
        inspections = _inspect_capture(data, values)
    else:
        inspector = Inspector(lambda frame, start, end, depth: batch_lines(frame, start, end, depth, values))
        inspections = inspector.stream(data, api=key, version=version)
    console = None if as_json else make_console()
    failed = False
    for number, inspection in enumerate(inspections):
        failed |= inspection.error is not None
        if console is None:
            print_json(as_object(inspection, show_secrets))
        else:
            if number:
                console.print()
            print_inspection(console, inspection, hexdump, show_secrets)
    raise typer.Exit(BAD_BYTES if failed else 0)


def _read(source: str | None) -> bytes:
    if source is None or source == "-":
        if sys.stdin.isatty():
            echo("reading standard input; end with Ctrl-D", err=True)
        return sys.stdin.buffer.read()
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise usage(f"{source}: {error.strerror or error}") from error


def _find_api(text: str) -> int:
    name = text.replace("_", "").replace("-", "").lower()
    for api in APIS:
        if name in (str(api.key), api.name.lower()):
            return api.key
    near = [api.name for api in APIS if name[:4] and name[:4] in api.name.lower()]
    hint = f"; did you mean {', '.join(near)}?" if near else "; use a name such as Fetch, or a key such as 1"
    raise usage(f"--api {text}: Kafka has no such API{hint}")


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
    inspection = Inspection(data, "record batches")
    try:
        for line in batch_lines(data, 0, len(data), 0, values):
            inspection.lines.append(line)
    except ProtocolError as error:
        inspection.error = error
    return inspection


def print_inspection(console: Console, inspection: Inspection, hexdump: bool, show_secrets: bool) -> None:
    """Print the tree of a frame's fields; with `hexdump`, print its bytes above it."""
    from rich.text import Text

    hidden = set() if show_secrets else _hidden_bytes(inspection)
    stop = inspection.error.position if inspection.error is not None else None
    correlation = f", correlation id {inspection.correlation_id}" if inspection.correlation_id is not None else ""
    console.print(Text(f"{inspection.name}, {len(inspection.frame)} bytes{correlation}", style="bold"))
    if hexdump:
        for row in _hexdump(inspection.frame, hidden, stop):
            console.print(row)
        console.print()
    for line in inspection.lines:
        console.print(_tree_line(line, show_secrets))
    if inspection.error is not None:
        where = f"byte {stop} ({stop:#x})" if stop is not None else "the end"
        console.print(Text(f"stopped at {where}: {inspection.error}", style="bold red"))


def _hidden_bytes(inspection: Inspection) -> set[int]:
    return {position for line in inspection.lines if line.secret for position in range(line.position, line.end)}


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

    position = f"{line.position:>6}" if line.end > line.position else " " * 6
    row = Text(f"{position}  ", style="dim")
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
    return str(value).lower() if isinstance(value, bool) else printable(str(value))


def _preview(value: bytes, most: int = 64) -> str:
    head = value[:most]
    more = "..." if len(value) > most else ""
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError:
        return head.hex(" ") + more
    return (text if text.isprintable() else head.hex(" ")) + more


def as_object(inspection: Inspection, show_secrets: bool = False) -> dict[str, Any]:
    """Return an inspection as JSON-compatible data: the tree of fields with positions, and the error."""
    root: list[dict[str, Any]] = []
    stack: list[tuple[int, list[dict[str, Any]]]] = [(-1, root)]
    for line in inspection.lines:
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
        "kind": inspection.kind,
        "name": inspection.name,
        "api_key": inspection.api_key,
        "version": inspection.version,
        "correlation_id": inspection.correlation_id,
        "size": len(inspection.frame),
        "tree": root,
        "error": None,
    }
    if inspection.error is not None:
        result["error"] = {
            "position": inspection.error.position,
            "path": inspection.error.path,
            "expected": inspection.error.expected,
            "text": str(inspection.error),
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
