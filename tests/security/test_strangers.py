"""A thousand TLS connections that never authenticate: silent, half way through a handshake, or without SASL."""

from __future__ import annotations

import resource
import socket
import ssl
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from ottla.security.dev_tls import Authority
from ottla.testing import Cluster
from tests.testing.clients import eventually, send

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("security tls")


@pytest.fixture
def count() -> Iterator[int]:
    """Return the number of connections that the file descriptor limit allows; both ends are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 4000 if hard == resource.RLIM_INFINITY else min(hard, 4000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    yield min(1000, (max(soft, most) - 400) // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thousand_tls_connections_do_not_block_others(count: int) -> None:
    authority = Authority()
    with Cluster(topics=["t"], users={"alice": "secret"}, tls=authority) as cluster:
        address = ("127.0.0.1", int(cluster.bootstrap.rpartition(":")[2]))
        trusting = ssl.create_default_context(cadata=cluster.ca_pem)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        strangers: list[socket.socket] = []
        try:
            for number in range(count):
                wire = socket.create_connection(address, timeout=60)
                strangers.append(wire)
                if number % 10 == 0:  # one in ten finishes the handshake and then stays silent
                    strangers[-1] = trusting.wrap_socket(wire, server_hostname="localhost")
                elif number % 2:
                    side, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
                    hello = trusting.wrap_bio(side, goes, server_hostname="localhost")
                    with pytest.raises(ssl.SSLWantReadError):
                        hello.do_handshake()
                    wire.sendall(goes.read()[: 50 if number % 3 else None])
            settings = {
                "bootstrap.servers": cluster.bootstrap,
                "security.protocol": "SASL_SSL",
                "ssl.ca.pem": cluster.ca_pem,
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "alice",
                "sasl.password": "secret",
            }
            assert send(Producer(settings), "t", "a").error is None
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert grown < 400 * 1024, f"{grown} KiB for {count} strangers"
        finally:
            for wire in strangers:
                wire.close()
        eventually(lambda: len(cluster.connections()) <= 2)
