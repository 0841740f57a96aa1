"""Where the console is served and to whom, checked without loading the HTTP stack."""

from __future__ import annotations

import importlib.util
import os
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.server.web_options import WebOptions, parse_web_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULT_PORT: Final = 9080
TOKEN_VARIABLE: Final = "OTTLA_CONSOLE_TOKEN"
PASSWORD_VARIABLE: Final = "OTTLA_CONSOLE_PASSWORD"
EXTRA: Final = "pip install 'ottla[console]'"


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """The address of the console, its access control, and what it may change."""

    web: WebOptions
    token: str | None = field(default=None, repr=False)
    """The token of the printed address; None if a login or no access control replaces it."""
    login: tuple[str, str] | None = field(default=None, repr=False)
    """User and password of HTTP basic authentication."""
    read_only: bool = False
    registry: str | None = field(default=None, repr=False)
    """The URL of a schema registry, which decodes keys and values."""


def parse_console_options(
    option: str,
    text: str,
    *,
    allowed_hosts: Iterable[str] = (),
    user: str | None = None,
    no_auth: bool = False,
    read_only: bool = False,
    registry: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> ConsoleOptions:
    """Return the options of a console on `[HOST:]PORT`; ValueError if it cannot be served as requested.

    Access requires a token, which OTTLA_CONSOLE_TOKEN sets and which is random otherwise; with `user`, a login whose
    password is in OTTLA_CONSOLE_PASSWORD; with `no_auth`, nothing.
    """
    environment = os.environ if environment is None else environment
    if importlib.util.find_spec("jinja2") is None:
        raise ValueError(f"{option} requires jinja2: {EXTRA}")
    web = parse_web_options(option, text, allowed_hosts=allowed_hosts)
    if user is not None and no_auth:
        raise ValueError("a login and --no-auth cannot be used together")
    if registry is not None:
        from ottla.schemas.registry_client import RegistryClient

        RegistryClient(registry)  # ValueError if it is no URL
    login = None
    if user is not None:
        password = environment.get(PASSWORD_VARIABLE, "")
        if not password or ":" in user:
            raise ValueError(f"a login requires a user name without a colon, and its password in {PASSWORD_VARIABLE}")
        login = user, password
    token = None
    if login is None and not no_auth:
        token = environment.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
        if len(token) < 8 or not token.isascii() or not token.isprintable():
            raise ValueError(f"{TOKEN_VARIABLE}: a token is eight or more printable ASCII characters")
    return ConsoleOptions(web, token, login, read_only, registry)
