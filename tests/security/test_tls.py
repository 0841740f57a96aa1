"""TLS listeners: stores, versions, client certificates, principals, renewal, refusals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import warnings
from typing import TYPE_CHECKING

import pytest

from ottla.client import Client, ConnectionFailedError
from ottla.client.auth import security_from_properties
from ottla.security.dev_tls import Authority, write_private
from ottla.security.tls import PrincipalMapper, TlsError, TlsSettings, distinguished_name, server_context
from ottla.testing import Cluster
from ottla.testing.security import AUTHORIZER
from tests.testing.clients import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("security tls")  # one worker, one cluster

RULES = r"RULE:^CN=(.*?),O=(.*)$/$1@$2/L,DEFAULT"


class Certificates:
    """Files of one authority, and of another one that is not trusted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority()
        self.stranger = Authority("somebody else's CA")
        server = self.authority.server()
        self.write("server.pem", server.pem)
        self.write("server.p12", server.pkcs12("store-secret"))
        self.write("ca.pem", self.authority.certificate_pem)
        self.write("stranger.pem", self.stranger.client("alice", "Acme").pem)
        for name in ("alice", "bob"):
            identity = self.authority.client(name, "Acme" if name == "alice" else None)
            self.write(f"{name}.pem", identity.pem)
            self.write(f"{name}.p12", identity.pkcs12(f"{name}-secret", self.authority.identity.certificate))

    def write(self, name: str, data: bytes) -> None:
        write_private(str(self.directory / name), data)

    def path(self, name: str) -> str:
        return str(self.directory / name)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def cluster(certificates: Certificates) -> Iterator[Cluster]:
    listeners = "TLS://127.0.0.1:0,MUTUAL://127.0.0.1:0,OLD://127.0.0.1:0"
    with Cluster(
        configs={
            "listeners": listeners,
            "listener.security.protocol.map": "TLS:SSL,MUTUAL:SSL,OLD:SSL",
            "inter.broker.listener.name": "TLS",
            "ssl.keystore.location": certificates.path("server.pem"),
            "ssl.truststore.location": certificates.path("ca.pem"),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.keystore.location": certificates.path("server.p12"),
            "listener.name.mutual.ssl.keystore.type": "PKCS12",
            "listener.name.mutual.ssl.keystore.password": "store-secret",
            "listener.name.old.ssl.enabled.protocols": "TLSv1.2",
            "ssl.principal.mapping.rules": RULES,
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:alice@acme;User:ANONYMOUS",
        },
        topics=["orders:1"],
    ) as cluster:
        yield cluster


def port(cluster: Cluster, listener: str) -> int:
    return cluster.call(lambda broker: broker.nodes[1].endpoints[listener].port)


def topics(cluster: Cluster, listener: str, certificates: Certificates, **properties: str) -> list[str]:
    settings = {"security.protocol": "SSL", "ssl.truststore.location": certificates.path("ca.pem")}
    settings |= {key.replace("_", "."): value for key, value in properties.items()}
    address = f"localhost:{port(cluster, listener)}"
    with Client(address, timeout=60, security=security_from_properties(settings, {})) as client:
        return [topic.name for topic in client.topics()]


@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
def test_tls_1_2_and_1_3_are_served(cluster: Cluster, certificates: Certificates, protocol: str) -> None:
    assert topics(cluster, "TLS", certificates, ssl_enabled_protocols=protocol) == ["orders"]


def test_listener_settings_override_general_ones(cluster: Cluster, certificates: Certificates) -> None:
    assert topics(cluster, "OLD", certificates, ssl_enabled_protocols="TLSv1.2") == ["orders"]
    with pytest.raises(ConnectionFailedError):
        topics(cluster, "OLD", certificates, ssl_enabled_protocols="TLSv1.3")


@pytest.mark.parametrize("name", ["alice.pem", "alice.p12"])
def test_certificate_subject_is_the_principal(cluster: Cluster, certificates: Certificates, name: str) -> None:
    result = topics(
        cluster,
        "MUTUAL",
        certificates,
        ssl_keystore_location=certificates.path(name),
        ssl_keystore_password="alice-secret",
    )
    assert result == ["orders"], "alice@acme is a super user"


