"""`ottla tap`: listen in on any Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connect import Properties, PropertiesFile, client_properties
from ottla.cli.dev_tls import make_dev_tls
from ottla.cli.output import examples, print_json
from ottla.client.auth import refuse_secrets
from ottla.protocol.capture import REQUEST
from ottla.protocol.inspector import Inspection, Inspector
from ottla.records.inspect import batch_lines
from ottla.server.web_options import CONTROL_TOKEN_VARIABLE, parse_web_options
from ottla.testing.cluster import new_loop
from ottla.testing.control.rules import api_keys
from ottla.testing.tap.engine import LENGTH
from ottla.testing.tap.tap import CaptureFile, Tap

if TYPE_CHECKING:
    from collections.abc import Collection

    from rich.console import Console

    from ottla.protocol.capture import CapturedFrame
    from ottla.server.web import WebServer
    from ottla.server.web_options import WebOptions

FAILED = 1
BAD_USAGE = 2
EXAMPLES = examples(
    "ottla tap 127.0.0.1:19092 localhost:9092",
    "ottla tap 19092 kafka.example:9092 --api Fetch --topic orders --brief",
    "ottla tap 19092 kafka.example:9092 --json --api Produce",
    "ottla tap 19092 kafka.example:9092 -q -o capture.jsonl",
    "ottla tap 19092 kafka.example:9093 -X security.protocol=SSL",
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tap", epilog=EXAMPLES)(tap)


def tap(
    listen: Annotated[str, typer.Argument(metavar="LISTEN", help="Where clients connect: host:port, or a port.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A broker of the Kafka: host:port.")],
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write a capture to this file.", show_default=False)
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", help="Capture only so many bytes of a frame.", show_default=False)
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no frames.")] = False,
    brief: Annotated[bool, typer.Option("--brief", help="Print one line per frame, not all its fields.")] = False,
    hexdump: Annotated[bool, typer.Option("--hexdump", help="Print the bytes too.")] = False,
    api: Annotated[
        list[str] | None, typer.Option("--api", help="Only this API (name or key); may be repeated.")
    ] = None,
    client_id: Annotated[str | None, typer.Option("--client-id", help="Only this client.", show_default=False)] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Only frames that name this topic.", show_default=False)
    ] = None,
    show_secrets: Annotated[
        bool, typer.Option("--show-secrets", help="Print and capture passwords and tokens instead of hiding them.")
    ] = False,
    control: Annotated[
        str | None,
        typer.Option(
            "--control",
            metavar="[HOST:]PORT",
            help="Serve the control API (rules for requests) there; 0 takes a free port.",
            show_default=False,
        ),
    ] = None,
    control_token: Annotated[
        str | None,
        typer.Option(
            "--control-token",
            envvar=CONTROL_TOKEN_VARIABLE,
            metavar="TOKEN",
            help="Require this bearer token of control requests; prefer the environment variable.",
            show_default=False,
        ),
    ] = None,
    properties: Properties = None,
    properties_file: PropertiesFile = None,
    dev_tls: Annotated[
        bool, typer.Option("--dev-tls", help="Listen with TLS, with a certificate of a throw-away authority.")
    ] = False,
    listen_config: Annotated[
        str | None,
        typer.Option(
            "--listen-config",
            metavar="FILE",
            help="Listen with TLS: a file with ssl.keystore.location and the like, as for a broker.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one object per frame; with --brief without its fields.")
    ] = False,
) -> None:
    """Print, capture and disturb what passes between Kafka clients and a Kafka.

    Point clients at LISTEN instead of at the Kafka; they stay behind the tap, because it puts its own addresses in the
    place of the brokers'. Filters choose what is printed and captured; everything is passed on.

    With security.protocol=SSL or SASL_SSL in --command-config or -X the way to the Kafka is TLS. Logins pass through.
    """
    throw_away = None
    try:
        wanted = api_keys([int(each) if each.isdigit() else each for each in api]) if api else None
        chosen = _Chosen(wanted, client_id, topic)
        web = None
        if control is not None:
            web = parse_web_options("--control", control, token=control_token, token_option="--control-token")
        refuse_secrets(client_properties(properties, None))
        if dev_tls and listen_config is not None:
            raise ValueError("--dev-tls and --listen-config: one of them says how to listen")
        settings = None if listen_config is None else client_properties(None, listen_config)
        if dev_tls:
            throw_away = make_dev_tls()
            settings = throw_away.configs
        made = Tap(target, listen, properties=client_properties(properties, properties_file), tls=settings or False)
    except ValueError as error:
        if throw_away is not None:
            throw_away.remove()
        typer.echo(f"ottla tap: {error}", err=True)
        raise typer.Exit(BAD_USAGE) from error
    try:
        if throw_away is not None:
            typer.echo(f"clients have to trust {throw_away.authority}", err=True)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            printer = (
                None if quiet else _Printer(brief=brief, hexdump=hexdump, show_secrets=show_secrets, as_json=as_json)
            )
            runner.run(_listen(made, chosen, target, output, max_bytes, printer, show_secrets, web))
    except OSError as error:
        typer.echo(f"ottla tap: {error}", err=True)
        raise typer.Exit(FAILED) from error
    finally:
        if throw_away is not None:
            throw_away.remove()


async def _listen(
    tap: Tap,
    chosen: _Chosen,
    target: str,
    output: str | None,
    max_bytes: int | None,
    printer: _Printer | None,
    show_secrets: bool,
    control: WebOptions | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(each, stop.set)
    capture = None
    if output is not None:
        capture = CaptureFile(output, target, max_bytes=max_bytes, show_secrets=show_secrets)
        tap.sinks.append(chosen.only(capture))
    if printer is not None:
        tap.sinks.append(chosen.only(printer))
    server: WebServer | None = None
    if control is not None:
        server = control.server()
        typer.echo(f"ottla tap serves the control API on {server.bind()}", err=True)
    tasks = []

    def ready() -> None:
        if server is not None:
            from ottla.testing.http.api import control_routes
            from ottla.testing.tap.tap import TapKit

            tasks.append(loop.create_task(server.serve(control_routes(TapKit(tap)))))
        typer.echo(f"ottla tap listens on {tap.bootstrap} in front of {target}; stop with Ctrl-C", err=True)

    try:
        await tap.run(ready, stop)
    finally:
        if server is not None:
            await asyncio.gather(*tasks)
            await server.stop()
        if capture is not None:
            capture.close()
            typer.echo(f"{capture.frames} frames in {output}", err=True)


class _Chosen:
    """Which frames are printed and captured."""

    def __init__(self, apis: Collection[int] | None, client_id: str | None, topic: str | None) -> None:
        self._apis = apis
        self._client_id = client_id
        self._topic = topic
        self._about: dict[tuple[int, int], bool] = {}

    def only(self, sink: _Printer | CaptureFile) -> _Filter:
        """A sink for the chosen frames alone."""
        return _Filter(self, sink)

    def fits(self, frame: CapturedFrame) -> bool:
        """Whether a frame is one of them; the answer to a request that names the topic is one too."""
        if self._apis is not None and frame.api_key not in self._apis:
            return False
        if self._client_id is not None and frame.client_id != self._client_id:
            return False
        if self._topic is None:
            return True
        names = self._topic.encode() in frame.frame
        place = (frame.connection, frame.correlation_id)
        if frame.direction == REQUEST:
            self._about[place] = names
            return names
        return self._about.pop(place, False) or names


class _Filter:
    def __init__(self, chosen: _Chosen, sink: _Printer | CaptureFile) -> None:
        self._chosen = chosen
        self._sink = sink

    def __call__(self, frame: CapturedFrame) -> None:
        """Pass a frame on if it is one of the chosen."""
        if self._chosen.fits(frame):
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
            typer.echo(
                f"{frame.client} ({frame.client_id}) {arrow} {node}  {frame.api} v{frame.version} "
                f"{frame.direction} #{frame.correlation_id}, {frame.size} bytes"
            )
            return
        from ottla.cli.decode import make_console, print_inspection

        if self._console is None:
            self._console = make_console()
        print_inspection(self._console, inspect_frame(self._inspector, frame), self._hexdump, self._show_secrets)

    def _object(self, frame: CapturedFrame) -> dict[str, Any]:
        """Who sent it to whom, as in a capture, and what it says, as `ottla decode --json` has it."""
        told = frame._asdict()
        del told["frame"]
        if not self._brief:
            from ottla.cli.decode import as_object

            found = as_object(inspect_frame(self._inspector, frame), self._show_secrets)
            told |= {"tree": found["tree"], "error": found["error"]}
        return told


def inspect_frame(inspector: Inspector, frame: CapturedFrame) -> Inspection:
    """Explain a captured frame."""
    whole = LENGTH.pack(len(frame.frame)) + frame.frame
    if frame.direction == REQUEST:
        return inspector.request(whole)
    return inspector.response(whole, frame.api_key, frame.version)
