"""Ports for servers that cannot choose one themselves, or have to come back to theirs."""

from __future__ import annotations

import itertools
import os
import socket

# Below those that systems hand out by themselves: what is free here stays free until it is used, however many others
# ask for any port meanwhile. Each process begins elsewhere.
LOWEST, HIGHEST = 12_000, 32_000
_PORTS = itertools.count(os.getpid() * 97)


def free_ports(count: int) -> list[int]:
    """Return ports on loopback that nobody listens on, and that this process was not given before."""
    found: list[int] = []
    while len(found) < count:
        port = LOWEST + next(_PORTS) % (HIGHEST - LOWEST)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.append(port)
    return found
