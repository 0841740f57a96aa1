"""Java's key and trust stores: JKS as keytool writes it, and stores whose format only their contents tell.

`recorded/server.jks` and `recorded/trust.jks` were made with keytool of JDK 17:

    keytool -genkeypair -alias server -keyalg EC -groupname secp256r1 -validity 36500 -dname CN=localhost,O=Acme \\
        -ext san=dns:localhost,ip:127.0.0.1 -storetype JKS -keystore server.jks -storepass store-secret \\
        -keypass key-secret
    keytool -exportcert -alias server -keystore server.jks -storepass store-secret -rfc -file server.crt
    keytool -importcert -noprompt -alias server -file server.crt -storetype JKS -keystore trust.jks \\
        -storepass trust-secret
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.client import Client
from ottla.client.auth import security_from_properties
from ottla.security.dev_tls import Authority
from ottla.security.stores import StoreError, trusted_certificates
from ottla.security.tls import TlsError, TlsSettings, server_context
from ottla.testing import Cluster

RECORDED = Path(__file__).parent / "recorded"
SERVER = {
    "ssl.keystore.location": str(RECORDED / "server.jks"),
    "ssl.keystore.password": "store-secret",
    "ssl.key.password": "key-secret",
}
CLIENT = {
    "security.protocol": "SSL",
    "ssl.truststore.location": str(RECORDED / "trust.jks"),
    "ssl.truststore.password": "trust-secret",
}


@pytest.mark.parametrize("declared", [{}, {"ssl.keystore.type": "JKS"}])
def test_broker_and_client_read_jks(declared: dict[str, str]) -> None:
    configs = {"listeners": "SSL://127.0.0.1:0", **SERVER, **declared}
    with Cluster(topics=["orders"], configs=configs) as cluster:
        address = cluster.bootstrap
        with Client(address, timeout=60, security=security_from_properties(CLIENT, {})) as client:
            assert [topic.name for topic in client.topics()] == ["orders"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"ssl.keystore.password": "wrong"}, "the store cannot be opened with this password"),
        ({"ssl.key.password": "wrong"}, r"the private key cannot be opened.*ssl\.key\.password"),
        (
            {"ssl.keystore.location": str(RECORDED / "trust.jks"), "ssl.keystore.password": "trust-secret"},
            "no private key",
        ),
        ({"ssl.keystore.type": "JCEKS"}, "JCEKS cannot be read here; use PEM, PKCS12 or JKS"),
        ({"ssl.keystore.type": "PKCS12"}, "cannot be opened"),
    ],
)
def test_store_errors_name_the_reason(change: dict[str, str], problem: str) -> None:
    with pytest.raises(TlsError, match=problem):
        server_context(TlsSettings.read({**SERVER, **change}.get))


def test_damaged_store_is_refused() -> None:
    data = (RECORDED / "trust.jks").read_bytes()
    for end in range(4, len(data)):
        with pytest.raises(StoreError):
            trusted_certificates("JKS", data[:end], "trust-secret")
    for position in range(4, len(data), 7):
        changed = bytearray(data)
        changed[position] ^= 0x41
        with pytest.raises(StoreError):
            trusted_certificates("JKS", bytes(changed), "trust-secret")


def test_default_store_type_detects_format(tmp_path: Path) -> None:
    identity = Authority().server()
    (tmp_path / "new.jks").write_bytes(identity.pkcs12("secret"))  # what keytool of today writes under this name
    (tmp_path / "store").write_bytes(identity.pem)
    for name in ("new.jks", "store"):
        settings = {"ssl.keystore.type": "JKS", "ssl.keystore.location": str(tmp_path / name)}
        server_context(TlsSettings.read({**settings, "ssl.keystore.password": "secret"}.get))
