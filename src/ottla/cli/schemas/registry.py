"""`ottla registry`: run a schema registry over any Kafka until SIGINT or SIGTERM."""

import json
import signal
import threading
from types import FrameType
from typing import Annotated, Any

import typer

from ottla.cli.options.commands import add_command
from ottla.cli.options.connect import CLIENT_ID, ClusterOptions, client_properties, cluster_errors
from ottla.cli.options.http import HttpHosts, RegistryUsers
from ottla.cli.terminal.output import fail, usage
from ottla.client import Client
from ottla.client.auth import security_from_properties
from ottla.registry.access import read_access
from ottla.registry.options import DEFAULT_PORT, registry_options, tls_settings


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(
        app,
        "registry",
        registry,
        "ottla registry -b localhost:9092",
        "ottla registry -b kafka.example:9092 --listen 8085",
        "ottla registry --listen 8443 --tls-certificate s.pem --users users.toml",
    )


def registry(
    *,
    listen: Annotated[
        str, typer.Option("--listen", metavar="[HOST:]PORT", help="Serve HTTP here; 0 picks a free port.")
    ] = str(DEFAULT_PORT),
    http_host: HttpHosts = None,
    users: RegistryUsers = None,
    tls_certificate: Annotated[
        str | None,
        typer.Option(
            "--tls-certificate",
            metavar="FILE",
            help="Serve https with this certificate chain in PEM form; the file has the key too without --tls-key.",
            show_default=False,
        ),
    ] = None,
    tls_key: Annotated[
        str | None,
        typer.Option("--tls-key", metavar="FILE", help="Read the private key from this PEM file.", show_default=False),
    ] = None,
    tls_client_ca: Annotated[
        str | None,
        typer.Option(
            "--tls-client-ca",
            metavar="FILE",
            help="Admit only clients with a certificate of this CA (PEM).",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as one JSON object.")] = False,
    cluster: ClusterOptions,
) -> None:
    """Run a schema registry over any Kafka.

    It answers as Confluent's registry does; its state is the topic _schemas of the Kafka, in Confluent's format. Ctrl-C
    or SIGTERM stops it.
    """
    from ottla.registry.server import RegistryServer

    try:
        tls = tls_settings(tls_certificate, tls_key, tls_client_ca)
        options = registry_options("--listen", listen, http_host or (), tls=tls)
        access = None if users is None else read_access(users)
        properties = client_properties(cluster.properties, cluster.properties_file)
        security = security_from_properties(properties)
    except ValueError as error:
        raise usage(str(error)) from error

    def connect() -> Client:
        return Client(
            cluster.bootstrap,
            client_id=properties.get(CLIENT_ID, "ottla-registry"),
            timeout=cluster.timeout,
            security=security,
        )

    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> Any:
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        with cluster_errors(), RegistryServer(connect, options, access) as server:
            if as_json:
                typer.echo(json.dumps({"url": server.url, "bootstrap": cluster.bootstrap}))
            else:
                typer.echo(f"schema registry listens on {server.url}; state: topic _schemas of {cluster.bootstrap}")
            stopped.wait()
    except OSError as error:
        raise fail(f"registry: {error}") from error
