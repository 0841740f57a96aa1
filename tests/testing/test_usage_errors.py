"""Wrong use of the test kit raises at once, with a message, and leaves the cluster usable."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from ottla.protocol.errors import KafkaError
from ottla.testing import Cluster, Tap
from tests.testing.clients import consumer, producer, read, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, topics=["t"]) as running:
        yield running


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"brokers": 0}, "at least one broker"),
        ({"ports": []}, "at least one broker"),
        ({"topics": "orders"}, r"a list, such as \['orders'\]"),
        ({"topics": ["a", "a:2"]}, "a occurs twice"),
        ({"topics": ["a:many"]}, "name:partitions"),
        ({"topics": {"a": {"partitons": 3}}}, "partitions, replication_factor"),
        ({"topics": {"a": "3"}}, "partitions, replication_factor"),
    ],
)
def test_invalid_cluster_options_raise(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Cluster(**options)


def test_configs_may_be_numbers_and_booleans() -> None:
    configs = {"num.partitions": 5, "auto.create.topics.enable": False}
    with Cluster(topics={"a": 3, "b": {"configs": {"retention.ms": 1234}}}, configs=configs) as cluster:
        assert len(cluster.partitions("a")) == 3
        assert cluster.call(lambda broker: broker.nodes[1].config_int("num.partitions")) == 5
        assert cluster.call(lambda broker: broker.partitions["b", 0].log.config.retention_ms) == 1234


@pytest.mark.parametrize(
    "mistake",
    [
        lambda c: c.on("Nope"),
        lambda c: c.on(9999),
        lambda c: c.on(["Fetch", 3.5]),
        lambda c: c.on(node="1"),
        lambda c: c.on(topic=5),
        lambda c: c.on(client_id=5),
        lambda c: c.on(partition=1),
        lambda c: c.on(topic="t", partition="one"),
        lambda c: c.on(times=0),
        lambda c: c.on(times="often"),
        lambda c: c.on(where=3),
        lambda c: c.on().error("NOPE"),
        lambda c: c.on().error(12_345),
        lambda c: c.on().delay(-1),
        lambda c: c.on().delay(float("nan")),
        lambda c: c.on().delay_response("soon"),
        lambda c: c.on().cut(-5),
        lambda c: c.on().corrupt("x"),
        lambda c: c.on().corrupt(count=0),
        lambda c: c.on().answer(3),
        lambda c: c.on().edit(None),
        lambda c: c.on().observe(3),
        lambda c: c.stop_node("x"),
        lambda c: c.pause_node(None),
        lambda c: c.move_leader("t", 0, 99),
        lambda c: c.set_followers("t", 0, [99]),
        lambda c: c.move_coordinator("g", 1, "zebra"),
        lambda c: c.slow_disk(-1),
        lambda c: c.slow_disk(1, 99),
        lambda c: c.full_disk(99),
        lambda c: c.add_node(99_999),
        lambda c: c.requests("Nope"),
        lambda c: c.events("nope"),
    ],
)
def test_invalid_arguments_raise(cluster: Cluster, mistake: Callable[[Cluster], object]) -> None:
    with pytest.raises(ValueError):
        mistake(cluster)
    assert not cluster.rules.active


@pytest.mark.parametrize(
    ("mistake", "problem"),
    [
        (lambda c: c.partition("t", 7), "there is no partition t-7"),
        (lambda c: c.records("none"), "there is no partition none-0"),
        (lambda c: c.partitions("none"), "there is no topic none"),
        (lambda c: c.group("none"), "there is no group none"),
        (lambda c: c.transaction("none"), "there is no transactional id none"),
        (lambda c: c.shuffle_leaders("none"), "there is no topic none"),
        (lambda c: c.expire_member("none"), "none"),
        (lambda c: c.expire_transaction("none"), "none"),
        (lambda c: c.compact("none"), "none"),
    ],
)
def test_unknown_names_raise_key_error(cluster: Cluster, mistake: Callable[[Cluster], object], problem: str) -> None:
    with pytest.raises(KeyError, match=problem):
        mistake(cluster)


class Mistake(Exception):  # noqa: N818
    """Raised by the functions of these tests."""


def fail(*_: object) -> Any:
    raise Mistake


async def fail_later(*_: object) -> Any:
    raise Mistake


@pytest.mark.parametrize(
    "add",
    [
        lambda c: c.on("Fetch", times=None, where=fail).observe(),
        lambda c: c.on("Fetch", times=None).observe(fail),
        lambda c: c.on("Fetch", times=None).answer(fail),
        lambda c: c.on("Fetch", times=None).answer(fail_later),
        lambda c: c.on("Fetch", times=None).edit(fail),
        lambda c: c.on("Fetch", times=None).corrupt(10_000_000),
    ],
)
@pytest.mark.parametrize("through_tap", [False, True])
def test_raising_function_is_reported_and_request_served(add: Callable[[Any], Any], through_tap: bool) -> None:
    with Cluster(topics=["t"]) as kafka, Tap(kafka.bootstrap) as tap:
        rule = add(tap if through_tap else kafka)
        reader = consumer(tap, "t", fetch_wait_max_ms=2000)  # type: ignore[arg-type]
        reader.poll(0.5)  # the fetch waits, so that its response is pending
        send(producer(kafka), "t", "a")
        assert read(reader, 1) == ["a"]
        with pytest.raises((Mistake, ValueError)):
            rule.wait()
        reader.close()


def test_failed_start_leaves_no_thread(tmp_path: Path) -> None:
    broken = Cluster(data_dir=str(tmp_path), topics=["not/allowed"])
    for _ in range(2):
        with pytest.raises(KafkaError):
            broken.start()
    broken.close()
    with Cluster(data_dir=str(tmp_path), topics=["allowed"]) as cluster:
        assert cluster.topics() == ["allowed"]


def test_cluster_can_be_restarted(tmp_path: Path) -> None:
    cluster = Cluster(topics=["t"], events=str(tmp_path / "events.jsonl"))
    for _ in range(2):
        with cluster:
            assert send(producer(cluster), "t", "a").error is None
            assert len(cluster.records("t")) == 1
    assert (tmp_path / "events.jsonl").read_text().count('"node.started"') == 2


def test_close_from_many_threads_and_its_own() -> None:
    cluster = Cluster(3, topics=["t"]).start()
    client = producer(cluster)
    send(client, "t", "a")
    threads = [threading.Thread(target=cluster.close) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    again = cluster.start()
    again.call(lambda _: again.close())
    again.close()


def test_result_wins_race_with_poll_interval(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.testing.control.controlled_cluster.POLL_SECONDS", 0.0)
    for _ in range(300):
        assert cluster.topics() == ["t"]
    with pytest.raises(TimeoutError, match="of its own"):
        cluster.call(late)


def late(_: object) -> None:
    raise TimeoutError("of its own")


def test_read_during_close_raises() -> None:
    cluster = Cluster().start()
    errors: list[str] = []

    def look() -> None:
        try:
            while True:
                cluster.topics()
        except RuntimeError as error:
            errors.append(str(error))

    readers = [threading.Thread(target=look) for _ in range(4)]
    for reader in readers:
        reader.start()
    cluster.close()
    for reader in readers:
        reader.join(60)
    assert errors == ["the cluster is not running"] * 4


def test_tap_can_be_closed_twice_and_restarted(cluster: Cluster) -> None:
    tap = Tap(cluster.bootstrap.split(",")[0])
    tap.close()
    with pytest.raises(RuntimeError, match="the tap is not running"):
        tap.requests()
    for _ in range(2):
        tap.start()
        tap.start()
        assert send(producer(tap), "t", "a").error is None  # type: ignore[arg-type]
        threads = [threading.Thread(target=tap.close) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