def test_other_certificate_has_other_principal(cluster: Cluster, certificates: Certificates) -> None:
    assert topics(cluster, "MUTUAL", certificates, ssl_keystore_location=certificates.path("bob.pem")) == []


def test_missing_and_untrusted_certificates_are_refused(cluster: Cluster, certificates: Certificates) -> None:
    with pytest.raises(ConnectionFailedError):
        topics(cluster, "MUTUAL", certificates)
    with pytest.raises(ConnectionFailedError):
        topics(cluster, "MUTUAL", certificates, ssl_keystore_location=certificates.path("stranger.pem"))
    assert topics(cluster, "TLS", certificates) == ["orders"], "others are served all the same"


def test_client_refuses_untrusted_broker(cluster: Cluster, certificates: Certificates) -> None:
    certificates.write("strange-ca.pem", certificates.stranger.certificate_pem)
    with pytest.raises(ConnectionFailedError, match="certificate"):
        topics(cluster, "TLS", certificates, ssl_truststore_location=certificates.path("strange-ca.pem"))


def test_client_verifies_host_name_by_default(certificates: Certificates) -> None:
    certificates.write("elsewhere.pem", certificates.authority.server(["broker.example"]).pem)
    configs = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": certificates.path("elsewhere.pem")}
    with Cluster(configs=configs, topics=["orders:1"]) as cluster:
        with pytest.raises(ConnectionFailedError, match=r"[Hh]ostname"):
            topics(cluster, "SSL", certificates)
        assert topics(cluster, "SSL", certificates, ssl_endpoint_identification_algorithm="") == ["orders"]


def test_old_tls_and_plain_text_are_refused(cluster: Cluster) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", port(cluster, "TLS")), timeout=60) as raw,
        pytest.raises((ssl.SSLError, OSError)),
    ):
        context.wrap_socket(raw)
    with socket.create_connection(("127.0.0.1", port(cluster, "TLS")), timeout=60) as raw:
        raw.sendall(bytes.fromhex("0000001000120000000000010006") + b"nobody")
        with contextlib.suppress(ConnectionError):
            assert not raw.recv(1000).startswith(b"\x00\x00"), "no Kafka answer in the clear"


def test_renewed_certificate_is_used_without_restart(certificates: Certificates, tmp_path: Path) -> None:
    store = tmp_path / "server.pem"
    write_private(str(store), certificates.authority.server(name="first").pem)
    configs = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(store)}
    with Cluster(configs=configs, topics=["orders:1"]) as cluster:
        where = port(cluster, "SSL")
        trusting = security_from_properties(
            {"security.protocol": "SSL", "ssl.truststore.location": certificates.path("ca.pem")}, {}
        )
        with Client(f"localhost:{where}", timeout=60, security=trusting) as old:
            assert old.topics()
            assert _served_name(where, certificates) == "first"
            write_private(str(store), b"no certificate at all")
            write_private(str(store), certificates.authority.server(name="second").pem)
            _until(lambda: _served_name(where, certificates) == "second")
            assert old.topics(), "who was connected stays connected"


def _served_name(where: int, certificates: Certificates) -> str:
    context = ssl.create_default_context(cafile=certificates.path("ca.pem"))
    with (
        socket.create_connection(("localhost", where), timeout=60) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as wrapped,
    ):
        certificate = wrapped.getpeercert()
        assert certificate is not None
        return distinguished_name(certificate).removeprefix("CN=")


