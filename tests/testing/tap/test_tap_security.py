"""A tap with TLS on either side and forwarded SASL; secrets are not captured."""

from __future__ import annotations

import base64
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer

from ottla.protocol.capture import CapturedFrame, read_capture
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.k03_metadata import MetadataRequest
from ottla.protocol.messages.k17_sasl_handshake import SaslHandshakeRequest
from ottla.security.dev_tls import Authority, write_private
from ottla.testing import Cluster, Tap
from ottla.testing.security import allow
from ottla.testing.tap.tap import CaptureFile
from tests.testing.clients import eventually, read, send

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PASSWORD = "very-secret"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    acls = [allow("alice", "all", topic="t"), allow("alice", "all", group="g")]
    topics = {"t": {"partitions": 2, "replication_factor": 2}}
    with Cluster(2, topics=topics, users={"alice": PASSWORD}, acls=acls, tls=True) as running:
        yield running


def target(cluster: Cluster) -> str:
    return cluster.bootstrap.split(",")[0]


def towards(cluster: Cluster) -> dict[str, str]:
    """Return the client properties with which the tap connects to the cluster."""
    return {"security.protocol": "SASL_SSL", "ssl.truststore.certificates": cluster.ca_pem}


def client(tap: Tap, mechanism: str = "SCRAM-SHA-256", **more: Any) -> dict[str, Any]:
    secured = {} if tap.authority is None else {"ssl.ca.pem": tap.ca_pem}
    return {
        "bootstrap.servers": tap.bootstrap,
        "security.protocol": "SASL_PLAINTEXT" if tap.authority is None else "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
        "log_level": 0,
        **secured,
        **more,
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("tls", [False, True])
def test_sasl_is_forwarded(cluster: Cluster, tmp_path: Path, mechanism: str, tls: bool) -> None:
    path = tmp_path / "capture.jsonl"
    capture = CaptureFile(str(path), target(cluster))
    seen: list[CapturedFrame] = []
    with Tap(target(cluster), properties=towards(cluster), tls=tls, sinks=[capture, seen.append]) as tap:
        writer = Producer(client(tap, mechanism))
        for partition in range(2):
            assert send(writer, "t", f"{mechanism} {partition}", partition).error is None
    capture.close()
    assert {frame.server for frame in seen if frame.api == "Produce"} == set(cluster.nodes().values())
    assert any(frame.api == "SaslAuthenticate" for frame in seen)
    written = path.read_text()
    with path.open() as lines:
        frames = b"".join(frame.frame for frame in read_capture(lines))
    assert PASSWORD not in written
    assert PASSWORD.encode() not in frames


def test_rules_act_behind_tls(cluster: Cluster) -> None:
    with Tap(target(cluster), properties=towards(cluster), tls=True) as tap:
        rule = tap.on("Produce", topic="t").error("NOT_LEADER_OR_FOLLOWER")
        assert send(Producer(client(tap)), "t", "a").error is None
        assert rule.hits == 1
        reader = Consumer(client(tap, **{"group.id": "g", "auto.offset.reset": "earliest"}))
        reader.subscribe(["t"])
        assert read(reader, 1)
        reader.close()


def test_untrusted_broker_certificate_closes_connection(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    strange = {"security.protocol": "SSL", "ssl.truststore.certificates": Authority().certificate_pem.decode()}
    with Tap(target(cluster), properties=strange) as tap:
        writer = Producer(client(tap, **{"message.timeout.ms": 500}))
        assert send(writer, "t", "a").error_name == "_MSG_TIMED_OUT"
        eventually(lambda: "CERTIFICATE_VERIFY_FAILED" in caplog.text, "the certificate error")  # the client retries


def test_invalid_tls_settings_raise() -> None:
    with pytest.raises(ValueError, match=r"security\.protocol"):
        Tap("localhost:1", properties={"security.protocol": "TLS"})
    with pytest.raises(ValueError, match=r"ssl\.keystore"):
        Tap("localhost:1", tls={"ssl.client.auth": "none"})
    with pytest.raises(RuntimeError, match="no certificate authority"):
        _ = Tap("localhost:1").ca_pem


def test_raw_sasl_tokens_are_forwarded_and_not_captured() -> None:
    seen: list[CapturedFrame] = []
    with (
        Cluster(topics=["t"], users={"alice": PASSWORD}) as cluster,
        Tap(cluster.bootstrap, sinks=[seen.append]) as tap,
        socket.create_connection(("127.0.0.1", int(tap.bootstrap.rpartition(":")[2])), timeout=60) as wire,
    ):
        reading = wire.makefile("rb")

        def ask(frame: bytes) -> bytes:
            wire.sendall(frame)
            return reading.read(int.from_bytes(reading.read(4), "big"))

        assert ask(encode_request(17, 0, 1, "test", SaslHandshakeRequest(mechanism="PLAIN")))
        token = f"\0alice\0{PASSWORD}".encode()
        assert ask(len(token).to_bytes(4, "big") + token) == b""
        assert b"t" in ask(encode_request(3, 1, 2, "test", MetadataRequest(topics=None)))
    assert [frame.api for frame in seen] == ["SaslHandshake"] * 2 + ["Metadata"] * 2


def test_wildcard_listener_names_the_address_of_the_client() -> None:
    with Cluster(topics=["t"]) as cluster, Tap(cluster.bootstrap, "0.0.0.0:0") as tap:
        settings = {"bootstrap.servers": f"127.0.0.1:{tap.bootstrap.rpartition(':')[2]}"}
        brokers = Producer(settings).list_topics(timeout=60).brokers
        assert [broker.host for broker in brokers.values()] == ["127.0.0.1"]


@pytest.mark.parametrize("how", ["--dev-tls", "--listen-config"])
def test_command_listens_and_connects_with_tls(cluster: Cluster, tmp_path: Path, how: str) -> None:
    (tmp_path / "kafka-ca.pem").write_text(cluster.ca_pem)
    (tmp_path / "client.properties").write_text(
        f"security.protocol=SASL_SSL\nssl.truststore.location={tmp_path / 'kafka-ca.pem'}\n"
    )
    trust, listen = "", ["--dev-tls"]
    if how == "--listen-config":
        authority = Authority()
        write_private(str(tmp_path / "server.pem"), authority.server().pem)
        (tmp_path / "listen.properties").write_text(f"ssl.keystore.location={tmp_path / 'server.pem'}\n")
        trust, listen = authority.certificate_pem.decode(), ["--listen-config", str(tmp_path / "listen.properties")]
    command = [sys.executable, "-m", "ottla", "tap", "127.0.0.1:0", target(cluster), *listen]
    command += ["--command-config", str(tmp_path / "client.properties"), "--hexdump"]
    command += ["-o", str(tmp_path / "capture.jsonl")]
    with (tmp_path / "printed").open("w") as out:  # a full pipe without a reader would block the tap
        tap = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True)
    assert tap.stderr is not None
    if how == "--dev-tls":
        match = re.fullmatch(r"clients must trust (.*)\n", tap.stderr.readline())
        assert match is not None
        with open(match[1]) as file:
            trust = file.read()
    address = re.match(r"ottla tap listens on (\S+)", tap.stderr.readline())
    assert address is not None
    settings = {
        "bootstrap.servers": address[1],
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
        "ssl.ca.pem": trust,
    }
    assert send(Producer(settings), "t", "through the command").error is None
    tap.send_signal(signal.SIGTERM)
    tap.communicate(timeout=60)
    printed = (tmp_path / "printed").read_text()
    assert tap.returncode == 0
    assert "SaslAuthenticate" in printed
    for text in (printed, (tmp_path / "capture.jsonl").read_text()):
        assert PASSWORD not in text
        assert PASSWORD.encode().hex() not in text.replace(" ", "")
        assert base64.b64encode(PASSWORD.encode()).decode().rstrip("=") not in text


def test_command_refuses_secrets_on_command_line() -> None:
    command = [sys.executable, "-m", "ottla", "tap", "0", "localhost:1", "-X", "ssl.keystore.password=x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "command line" in done.stderr
