"""Explorations over the control API, as a test in another language drives them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, Producer

from ottla.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(topics=["orders"], control=0) as running:
        yield running


def request(cluster: Cluster, method: str, path: str, **body: Any) -> Any:
    call = urllib.request.Request(
        cluster.control_url + path,
        json.dumps(body).encode() if method == "POST" else None,
        {"Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(call, timeout=120) as response:
        return json.load(response)


def send_order(cluster: Cluster) -> None:
    errors: list[Any] = []
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "log_level": 0, "retry.backoff.ms": 20}
    )
    producer.produce("orders", "book", on_delivery=lambda error, _: errors.append(error) if error else None)
    producer.flush(60)
    if errors:
        raise KafkaException(errors[0])


def test_exploration_finds_a_duplicate(cluster: Cluster) -> None:
    started = request(
        cluster,
        "POST",
        "/explorations",
        name="order",
        faults=["response-lost", "error:MESSAGE_TOO_LARGE"],
        apis=["Produce"],
    )
    path = f"/explorations/{started['exploration']}"
    schedules = []
    while not (run := request(cluster, "POST", f"{path}/next"))["done"]:
        schedules.append(run["schedule"])
        try:
            send_order(cluster)
        except KafkaException as error:
            request(cluster, "POST", f"{path}/verdict", passed=False, message=str(error), reported=True)
        else:
            request(cluster, "POST", f"{path}/verdict", passed=True)
    result = request(cluster, "GET", path)
    assert schedules[:2] == ["no faults", "no faults"]
    assert [finding["schedule"] for finding in result["findings"]] == ["response-lost at Produce[orders-0]#1"]
    assert {
        "role": "producer",
        "api": "Produce",
        "fault": "error:MESSAGE_TOO_LARGE",
        "verdict": "reported",
        "runs": 1,
    } in (result["table"])
    assert "response-lost" in request(cluster, "GET", f"{path}/report")["html"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/explorations", {"faults": ["explode"]}, 400, "there is no fault 'explode'"),
        ("POST", "/explorations", {"budget": "soon"}, 400, "is not a duration"),
        ("GET", "/explorations/99", {}, 404, "there is no exploration 99"),
        ("GET", "/topics/orders/records", {}, 400, "missing: count"),
    ],
)
def test_wrong_requests_say_what_is_wrong(
    cluster: Cluster, method: str, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    with pytest.raises(urllib.error.HTTPError) as failure:
        request(cluster, method, path, **body)
    assert failure.value.code == status
    assert message in json.load(failure.value)["error"]


def test_runs_and_verdicts_alternate(cluster: Cluster) -> None:
    path = f"/explorations/{request(cluster, 'POST', '/explorations')['exploration']}"
    with pytest.raises(urllib.error.HTTPError) as early:
        request(cluster, "POST", f"{path}/verdict", passed=True)
    assert "ask for the next one first" in json.load(early.value)["error"]
    request(cluster, "POST", f"{path}/next")
    with pytest.raises(urllib.error.HTTPError) as twice:
        request(cluster, "POST", f"{path}/next")
    assert "send its verdict first" in json.load(twice.value)["error"]


def test_records_are_appended_and_awaited_over_http(cluster: Cluster) -> None:
    cluster.reset()
    assert request(cluster, "POST", "/topics/orders/records", value="book", key="alice") == {
        "partition": 0,
        "offset": 0,
    }
    (record,) = request(cluster, "GET", "/topics/orders/records?count=1")
    assert record["value"] == "Ym9vaw=="
    with pytest.raises(urllib.error.HTTPError) as failure:
        request(cluster, "GET", "/topics/orders/records?count=2&timeout=0.01")
    assert failure.value.code == 408
