"""Who is on the other end of a connection, and one request of theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.node import Broker

ANONYMOUS = "User:ANONYMOUS"


class Disconnect(Exception):  # noqa: N818 - it is what happens, not what went wrong
    """Close the connection instead of answering."""


@dataclass(slots=True, eq=False)
class Session:
    """What the broker remembers of a connection."""

    id: int
    listener: str
    host: str
    port: int
    principal: str = ANONYMOUS
    authenticated: bool = True
    client_id: str | None = None
    software_name: str = "unknown"
    software_version: str = "unknown"


@dataclass(slots=True, eq=False)
class Call:
    """One request in progress: which broker, who asks, at which version."""

    broker: Broker
    session: Session
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
