"""Reserves ports for servers that need a fixed one."""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import IO

# Below those that systems hand out by themselves: what is free here stays free until it is used, however many others
# ask for any port meanwhile. Each process begins elsewhere.
LOWEST, HIGHEST = 12_000, 32_000
_PORTS = itertools.count(os.getpid() * 97)


def free_ports(count: int) -> list[int]:
    """Return unused ports on loopback, which are reserved for this process until it ends.

    A server that is down for a moment finds its port free when it comes back, whatever other tests run beside it.
    """
    free_ports: list[int] = []
    while len(free_ports) < count:
        port = LOWEST + next(_PORTS) % (HIGHEST - LOWEST)
        try:
            fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        free_ports.append(port)
    return free_ports


@lru_cache(maxsize=1)
def _claims() -> IO[bytes]:
    """Return a file with one byte per port, locked by the process that reserved the port until it ends."""
    return Path(tempfile.gettempdir(), f"ottla-test-ports-{os.getuid()}").open("ab")
