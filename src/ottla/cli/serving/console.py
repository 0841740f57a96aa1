"""`ottla console`: serve the web page of any Kafka until SIGINT or SIGTERM."""

import json
import signal
import threading
from types import FrameType
from typing import Annotated, Any

import typer

from ottla.cli.options.commands import add_command
from ottla.cli.options.connect import CLIENT_ID, ClusterOptions, client_properties
from ottla.cli.options.http import HttpHosts
from ottla.cli.terminal.output import fail, usage
from ottla.client import Client
from ottla.client.auth import security_from_properties
from ottla.client.client import parse_address
from ottla.console.options import DEFAULT_PORT, PASSWORD_VARIABLE, TOKEN_VARIABLE, parse_console_options

CALL_SECONDS = 10.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(
        app,
        "console",
        console,
        "ottla console -b localhost:9092",
        "ottla console -b kafka:9093 --command-config my.properties --read-only",
    )


def console(
    *,
    listen: Annotated[
        str, typer.Option("--listen", metavar="[HOST:]PORT", help="Serve the page here; 0 picks a free port.")
    ] = str(DEFAULT_PORT),
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every change.")] = False,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            envvar="OTTLA_REGISTRY",
            metavar="URL",
            help="Decode keys and values with the schemas of this registry.",
            show_default=False,
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            metavar="NAME",
            help=f"Require this login, with the password in {PASSWORD_VARIABLE}, instead of a token.",
            show_default=False,
        ),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Serve everyone who can reach the port, without a token.")
    ] = False,
    http_host: HttpHosts = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as one JSON object.")] = False,
    cluster: ClusterOptions,
) -> None:
    """Serve a web page for any Kafka: topics, records, groups.

    The printed address contains an access token, which OTTLA_CONSOLE_TOKEN sets. The page has the rights of the
    credentials that it connects with. It starts also while the cluster is away. Ctrl-C or SIGTERM stops it.
    """
    from ottla.console.server import ConsoleServer

    try:
        options = parse_console_options(
            "--listen",
            listen,
            allowed_hosts=http_host or (),
            user=user,
            no_auth=no_auth,
            read_only=read_only,
            registry=registry,
        )
        for address in cluster.bootstrap.split(","):
            parse_address(address)
        properties = client_properties(cluster.properties, cluster.properties_file)
        security = security_from_properties(properties)
    except ValueError as error:
        raise usage(str(error)) from error

    def connect() -> Client:
        return Client(
            cluster.bootstrap,
            client_id=properties.get(CLIENT_ID, "ottla-console"),
            timeout=min(cluster.timeout, CALL_SECONDS),
            security=security,
        )

    login = None if security is None else security.login
    principal = "" if login is None else login.username
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> Any:
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        with ConsoleServer(connect, options, bootstrap=cluster.bootstrap, principal=principal) as server:
            if as_json:
                typer.echo(json.dumps({"url": server.url, "bootstrap": cluster.bootstrap}))
            else:
                typer.echo(f"console of {cluster.bootstrap}: {server.url}")
                if options.token is not None:
                    typer.echo(f"  the address contains the access token; {TOKEN_VARIABLE} sets a fixed one")
                typer.echo("  stop with Ctrl-C")
            stopped.wait()
    except OSError as error:
        raise fail(f"console: {error}") from error
