"""Each action of a rule, and how real clients react."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from ottla.protocol.error_codes import ErrorCode
from ottla.protocol.messages.k18_api_versions import ApiVersionsRequest
from ottla.protocol.messages.k19_create_topics import CreatableTopicResult, CreateTopicsResponse
from ottla.testing import Cluster, ReceivedRequest, VirtualClock
from tests.conversations.side_by_side import Wire
from tests.testing.clients import Delivery, consumer, eventually, producer, read, send, values

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(topics=["t:2", "u"]) as running:
        yield running


@pytest.fixture
def slow() -> Iterator[Cluster]:
    """A cluster with virtual time."""
    with Cluster(topics=["t:2"], clock=VirtualClock()) as running:
        yield running


# Observe


def test_observed_requests_are_served(cluster: Cluster) -> None:
    looked: list[ReceivedRequest] = []
    rule = cluster.on("Produce", times=None).observe(looked.append)
    send(producer(cluster, client_id="me"), "t", "a")
    (received,) = rule.wait()
    assert (received.api, received.client_id, received.node) == ("Produce", "me", 1)
    assert received.request.topic_data[0].partition_data[0].index == 0
    assert looked == [received]
    assert values(cluster, "t") == ["a"]
    assert rule.active


def test_received_requests_are_selected(cluster: Cluster) -> None:
    send(producer(cluster, client_id="me"), "t", "a")
    send(producer(cluster, client_id="you"), "u", "b")
    assert [received.client_id for received in cluster.requests("Produce")] == ["me", "you"]
    assert {received.api for received in cluster.requests(client_id="me")} >= {"ApiVersions", "Metadata", "Produce"}
    assert not cluster.requests("Fetch")
    by_topic = cluster.requests(0, where=lambda received: received.request.acks == -1)
    assert len(by_topic) == 2


# Answer


def test_answer_replaces_brokers_response(cluster: Cluster) -> None:
    refused = CreateTopicsResponse(
        topics=[CreatableTopicResult(name="x", error_code=ErrorCode.POLICY_VIOLATION, error_message="not here")]
    )
    cluster.on("CreateTopics").answer(refused)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    with pytest.raises(KafkaException, match="not here"):
        admin.create_topics([NewTopic("x", 1)])["x"].result(60)
    admin.create_topics([NewTopic("x", 1)])["x"].result(60)
    assert "x" in cluster.topics()


def test_answer_function_returning_none_serves_request(cluster: Cluster) -> None:
    topics: list[str] = []

    def only_x(received: ReceivedRequest) -> CreateTopicsResponse | None:
        topics.append(received.request.topics[0].name)
        if topics[-1] != "x":
            return None
        return CreateTopicsResponse(topics=[CreatableTopicResult(name="x", error_code=ErrorCode.INVALID_CONFIG)])

    rule = cluster.on("CreateTopics").answer(only_x)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("y", 1)])["y"].result(60)
    assert rule.active
    with pytest.raises(KafkaException):
        admin.create_topics([NewTopic("x", 1)])["x"].result(60)
    assert topics == ["y", "x"]
    assert not rule.active


def test_answer_coroutine_does_not_block_others(cluster: Cluster) -> None:
    gate = asyncio.Event()

    async def when_open(_: ReceivedRequest) -> None:
        await gate.wait()

    rule = cluster.on("Produce", client_id="me").answer(when_open)
    mine = Delivery(producer(cluster, client_id="me"), "t", "a")
    rule.wait()
    send(producer(cluster, client_id="you"), "t", "b")
    assert not mine.done
    cluster.call(lambda _: gate.set())
    mine.wait()
    assert values(cluster, "t") == ["b", "a"]


def test_edit_changes_response(cluster: Cluster) -> None:
    def rename(response: Any) -> Any:
        response.cluster_id = "made-up"
        return response

    cluster.on("Metadata", times=None).edit(rename)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    assert admin.list_topics(timeout=60).cluster_id == "made-up"


def test_edit_changes_only_its_own_response(cluster: Cluster) -> None:
    def nothing_newer(response: Any) -> Any:
        for api in response.api_keys:
            api.max_version = api.min_version
        return response

    cluster.on("ApiVersions", times=1).edit(nothing_newer)
    wire = Wire(cluster.bootstrap, "me")
    edited, after = (wire.ask(ApiVersionsRequest(), 0) for _ in range(2))
    wire.close()
    assert all(api.max_version == api.min_version for api in edited.api_keys)  # type: ignore[attr-defined]
    assert any(api.max_version > api.min_version for api in after.api_keys)  # type: ignore[attr-defined]


# Errors


def test_retriable_error_is_retried(cluster: Cluster) -> None:
    rule = cluster.on("FindCoordinator", times=2).error("COORDINATOR_NOT_AVAILABLE")
    send(producer(cluster), "t", "a")
    reader = consumer(cluster, "t")
    assert read(reader, 1) == ["a"]
    assert rule.hits == 2
    reader.close()


def test_fatal_error_is_reported(cluster: Cluster) -> None:
    cluster.on("Produce").error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    client = producer(cluster)
    assert send(client, "t", "a").error_name == "TOPIC_AUTHORIZATION_FAILED"


def test_error_for_one_partition_serves_others(cluster: Cluster) -> None:
    cluster.on("Produce", topic="t", partition=1, times=None).error("MESSAGE_TOO_LARGE")
    client = producer(cluster, linger_ms=50, enable_idempotence=False)
    both = [Delivery(client, "t", "a", 0), Delivery(client, "t", "b", 1)]
    for delivery in both:
        delivery.wait()
    assert [delivery.error_name for delivery in both] == [None, "MSG_SIZE_TOO_LARGE"]
    assert (values(cluster, "t", 0), values(cluster, "t", 1)) == (["a"], [])


def test_not_leader_error_refreshes_metadata(cluster: Cluster) -> None:
    rule = cluster.on("Produce", topic="t", partition=0, times=2).error("NOT_LEADER_OR_FOLLOWER")
    assert send(producer(cluster), "t", "a").error is None
    assert rule.hits == 2
    assert values(cluster, "t") == ["a"]


def test_error_for_fetched_partition(cluster: Cluster) -> None:
    client = producer(cluster)
    send(client, "t", "a", 0)
    send(client, "t", "b", 1)
    rule = cluster.on("Fetch", topic="t", partition=1, times=3).error("KAFKA_STORAGE_ERROR")
    reader = consumer(cluster, "t")
    assert sorted(read(reader, 2)) == ["a", "b"]
    assert rule.hits == 3
    reader.close()


def test_error_in_fetch_session_reaches_consumer(cluster: Cluster) -> None:
    send(producer(cluster), "t", "a")
    reader = consumer(cluster, auto_offset_reset="error")
    reader.assign([TopicPartition("t", 0, 0)])
    assert read(reader, 1) == ["a"]
    read_error: list[str] = []

    def poll() -> bool:
        message = reader.poll(0.05)
        if message is not None and message.error() is not None:
            read_error.append(message.error().name())
        return bool(read_error)

    rule = cluster.on("Fetch", topic="t", partition=0).error("OFFSET_OUT_OF_RANGE")
    eventually(poll)
    assert read_error == ["_AUTO_OFFSET_RESET"]
    assert rule.hits == 1
    reader.close()


def test_commit_error_for_one_partition(cluster: Cluster) -> None:
    cluster.on("OffsetCommit", topic="t", partition=1).error("OFFSET_METADATA_TOO_LARGE")
    reader = consumer(cluster)
    offsets = [TopicPartition("t", 0, 5), TopicPartition("t", 1, 7)]
    with pytest.raises(KafkaException, match="metadata string too large"):
        reader.commit(offsets=offsets, asynchronous=False)
    assert cluster.group("g").offsets == {("t", 0): 5}
    reader.close()


# Time


def test_delay_holds_request(slow: Cluster) -> None:
    rule = slow.on("Produce").delay(5)
    delivery = Delivery(producer(slow), "t", "a")
    rule.wait()
    assert values(slow, "t") == []
    slow.advance(4.9)
    assert values(slow, "t") == []
    slow.advance(0.1)
    assert values(slow, "t") == ["a"]
    assert delivery.wait().error is None


def test_delay_response_holds_response(slow: Cluster) -> None:
    rule = slow.on("Produce").delay_response(5)
    delivery = Delivery(producer(slow), "t", "a")
    rule.wait()
    assert values(slow, "t") == ["a"]
    delivery.poll()
    assert not delivery.done
    slow.advance(5)
    assert delivery.wait().error is None


def test_sleep_holds_request_until_wake(cluster: Cluster) -> None:
    rule = cluster.on("Produce").sleep()
    delivery = Delivery(producer(cluster), "t", "a")
    rule.wait()
    delivery.poll()
    assert (delivery.done, values(cluster, "t")) == (False, [])
    rule.wake()
    assert delivery.wait().error is None


def test_sleep_out_of_order_lets_later_requests_pass(cluster: Cluster) -> None:
    rule = cluster.on("Produce").sleep(out_of_order=True)
    client = producer(cluster, enable_idempotence=False)
    first = Delivery(client, "t", "first", 0)
    rule.wait()
    second = Delivery(client, "t", "second", 1)
    eventually(lambda: values(cluster, "t", 1) == ["second"])
    assert values(cluster, "t", 0) == []
    second.poll()
    assert not second.done, "answers keep the order of their requests"
    rule.wake()
    first.wait()
    second.wait()


# The wire


def test_dropped_response_is_retried_and_stored_once(cluster: Cluster) -> None:
    rule = cluster.on("Produce").drop_response()
    client = producer(cluster, enable_idempotence=True, request_timeout_ms=500, socket_timeout_ms=1000)
    assert send(client, "t", "a").error is None
    assert rule.hits == 1
    assert len(cluster.requests("Produce")) > 1  # librdkafka may retry more than once
    assert values(cluster, "t") == ["a"]


def test_drop_connection_before_handling(cluster: Cluster) -> None:
    rule = cluster.on("Produce").drop_connection()
    assert send(producer(cluster), "t", "a").error is None
    assert rule.hits == 1
    assert values(cluster, "t") == ["a"]
    assert cluster.events("connection.closed", reason="a rule of a test")


@pytest.mark.parametrize(("idempotent", "stored"), [(True, ["a"]), (False, ["a", "a"])])
def test_drop_connection_after_handling(cluster: Cluster, idempotent: bool, stored: list[str]) -> None:
    cluster.on("Produce").drop_connection(after_handling=True)
    assert send(producer(cluster, enable_idempotence=idempotent), "t", "a").error is None
    assert values(cluster, "t") == stored


def test_cut_response_is_retried(cluster: Cluster) -> None:
    rule = cluster.on("Produce").cut()
    assert send(producer(cluster, enable_idempotence=True), "t", "a").error is None
    assert rule.hits == 1
    assert values(cluster, "t") == ["a"]


def test_corrupt_records_are_detected(cluster: Cluster) -> None:
    send(producer(cluster), "t", "a")
    rule = cluster.on(
        "Fetch", topic="t", partition=0, where=lambda received: received.request.max_wait_ms == 50
    ).corrupt(-6)
    reader = consumer(cluster, "t", check_crcs=True)
    problems: list[str] = []

    def poll() -> bool:
        message = reader.poll(0.05)
        if message is None:
            return False
        if message.error() is not None:
            problems.append(message.error().name())
            return False
        return True

    eventually(lambda: poll() or (problems and rule.hits))
    assert rule.hits == 1
    reader.close()


# Conditions


def test_rule_acts_once_by_default(cluster: Cluster) -> None:
    rule = cluster.on("Produce").error("MESSAGE_TOO_LARGE")
    client = producer(cluster, enable_idempotence=False)
    assert send(client, "t", "a").error is not None
    assert not rule.active
    assert send(client, "t", "b").error is None


def test_rule_with_times_none_acts_until_removed(cluster: Cluster) -> None:
    rule = cluster.on("Produce").error("MESSAGE_TOO_LARGE")
    rule.keep()
    client = producer(cluster, enable_idempotence=False)
    assert send(client, "t", "a").error is not None
    assert send(client, "t", "a").error is not None
    rule.remove()
    assert send(client, "t", "b").error is None


def test_rule_selects_client(cluster: Cluster) -> None:
    cluster.on("Produce", client_id="me", times=None).error("MESSAGE_TOO_LARGE")
    assert send(producer(cluster, client_id="me", enable_idempotence=False), "t", "a").error is not None
    assert send(producer(cluster, client_id="you"), "t", "a").error is None


def test_rule_selects_topic(cluster: Cluster) -> None:
    cluster.on("Produce", topic="u", times=None).error("MESSAGE_TOO_LARGE")
    client = producer(cluster, enable_idempotence=False)
    assert send(client, "u", "a").error is not None
    assert send(client, "t", "a").error is None


def test_rule_selects_node() -> None:
    with Cluster(brokers=2, topics=["t:2"]) as cluster:
        leader = cluster.partition("t", 0).leader
        cluster.on("Produce", node=leader, times=None).error("MESSAGE_TOO_LARGE")
        client = producer(cluster, enable_idempotence=False)
        assert send(client, "t", "a", 0).error is not None
        assert send(client, "t", "a", 1).error is None


def test_rules_are_tried_in_order(cluster: Cluster) -> None:
    first = cluster.on("Produce").error("MESSAGE_TOO_LARGE")
    second = cluster.on("Produce").error("INVALID_RECORD")
    client = producer(cluster, enable_idempotence=False)
    errors = [send(client, "t", "a").error_name for _ in range(3)]
    assert errors == ["MSG_SIZE_TOO_LARGE", "INVALID_RECORD", None]
    assert (first.hits, second.hits) == (1, 1)


def test_failing_function_raises_in_wait(cluster: Cluster) -> None:
    def wrong(_: ReceivedRequest) -> None:
        raise LookupError("a mistake in the test")

    rule = cluster.on("Produce", times=None).answer(wrong)
    assert send(producer(cluster), "t", "a").error is None
    with pytest.raises(LookupError, match="a mistake in the test"):
        rule.wait()


def test_wait_times_out(cluster: Cluster) -> None:
    with pytest.raises(TimeoutError, match="acted on 0 of 1 requests"):
        cluster.on("Fetch").observe().wait(timeout=0.01)


def test_wrong_condition_raises() -> None:
    with Cluster() as cluster:
        with pytest.raises(ValueError, match="no API 'Produc'"):
            cluster.on("Produc")
        with pytest.raises(ValueError, match="no error 'NOPE'"):
            cluster.on("Produce").error("NOPE")
        with pytest.raises(ValueError, match="requires topic="):
            cluster.on("Produce", partition=1)
        with pytest.raises(ValueError, match="1 or more"):
            cluster.on("Produce", times=0)


def test_hit_is_in_event_log(cluster: Cluster) -> None:
    rule = cluster.on("Produce").drop_connection()
    send(producer(cluster), "t", "a")
    (event,) = cluster.events("rule")
    assert (event["rule"], event["action"], event["api"]) == (rule.number, "drop_connection", "Produce")


# Other clients


def test_kafka_python_retries(cluster: Cluster) -> None:
    rule = cluster.on("Produce").error("NOT_LEADER_OR_FOLLOWER")
    client = KafkaProducer(
        bootstrap_servers=cluster.bootstrap, retries=5, retry_backoff_ms=10, bootstrap_timeout_ms=60_000
    )
    assert client.send("t", b"a", partition=0).get(timeout=60).offset == 0
    client.close()
    assert rule.hits == 1


async def test_aiokafka_retries(cluster: Cluster) -> None:
    rule = cluster.on("Produce").drop_connection()
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, retry_backoff_ms=10) as client:
        await client.send_and_wait("t", b"a", partition=0)
    assert await rule.wait_async()
    assert values(cluster, "t") == ["a"]


def test_request_with_trailing_bytes_is_held_and_decoded() -> None:
    """librdkafka's Metadata request for all topics has trailing bytes, which brokers ignore."""
    with Cluster(topics=["t"]) as cluster:
        rule = cluster.on("Metadata", times=None).delay(0.01)
        assert "t" in producer(cluster).list_topics(timeout=60).topics
        assert rule.hits > 0
        assert rule.failure is None
        assert any(received.request.topics is None for received in cluster.requests("Metadata"))