def _until(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, r"ssl\.keystore\.location"),
        ({"ssl.keystore.location": "/no/such/file.pem"}, "No such file"),
        ({"ssl.keystore.location": "x.jks"}, "x.jks|PEM or PKCS12"),
        ({"ssl.keystore.key": "k"}, r"certificate\.chain"),
        ({"ssl.keystore.location": "{server.p12}", "ssl.keystore.password": "wrong"}, "cannot be opened"),
        ({"ssl.keystore.location": "{ca.pem}"}, "no private key"),
        ({"ssl.keystore.location": "{server.pem}", "ssl.client.auth": "required"}, r"ssl\.truststore"),
        ({"ssl.keystore.location": "{server.pem}", "ssl.client.auth": "maybe"}, r"ssl\.client\.auth"),
        ({"ssl.keystore.location": "{server.pem}", "ssl.enabled.protocols": "SSLv3"}, r"ssl\.enabled\.protocols"),
    ],
)
def test_invalid_ssl_settings_are_named(certificates: Certificates, settings: dict[str, str], problem: str) -> None:
    filled = {
        key: certificates.path(value[1:-1]) if value.startswith("{") else value for key, value in settings.items()
    }
    with pytest.raises(TlsError, match=problem) as caught:
        server_context(TlsSettings.read(filled.get))
    assert "wrong" not in str(caught.value).replace("wrongly", "")


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", "CN=alice,O=Acme", "CN=alice,O=Acme"),
        (RULES, "CN=Alice,O=Acme", "alice@acme"),
        (RULES, "CN=Alice", "CN=Alice"),
        (r"RULE:^CN=(.*?)$/$1/U", "CN=alice", "ALICE"),
        (r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/, DEFAULT", "OU=x,CN=a.b,O=y", "a.b"),
        (r"RULE:^CN=(.*?),OU=(.*?)$/$2\/$1/L , RULE:^CN=(.*)$/$1/", "CN=a,OU=b", "b/a"),
    ],
)
def test_mapping_rules_map_names_to_principals(rules: str, name: str, principal: str) -> None:
    assert PrincipalMapper(rules).principal(name) == principal


def test_invalid_mapping_rules_are_refused() -> None:
    for rules in ("RULE:(/x/", "MAYBE", "RULE:a/b"):
        with pytest.raises(TlsError, match="mapping"):
            PrincipalMapper(rules)
    with pytest.raises(TlsError, match="no rule"):
        PrincipalMapper("RULE:^CN=a$/x/").principal("CN=b")


def test_distinguished_name_is_formatted_as_in_java() -> None:
    subject = ((("countryName", "DE"),), (("organizationName", "A, B"),), (("commonName", "#x"), ("userId", "u")))
    assert distinguished_name({"subject": subject}) == "CN=\\#x+UID=u,O=A\\, B,C=DE"


def test_serve_dev_tls_creates_authority() -> None:
    command = [sys.executable, "-c", "from ottla.cli import main; main()", "serve", "--dev-tls", "-p", "0", "--json"]
    command += ["--seed-topic", "orders:1", "-l", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            parsed = json.loads(process.stdout.readline())
            settings = {"security.protocol": "SSL", "ssl.truststore.location": parsed["ca"]}
            with Client(parsed["bootstrap"], timeout=60, security=security_from_properties(settings, {})) as client:
                assert [topic.name for topic in client.topics()] == ["orders"]
            assert os.path.exists(parsed["client_properties"])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    assert not os.path.exists(parsed["ca"])


def test_failed_handshake_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ottla.world.transport_tls")
    with Cluster(tls=True, configs={"ssl.client.auth": "required"}) as cluster:
        host, _, port = cluster.bootstrap.rpartition(":")

        def reason_of(attempt: Callable[[socket.socket], object]) -> str:
            caplog.clear()
            with socket.create_connection((host, int(port))) as wire:
                name = "{}:{}".format(*wire.getsockname())
                with contextlib.suppress(OSError):
                    attempt(wire)
            eventually(lambda: caplog.messages != [])
            message = caplog.messages[0]
            assert message.startswith(f"TLS handshake with {name} failed: ")
            return message.partition("failed: ")[2]

        def without_certificate(wire: socket.socket) -> None:
            trusting = ssl.create_default_context(cadata=cluster.ca_pem)
            trusting.wrap_socket(wire, server_hostname="localhost").recv(1)

        assert "does not speak TLS" in reason_of(lambda wire: (wire.sendall(b"\0\0\0\x10" + bytes(16)), wire.recv(1)))
        assert "does not trust the broker's certificate" in reason_of(
            lambda wire: ssl.create_default_context().wrap_socket(wire, server_hostname="localhost")
        )
        assert "no certificate, which ssl.client.auth=required" in reason_of(without_certificate)
        assert "closed the connection" in reason_of(lambda wire: wire.sendall(b"\x16\x03\x01"))
