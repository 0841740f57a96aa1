"""`ottla tap`: print, capture and disturb the traffic between clients and any Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.options.commands import add_command
from ottla.cli.options.connect import PROPERTIES, Properties, PropertiesFile, client_properties, read_properties
from ottla.cli.options.http import ControlPort, ControlToken, HttpHosts, control_options
from ottla.cli.serving.dev_tls import make_dev_tls
from ottla.cli.terminal.output import echo, fail, print_json, refuse_together, usage
from ottla.protocol.capture import REQUEST
from ottla.protocol.inspect.inspector import Inspection, Inspector
from ottla.quantities import format_count
from ottla.records.inspect import batch_lines
from ottla.testing.cluster import new_loop
from ottla.testing.control.matching import api_keys
from ottla.testing.tap.engine import LENGTH
from ottla.testing.tap.tap import CaptureFile, Tap

if TYPE_CHECKING:
    from collections.abc import Collection

    from rich.console import Console

    from ottla.protocol.capture import CapturedFrame
    from ottla.server.web import WebServer
    from ottla.server.web_options import WebOptions

# Clients log in themselves: of the security properties only those of TLS have an effect.
TLS_PROPERTIES = frozenset(name for name in PROPERTIES if name.startswith(("security.", "ssl.")))


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(
        app,
        "tap",
        tap,
        "ottla tap 127.0.0.1:19092 localhost:9092",
        "ottla tap 19092 kafka.example:9092 --api Fetch --topic orders --brief",
        "ottla tap 19092 kafka.example:9092 --json --api Produce",
        "ottla tap 19092 kafka.example:9092 -q -o capture.jsonl",
        "ottla tap 19092 kafka.example:9093 -X security.protocol=SSL",
    )


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """The file that frames are captured in: `add_command` expands it to one option per field."""

    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write a capture to this file.", show_default=False),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing capture.")] = False
    max_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-bytes", metavar="N", min=1, help="Capture at most N bytes of each frame.", show_default=False
        ),
    ] = None

    def check(self) -> None:
        """Raise a usage error if a file would be lost or an option would be ignored."""
        if self.output is None:
            refuse = [
                name for name, value in (("--overwrite", self.overwrite), ("--max-bytes", self.max_bytes)) if value
            ]
            if refuse:
                raise usage(f"{refuse[0]} requires --output")
        elif not self.overwrite and os.path.exists(self.output) and os.path.getsize(self.output):
            raise usage(f"{self.output} exists; choose another file, or add --overwrite to replace it")


def tap(
    listen: Annotated[
        str, typer.Argument(metavar="LISTEN", help="Listen for clients on host:port, or on a port of 127.0.0.1.")
    ],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="host:port of one broker of the Kafka.")],
    *,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no frames.")] = False,
    brief: Annotated[bool, typer.Option("--brief", help="Print one line per frame instead of all fields.")] = False,
    hexdump: Annotated[bool, typer.Option("--hexdump", help="Print the bytes of each frame too.")] = False,
    api: Annotated[
        list[str] | None,
        typer.Option("--api", metavar="API", help="Print and capture only this API (name or key); repeatable."),
    ] = None,
    client_id: Annotated[
        str | None,
        typer.Option("--client-id", metavar="ID", help="Print and capture only this client.", show_default=False),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", metavar="NAME", help="Print and capture only frames that name this topic.", show_default=False
        ),
    ] = None,
    show_secrets: Annotated[
        bool, typer.Option("--show-secrets", help="Print and capture passwords and tokens instead of hiding them.")
    ] = False,
    control: ControlPort = None,
    control_token: ControlToken = None,
    http_host: HttpHosts = None,
    dev_tls: Annotated[
        bool, typer.Option("--dev-tls", help="Listen with TLS and a certificate of a temporary CA.")
    ] = False,
    listen_config: Annotated[
        str | None,
        typer.Option(
            "--listen-config",
            metavar="FILE",
            help="Listen with TLS: read ssl.keystore.location etc. from a file, as a broker does.",
            show_default=False,
        ),
    ] = None,
    properties: Properties = None,
    properties_file: PropertiesFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one object per frame; with --brief without its fields.")
    ] = False,
    capture: CaptureOptions,
) -> None:
    """Print, capture and disturb traffic between clients and a Kafka.

    Point clients at LISTEN instead of at the Kafka. The tap replaces the brokers' addresses in responses by its own, so
    that clients stay behind it. Filters select what is printed and captured; every frame is forwarded.

    With security.protocol=SSL or SASL_SSL in -X or --command-config the tap connects to the Kafka with TLS. Clients
    log in themselves; their logins are forwarded.
    """
    capture.check()
    if quiet:
        refuse_together("-q", ("--brief", brief), ("--hexdump", hexdump), ("--json", as_json))
    if brief or as_json:
        refuse_together("--brief" if brief else "--json", ("--hexdump", hexdump))
    temporary_ca = None
    try:
        web = control_options(control, control_token, http_host)
        if dev_tls and listen_config is not None:
            raise ValueError("--dev-tls and --listen-config cannot be used together")
        chosen = _Chosen(
            api_keys([int(word) if word.isdigit() else word for word in api]) if api else None, client_id, topic
        )
        client_settings = client_properties(properties, properties_file, TLS_PROPERTIES)
        tls = None if listen_config is None else read_properties("--listen-config", listen_config)
        if dev_tls:
            temporary_ca = make_dev_tls()
            tls = temporary_ca.configs
        made = Tap(target, listen, properties=client_settings, tls=tls or False)
    except ValueError as error:
        if temporary_ca is not None:
            temporary_ca.remove()
        raise usage(f"tap: {error}") from error
    printer = None if quiet else _Printer(brief=brief, hexdump=hexdump, show_secrets=show_secrets, as_json=as_json)
    try:
        if temporary_ca is not None:
            typer.echo(f"clients must trust {temporary_ca.authority}", err=True)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_run(made, chosen, target, capture, printer, show_secrets=show_secrets, control=web))
    except OSError as error:
        raise fail(f"tap: {error}") from error
    finally:
        if temporary_ca is not None:
            temporary_ca.remove()


async def _run(
    tap: Tap,
    chosen: _Chosen,
    target: str,
    options: CaptureOptions,
    printer: _Printer | None,
    *,
    show_secrets: bool,
    control: WebOptions | None,
) -> None:
    """Listen until SIGINT or SIGTERM. The capture file is opened once the tap listens, so that a failure keeps it."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop.set)
    if printer is not None:
        tap.sinks.append(chosen.only(printer))
    captures: list[CaptureFile] = []
    server: WebServer | None = None
    if control is not None:
        server = control.server()
        typer.echo(f"ottla tap serves the control API on {server.bind()}", err=True)
    tasks = []

    def ready() -> None:
        if options.output is not None:
            capture = CaptureFile(options.output, target, max_bytes=options.max_bytes, show_secrets=show_secrets)
            captures.append(capture)
            tap.sinks.append(chosen.only(capture))
        if server is not None:
            from ottla.testing.http.api import TAP_PATHS, control_routes

            tasks.append(loop.create_task(server.serve(control_routes(tap, TAP_PATHS))))
        typer.echo(f"ottla tap listens on {tap.bootstrap} in front of {target}; stop with Ctrl-C", err=True)

    try:
        await tap.run(ready, stop)
    finally:
        if server is not None:
            await asyncio.gather(*tasks)
            await server.stop()
        for capture in captures:
            capture.close()
            typer.echo(f"{format_count(capture.frames, 'frame')} in {options.output}", err=True)


