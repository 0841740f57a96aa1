"""--as-version: advertised versions, refused versions, and clients of an older release."""

from __future__ import annotations

from itertools import pairwise

import pytest
from confluent_kafka import Consumer, Producer

from ottla.client import Client, ConnectionFailedError
from ottla.handlers.registry import apis
from ottla.protocol.messages.k01_fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.releases import find_release, release_names
from ottla.server.run import RunningCluster
from ottla.testing import Cluster


def test_older_release_has_no_newer_versions() -> None:
    releases = [find_release(name) for name in release_names()]
    for older, newer in pairwise(releases):
        assert all(newer.newest[key] >= version for key, version in older.newest.items()), newer.name


def test_newest_release_restricts_nothing() -> None:
    assert apis(find_release("4.3")) == apis()


def test_release_is_found_with_and_without_patch_number() -> None:
    assert find_release("3.5.2").name == find_release("v3.5").name == "3.5"
    with pytest.raises(ValueError, match="unknown release"):
        find_release("1.0")


@pytest.mark.parametrize("name", ["2.8", "3.5", "4.0"])
def test_clients_work_with_older_release(name: str) -> None:
    release = find_release(name)
    with Cluster(topics=["old"]) as cluster:
        play(cluster, name)
        with Client(cluster.bootstrap) as client:
            connection = client.node(1)
            assert {key: versions[-1] for key, versions in connection.versions.items()} == {
                key: min(api.advertised[-1], release.newest[key])
                for key, api in apis().items()
                if key in release.newest and release.restrict(key, api.versions)
            }
            too_new = release.newest[1] + 1
            with pytest.raises(ConnectionFailedError):
                connection.send(FetchRequest(), FetchResponse, version=too_new)
            request = ApiVersionsRequest(client_software_name="ottla", client_software_version="1")
            features = {
                supported_feature.name
                for supported_feature in client.to_any(request, ApiVersionsResponse).supported_features
            }
            assert ("transaction.version" in features) == (name == "4.0")
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "t"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("old", b"record")
        producer.commit_transaction(60)
        settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        consumer = Consumer(settings)
        consumer.subscribe(["old"])
        message = consumer.poll(60)
        assert message is not None
        assert message.value() == b"record"
        consumer.close()


def play(cluster: Cluster, name: str) -> None:
    """Make a running cluster serve an older release, as `ottla serve --as-version` does."""

    def change(broker: object) -> None:
        running = cluster._running
        assert isinstance(running, RunningCluster)
        broker.release = find_release(name)  # type: ignore[attr-defined]
        for server in running.servers.values():
            assert server.dispatch is not None
            server.dispatch.__init__(server.broker)  # type: ignore[misc]

    cluster.call(change)
