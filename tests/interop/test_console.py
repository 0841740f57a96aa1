"""The console's pages against Apache Kafka."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ottla.client import Client
from ottla.client.groups import commit
from ottla.client.producer import Producer
from ottla.console.options import parse_console_options
from ottla.console.server import ConsoleServer
from tests.console.conftest import Web

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop
SECONDS = 300


@pytest.fixture(scope="module")
def web(apache_kafka: ApacheKafka) -> Iterator[Web]:
    options = parse_console_options("--listen", "0", no_auth=True, environment={})
    bootstrap = apache_kafka.bootstrap
    with ConsoleServer(lambda: Client(bootstrap, timeout=60), options, bootstrap=bootstrap) as console:
        yield Web(console.address)


def test_console_shows_and_changes_apache_kafka(web: Web, apache_kafka: ApacheKafka) -> None:
    made = web.post("/new-topic", name="console-topic", partitions="2", configs="retention.ms=60000000")
    assert made.headers["hx-redirect"] == "/topics/console-topic"
    end = time.monotonic() + SECONDS
    while web.get("/topics/console-topic").status_code != 200:
        assert time.monotonic() < end
        time.sleep(0.1)
    with Client(apache_kafka.bootstrap) as client:
        producer = Producer(client, compression="zstd")
        for number in range(20):
            producer.send("console-topic", b"key-%d" % number, b'{"order": %d}' % number, (), number % 2)
        producer.flush()
        transactional = Producer(client, transactional_id="console-open", transaction_timeout_ms=600_000)
        transactional.initialize()
        transactional.send("console-topic", b"k", b"open", (), 0)
        transactional.flush()
        commit(client, "console-group", {("console-topic", 0): 3, ("console-topic", 1): 10})
    events = web.events("/topics/console-topic/records/stream", "end", by="path", q="$.order >= 18")
    assert events[-1] == ("end", "")
    assert '"matched": 2' in [data for name, data in events if name == "progress"][-1]
    assert "zstd" in web.get("/topics/console-topic/records/0/0").text
    for path in ("/", "/brokers/1", "/topics", "/topics/console-topic/consumers", "/groups", "/security/users"):
        answer = web.get(path)
        assert answer.status_code == 200, (path, answer.text)
    assert "console-group" in web.get("/groups?q=console").text
    group = web.get("/groups/show?id=console-group").text
    assert "classic group" in group
    shown = web.get("/transactions?q=console-open").text
    assert "Ongoing" in shown
    assert "LSO" in shown
    preview = web.post("/groups/reset", id="console-group", target="earliest", topics="console-topic")
    assert "Preview of 2 partitions" in preview.text
    done = web.post("/groups/reset", id="console-group", target="earliest", topics="console-topic", apply="1")
    assert done.headers["hx-redirect"] == "/groups/show?id=console-group"
    assert web.post("/transactions/abort", id="console-open").is_success
    wrong = web.post("/topics/console-topic/configs/edit", key="retention.ms", value="soon")
    assert wrong.status_code == 422
    assert web.post("/topics/console-topic/delete", confirm="console-topic").headers["hx-redirect"] == "/topics"