class _Chosen:
    """Selects the frames that are printed and captured."""

    def __init__(self, apis: Collection[int] | None, client_id: str | None, topic: str | None) -> None:
        self._apis = apis
        self._client_id = client_id
        self._topic = topic
        self._named: dict[tuple[int, int], bool] = {}

    def only(self, sink: _Printer | CaptureFile) -> _Filter:
        """Return a sink that passes only the selected frames to `sink`."""
        return _Filter(self, sink)

    def selects(self, frame: CapturedFrame) -> bool:
        """Return whether a frame is selected. The response to a request that names the topic is."""
        if self._apis is not None and frame.api_key not in self._apis:
            return False
        if self._client_id is not None and frame.client_id != self._client_id:
            return False
        if self._topic is None:
            return True
        named = self._topic.encode() in frame.frame
        request = (frame.connection, frame.correlation_id)
        if frame.direction == REQUEST:
            self._named[request] = named
            return named
        return self._named.pop(request, False) or named


class _Filter:
    def __init__(self, chosen: _Chosen, sink: _Printer | CaptureFile) -> None:
        self._chosen = chosen
        self._sink = sink

    def __call__(self, frame: CapturedFrame) -> None:
        """Pass a selected frame to the sink."""
        if self._chosen.selects(frame):
            self._sink(frame)


class _Printer:
    """Prints frames as `ottla decode` does."""

    def __init__(self, *, brief: bool, hexdump: bool, show_secrets: bool, as_json: bool) -> None:
        self._as_json = as_json
        self._brief = brief
        self._hexdump = hexdump
        self._show_secrets = show_secrets
        self._inspector = Inspector(lambda frame, start, end, depth: batch_lines(frame, start, end, depth, None))
        self._console: Console | None = None

    def __call__(self, frame: CapturedFrame) -> None:
        """Print a frame."""
        if self._as_json:
            print_json(self._object(frame))
            return
        if self._brief:
            arrow = "->" if frame.direction == REQUEST else "<-"
            node = frame.server if frame.node is None else f"node {frame.node}"
            echo(
                f"{frame.client} ({frame.client_id}) {arrow} {node}  {frame.api} v{frame.version} "
                f"{frame.direction} #{frame.correlation_id}, {frame.size} bytes"
            )
            return
        from ottla.cli.debugging.decode import print_inspection
        from ottla.cli.terminal.output import console

        if self._console is None:
            self._console = console()
        print_inspection(self._console, inspect_frame(self._inspector, frame), self._hexdump, self._show_secrets)

    def _object(self, frame: CapturedFrame) -> dict[str, Any]:
        """Return the frame's line of a capture, and its fields as `ottla decode --json` prints them."""
        row = frame._asdict()
        del row["frame"]
        if not self._brief:
            from ottla.cli.debugging.decode import as_object

            decoded = as_object(inspect_frame(self._inspector, frame), self._show_secrets)
            row |= {"tree": decoded["tree"], "error": decoded["error"]}
        return row


def inspect_frame(inspector: Inspector, frame: CapturedFrame) -> Inspection:
    """Return the fields of a captured frame."""
    whole = LENGTH.pack(len(frame.frame)) + frame.frame
    if frame.direction == REQUEST:
        return inspector.request(whole)
    return inspector.response(whole, frame.api_key, frame.version)
