"""The options of commands that serve HTTP: one definition for `serve`, `tap` and `registry`."""

from collections.abc import Sequence
from typing import Annotated

import typer

from ottla.server.web_options import CONTROL_TOKEN_VARIABLE, WebOptions, parse_web_options

ControlPort = Annotated[
    str | None,
    typer.Option(
        "--control",
        metavar="[HOST:]PORT",
        help="Serve the control API for tests over HTTP (see /openapi.json); 0 picks a free port.",
        show_default=False,
    ),
]
ControlToken = Annotated[
    str | None,
    typer.Option(
        "--control-token",
        envvar=CONTROL_TOKEN_VARIABLE,
        metavar="TOKEN",
        help="Require this bearer token of control requests. Other users of this machine can read command lines: "
        "prefer the environment variable.",
        show_default=False,
    ),
]
HttpHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--http-host",
        metavar="NAME",
        help="Accept HTTP requests for this host name, besides loopback names and the bound host; repeatable.",
    ),
]
RegistryUsers = Annotated[
    str | None,
    typer.Option(
        "--users",
        metavar="FILE",
        help="Admit only the users of this TOML file, with their rights by subject (see docs/registry.md).",
        show_default=False,
    ),
]


def control_options(port: str | None, token: str | None, hosts: Sequence[str] | None) -> WebOptions | None:
    """Return where the control API is served, None if it is not requested; ValueError if it cannot be."""
    if port is None:
        return None
    return parse_web_options("--control", port, token=token, allowed_hosts=hosts or (), token_option="--control-token")
