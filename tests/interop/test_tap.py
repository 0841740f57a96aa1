"""The tap in front of Apache Kafka: clients stay connected through it, and rules apply."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.protocol.capture import read_capture
from ottla.security.dev_tls import Authority, write_private
from ottla.testing import Tap
from ottla.testing.tap.tap import CaptureFile
from tests.testing.clients import consumer, producer, read, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop
SECONDS = 300  # a guard


def test_clients_stay_behind_tap_of_kafka(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    target = apache_kafka.bootstrap
    path = tmp_path / "capture.jsonl"
    capture = CaptureFile(str(path), target)
    with Tap(target, sinks=[capture]) as tap:
        admin = AdminClient({"bootstrap.servers": tap.bootstrap})
        admin.create_topics([NewTopic("tapped", 2)])["tapped"].result(SECONDS)
        refused = tap.on("Produce", topic="tapped", partition=1).error("NOT_LEADER_OR_FOLLOWER")
        lost = tap.on("Produce", topic="tapped", partition=0).drop_connection(after_handling=True)
        client = producer(tap, enable_idempotence=True)  # type: ignore[arg-type]
        assert send(client, "tapped", "a", 0).error is None
        assert send(client, "tapped", "b", 1).error is None
        assert (refused.hits, lost.hits) == (1, 1)
        with closing(consumer(tap, "tapped", group_id="tapped")) as reader:  # type: ignore[arg-type]
            assert sorted(read(reader, 2)) == ["a", "b"]
            reader.commit(asynchronous=False)
    capture.close()
    with path.open() as lines:
        seen = {frame.api for frame in read_capture(lines)}
    assert {"ApiVersions", "Metadata", "Produce", "Fetch", "FindCoordinator", "OffsetCommit"} <= seen


def test_client_logs_in_to_kafka_with_tls_through_tap(
    apache_kafka_factory: Callable[..., ApacheKafka], tmp_path: Path
) -> None:
    authority = Authority()
    write_private(str(tmp_path / "server.pem"), authority.server().pem)
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "server.pem"),
    }
    path = tmp_path / "capture.jsonl"
    with apache_kafka_factory(log_dir=tmp_path / "data", sasl=True, settings=settings) as kafka:
        capture = CaptureFile(str(path), kafka.sasl_bootstrap)
        towards = {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.certificates": authority.certificate_pem.decode(),
        }
        with Tap(kafka.sasl_bootstrap, properties=towards, tls=True, sinks=[capture]) as tap:
            login = {
                "bootstrap.servers": tap.bootstrap,
                "security.protocol": "SASL_SSL",
                "ssl.ca.pem": tap.ca_pem,
                "sasl.mechanism": "PLAIN",
                "sasl.username": "alice",
                "sasl.password": "alice-secret",
            }
            admin = AdminClient(login)
            admin.create_topics([NewTopic("tapped", 1)])["tapped"].result(SECONDS)
            lost = tap.on("Produce").drop_connection(after_handling=True)
            assert send(Producer({**login, "enable.idempotence": True}), "tapped", "a").error is None
            assert lost.hits == 1
        capture.close()
    with path.open() as lines:
        frames = list(read_capture(lines))
    assert {"SaslHandshake", "SaslAuthenticate", "Metadata", "Produce"} <= {frame.api for frame in frames}
    assert not any(b"alice-secret" in frame.frame for frame in frames)
