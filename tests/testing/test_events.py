"""The event log: every event matches its declaration, and the sequences of groups and transactions."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.client.client import Client
from ottla.events import ENVELOPE, FIELDS, KINDS, Events, for_people, to_line
from ottla.protocol.messages.k88_streams_group_heartbeat import StreamsGroupHeartbeatResponse
from ottla.testing import Cluster
from ottla.world import VirtualClock
from tests.groups.streams.members import joining
from tests.testing.clients import assigned, completed, eventually, read

if TYPE_CHECKING:
    from ottla.events import Event

DOCS = Path(__file__).parents[2] / "docs" / "events.md"


def consumer(cluster: Cluster, protocol: str, **more: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "g",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **more,
        }
    )


def produce(cluster: Cluster, count: int, **more: str) -> Producer:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 1, **more})
    for number in range(count):
        producer.produce("t", str(number), partition=number % 2)
    assert producer.flush(60) == 0
    return producer


def check(events: list[Event]) -> None:
    """Check that every event has exactly the fields that its kind declares."""
    assert [event["seq"] for event in events] == list(range(events[0]["seq"], events[0]["seq"] + len(events)))
    for event in events:
        kind = KINDS[event["kind"]]
        assert list(event)[: len(ENVELOPE)] == list(ENVELOPE)
        fields = set(event) - set(ENVELOPE)
        assert set(kind.always) <= fields <= {*kind.always, *kind.sometimes}, event
        assert json.loads(to_line(event)) == event
        assert for_people(event)


def test_every_field_is_declared_and_used() -> None:
    used = {field for kind in KINDS.values() for field in (*kind.always, *kind.sometimes)}
    assert used == set(FIELDS)


def test_docs_list_every_kind_and_field() -> None:
    text = DOCS.read_text()
    for name in (*KINDS, *FIELDS, *ENVELOPE):
        assert f"`{name}`" in text, name
    for kind, declared in KINDS.items():
        row = re.search(rf"^\| `{re.escape(kind)}` \|(.*)$", text, re.MULTILINE)
        assert row is not None
        assert all(f"`{field}`" in row[1] for field in (*declared.always, *declared.sometimes)), kind


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_events_of_a_group(protocol: str) -> None:
    with Cluster(topics=["t:2"]) as cluster:
        produce(cluster, 4)
        reader = consumer(cluster, protocol)
        reader.subscribe(["t"])
        read(reader, 4)
        reader.commit(offsets=[TopicPartition("t", 0, 2)], asynchronous=False)
        reader.close()
        eventually(lambda: cluster.events("member.left", group="g"))  # close() does not wait for the response
        events = cluster.events()
        check(events)
        of_group = cluster.events(group="g", type=protocol)
        kinds = [event["kind"] for event in of_group]
        assert kinds.index("member.joined") < kinds.index("member.assigned") < kinds.index("member.left")
        joined = next(event for event in of_group if event["kind"] == "member.joined")
        assert (joined["client_id"], joined["host"]) == ("rdkafka", "127.0.0.1")
        owned = [event for event in of_group if event["kind"] == "member.assigned" and event["partitions"]]
        assert owned[-1]["partitions"] == {"t": [0, 1]}
        assert owned[-1]["member"] == joined["member"]
        states = [(event["from"], event["to"]) for event in of_group if event["kind"] == "group.state"]
        assert all(before[1] == after[0] for before, after in itertools.pairwise(states))
        assert states[-1][1] == "Empty"
        assert "Stable" in [to for _, to in states]
        assert [event["reason"] for event in of_group if event["kind"] == "member.left"] == ["left"]
        committed = cluster.events("offsets.committed", group="g")
        assert [event["offsets"] for event in committed] == [[{"topic": "t", "partition": 0, "offset": 2}]]


def test_events_of_a_streams_group() -> None:
    with Cluster(topics=["t:2"]) as cluster:
        client = Client(cluster.bootstrap)
        node = client.coordinator("g")
        beat = joining(group="g")
        assert client.to_node(node, beat, StreamsGroupHeartbeatResponse).error_code == 0
        beat.member_epoch, beat.topology = -1, None
        assert client.to_node(node, beat, StreamsGroupHeartbeatResponse).error_code == 0
        client.close()
        check(cluster.events())
        of_group = cluster.events(group="g", type="streams")
        assert [event["kind"] for event in of_group] == [
            "member.joined",
            "group.epoch",
            "group.target",
            "member.assigned",
            "group.state",
            "member.left",
            "group.epoch",
            "group.state",
        ]
        target, assigned = of_group[2], of_group[3]
        assert (target["epoch"], target["partitions"]) == (2, {"0": [0, 1]})
        assert (assigned["epoch"], assigned["partitions"]) == (2, {"0": [0, 1]})
        assert [(event["from"], event["to"]) for event in of_group if event["kind"] == "group.state"] == [
            ("Empty", "Stable"),
            ("Stable", "Empty"),
        ]
        (group,) = cluster.groups()
        assert (group.group_id, group.type, group.state) == ("g", "streams", "Empty")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_evicted_member_has_timeout_and_reason(protocol: str) -> None:
    configs = {"group.consumer.session.timeout.ms": "45000"}
    with Cluster(topics=["t:2"], clock=VirtualClock(), configs=configs) as cluster:
        produce(cluster, 2)
        reader = consumer(cluster, protocol)
        reader.subscribe(["t"])
        assigned(cluster, reader)
        # A heartbeat during the advance extends the session.
        eventually(lambda: cluster.advance(60) or cluster.events("timeout", what="session", group="g"))
        assert cluster.events("member.left", group="g", reason="session timeout")
        check(cluster.events())
        reader.close()  # librdkafka's close() may hang once the cluster is gone


def test_events_of_a_transaction() -> None:
    with Cluster(topics=["t:2"]) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "x"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("t", b"1", partition=0)
        producer.produce("t", b"2", partition=1)
        producer.commit_transaction(60)
        completed(cluster, "x")
        states = cluster.events("transaction.state", transactional_id="x")
        path = [(event["from"], event["to"]) for event in states]
        assert path[0] == ("Empty", "Empty")
        assert path[-2:] == [("Ongoing", "PrepareCommit"), ("PrepareCommit", "CompleteCommit")]
        assert states[-1]["partitions"] == {"t": [0, 1]} or states[-1]["partitions"] == {"t": [1, 0]}
        markers = cluster.events("transaction.marker", committed=True)
        assert sorted((event["topic"], event["partition"]) for event in markers) == [("t", 0), ("t", 1)]
        check(cluster.events())


def test_events_of_a_transaction_timeout() -> None:
    with Cluster(topics=["t:2"], clock=VirtualClock()) as cluster:
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "transactional.id": "x", "transaction.timeout.ms": 120_000}
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("t", b"1", partition=0)
        assert producer.flush(60) == 0
        cluster.advance(150)
        (timeout,) = cluster.events("timeout", what="transaction")
        assert (timeout["transactional_id"], timeout["timeout_ms"]) == ("x", 120_000)
        assert [event["committed"] for event in cluster.events("transaction.marker")] == [False]
        assert cluster.partition("t", 0).last_stable_offset == 2


def test_request_events_name_group_and_partitions(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    with Cluster(topics=["t:2"], events=str(file)) as cluster:
        produce(cluster, 2, **{"client.id": "me"})
        requests = cluster.events("request", api="Produce", client_id="me")
        assert sorted(index for event in requests for index in event["partitions"]["t"]) == [0, 1]
        response = {(event["connection"], event["correlation_id"]) for event in cluster.events("response")}
        assert all((event["connection"], event["correlation_id"]) in response for event in requests)
        shown = cluster.events()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[: len(shown)] == shown
    assert lines[-1]["kind"] == "node.stopped"


def test_events_of_topics_and_leaders() -> None:
    with Cluster(brokers=2, topics=["t:2"]) as cluster:
        created = cluster.events("topic.created", topic="t")
        assert created[0]["partitions"] == {"t": [0, 1]}
        leaders = cluster.events("leader.changed", topic="t")
        assert {(event["partition"], event["leader"]) for event in leaders} == {
            (index, cluster.partition("t", index).leader) for index in range(2)
        }
        check(cluster.events())


def test_event_without_sinks_is_discarded() -> None:
    seen: list[Event] = []
    events = Events(lambda: 7)
    events.of_node(1).emit("node.started")
    events.sinks.append(seen.append)
    events.of_node(2).emit("group.state", group="g", type="classic", from_="Empty", to="Dead", epoch=1)
    assert seen == [
        {"seq": 1, "time": 7, "node": 2, "kind": "group.state", "group": "g", "type": "classic", "to": "Dead"}
        | {"epoch": 1, "from": "Empty"}
    ]


def test_serve_writes_events_to_file_and_log(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    options = ["-p", "0", "--seed-topic", "t", "--json", "--events", str(file), "-l", "debug"]
    command = [sys.executable, "-m", "ottla", "serve", *options]
    with (tmp_path / "shown").open("w") as log:  # a full pipe without a reader would block the broker
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    bootstrap = json.loads(process.stdout.readline())["bootstrap"]
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "me"})
    producer.produce("t", "a")
    assert producer.flush(60) == 0
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    shown = (tmp_path / "shown").read_text()
    events = [json.loads(line) for line in file.read_text().splitlines()]
    check(events)
    kinds = {event["kind"] for event in events}
    assert {"node.started", "topic.created", "connection.opened", "request", "response", "node.stopped"} <= kinds
    assert "topic.created" in shown
    assert "api=Produce" in shown
    assert "client_id=me" in shown
