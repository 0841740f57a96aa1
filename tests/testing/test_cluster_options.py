"""`with`, `async with`, decorators, and the arguments of `Cluster`."""

from __future__ import annotations

import inspect

import pytest
from confluent_kafka.admin import AdminClient

from ottla.testing import Cluster
from tests.testing.clients import producer, send, values


@Cluster(topics=["t"])
def decorated(value: str, cluster: Cluster) -> tuple[str, list[str]]:
    """Documented."""
    send(producer(cluster), "t", value)
    return cluster.cluster_id, values(cluster, "t")


@Cluster(topics=["t"])
async def decorated_coroutine(cluster: Cluster) -> list[str]:
    return cluster.topics()


def test_decorated_function_gets_new_cluster_per_call() -> None:
    first, second = decorated("a"), decorated("b")
    assert (first[1], second[1]) == (["a"], ["b"])
    assert first[0] != second[0]
    assert decorated.__doc__ == "Documented."
    assert list(inspect.signature(decorated).parameters) == ["value"]


async def test_decorated_coroutine_function() -> None:
    assert await decorated_coroutine() == ["t"]


def test_decorating_function_without_parameter_raises() -> None:
    with pytest.raises(TypeError, match="has no parameter `cluster`"):

        @Cluster()
        def nothing() -> None: ...


@Cluster(topics=["t"])
def test_decorated_test_is_collected_by_pytest(cluster: Cluster) -> None:
    assert cluster.topics() == ["t"]


def test_as_version_advertises_older_release() -> None:
    with Cluster(topics=["t"], as_version="2.8") as cluster:
        send(producer(cluster), "t", "a")
        assert values(cluster, "t") == ["a"]
        assert {seen.version for seen in cluster.requests("Produce")} <= set(range(3, 10))
    with pytest.raises(ValueError, match="unknown release"):
        Cluster(as_version="0.1")


def test_cluster_id_is_used() -> None:
    with Cluster(cluster_id="4L6g3nShT-eMCtK--X86sw") as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        assert admin.list_topics(timeout=60).cluster_id == cluster.cluster_id == "4L6g3nShT-eMCtK--X86sw"


def test_topics_with_partitions_and_configs() -> None:
    topics = {"t": {"partitions": 2, "configs": {"retention.ms": "5"}}, "u": {}}
    with Cluster(topics=topics) as cluster:
        assert [partition.partition for partition in cluster.partitions("t")] == [0, 1]
        assert cluster.call(lambda broker: broker.partitions["t", 0].log.config.retention_ms) == 5


def test_ports_are_used() -> None:
    for _ in range(10):
        with Cluster() as first:
            port = int(first.bootstrap.rpartition(":")[2])
        try:
            with Cluster(ports=[port]) as cluster:
                assert cluster.bootstrap.endswith(f":{port}")
                return
        except OSError:
            continue  # another process took the port
    raise AssertionError("no port was free twice")


def test_tls_with_throw_away_authority() -> None:
    with Cluster(topics=["t"], tls=True) as cluster:
        client = producer(cluster, security_protocol="SSL", ssl_ca_pem=cluster.ca_pem)
        assert send(client, "t", "a").error is None
        assert [connection.listener for connection in cluster.connections()][:1] == ["SSL"]
    with Cluster() as cluster, pytest.raises(RuntimeError, match="tls=True"):
        _ = cluster.ca_pem


def test_users_behind_tls_and_client_certificates() -> None:
    login = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "alice", "sasl_password": "secret"}
    with Cluster(topics=["t"], users={"alice": "secret"}, tls=True) as cluster:
        client = producer(cluster, security_protocol="SASL_SSL", ssl_ca_pem=cluster.ca_pem, **login)
        assert send(client, "t", "a").error is None
        assert "User:alice" in {seen.principal for seen in cluster.requests("Produce")}
    with Cluster(topics=["t"], tls=True, configs={"ssl.client.auth": "required"}) as cluster:
        assert cluster.authority is not None
        me = cluster.authority.client("bob")
        client = producer(
            cluster,
            security_protocol="SSL",
            ssl_ca_pem=cluster.ca_pem,
            ssl_certificate_pem=me.certificate_pem.decode(),
            ssl_key_pem=me.key_pem.decode(),
        )
        assert send(client, "t", "a").error is None
        assert {seen.principal for seen in cluster.requests("Produce")} == {"User:CN=bob"}
