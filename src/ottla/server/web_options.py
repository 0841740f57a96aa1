"""An HTTP port as a command line or a test requests it, checked without loading the HTTP stack (`server.web`)."""

from __future__ import annotations

import importlib.util
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ipaddress import IPv4Address, IPv6Address

    from ottla.security.tls import TlsSettings
    from ottla.server.web import WebServer

CONTROL_TOKEN_VARIABLE: Final = "OTTLA_CONTROL_TOKEN"
WILDCARD_HOSTS: Final = frozenset({"", "0.0.0.0", "::"})
PACKAGES: Final = ("starlette", "uvicorn")


@dataclass(frozen=True, slots=True)
class WebOptions:
    """The address that an HTTP server listens on, the names that it accepts, the token that it requires, and TLS."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    tls: TlsSettings | None = None

    def server(self) -> WebServer:
        """Load the HTTP stack and return a server that is not bound yet."""
        from ottla.server.web import WebServer

        return WebServer(self)

    def serves_host(self, header: str) -> bool:
        """Return whether a request with this Host header is meant for this server.

        That is a loopback name, the bound host or an allowed one. A server on all interfaces also accepts this
        machine's name and any address: unlike a name, an address cannot be rebound by an attacker's DNS server.
        """
        name = host_name(header)
        if is_loopback(name) or name in {allowed.lower().strip("[]") for allowed in (self.host, *self.allowed_hosts)}:
            return True
        if self.host not in WILDCARD_HOSTS:
            return False
        return _address(name) is not None or name == socket.gethostname().lower()


def parse_web_options(
    option: str,
    text: str,
    *,
    token: str | None = None,
    allowed_hosts: Iterable[str] = (),
    token_option: str | None = None,
) -> WebOptions:
    """Return the options of `[HOST:]PORT`; ValueError if it cannot be served as requested.

    `token_option` names the option with the token that is required beyond loopback; None if none is required.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{option} {text}: write a port, or host:port")
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise ValueError(f"{option} requires {' and '.join(missing)}: pip install 'ottla[web]'")
    if token is not None and (not token.strip() or not token.isascii() or not token.isprintable()):
        raise ValueError(f"{token_option}: a token is one or more printable ASCII characters")
    host = host.strip("[]") or "127.0.0.1"
    if token_option is not None and token is None and not is_loopback(host):
        raise ValueError(
            f"{option} {text}: other machines can reach this address, so a token is required: set "
            f"{CONTROL_TOKEN_VARIABLE} or {token_option}"
        )
    return WebOptions(host, int(port), token, tuple(allowed_hosts))


def is_loopback(host: str) -> bool:
    """Return whether a host name or address can be reached from this machine only."""
    name = host.lower().strip("[]").removesuffix(".")
    address = _address(name)
    if address is not None:
        return address.is_loopback
    return name == "localhost" or name.endswith(".localhost")


def host_name(header: str) -> str:
    """Return the host of a Host header, without port and brackets; empty if it is malformed."""
    from urllib.parse import urlsplit

    if any(character in header for character in "@/?#\\"):
        return ""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _address(name: str) -> IPv4Address | IPv6Address | None:
    import ipaddress  # only servers with an HTTP port need it

    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
