"""System tables of a Kafka 4.3.1 directory equal Kafka's admin client; tables of events and captures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from confluent_kafka import Consumer, Producer

from ottla.events import KINDS, to_line
from ottla.protocol.capture import REQUEST, RESPONSE, CapturedFrame, header_line
from ottla.protocol.capture import to_line as frame_line
from ottla.protocol.framing import encode_request, encode_response
from ottla.protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.spark.formats import SOURCES
from ottla.spark.log.source import LogSource
from ottla.spark.options import OptionError
from ottla.spark.tables.lines import DamagedLineError, EventsTable, WireTable
from ottla.spark.tables.records import GroupsTable, MetadataTable, OffsetsTable, TransactionsTable
from ottla.testing import Cluster
from tests.spark.direct import plan, rows
from tests.testing.clients import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

KAFKA = Path(__file__).resolve().parents[2] / "fixtures" / "kafka" / "4.3.1"
DATA = {"path": str(KAFKA / "data")}
FACTS = json.loads((KAFKA / "facts.json").read_text())


def test_last_commits_equal_kafkas_group_offsets() -> None:
    latest: dict[str, dict[str, Any]] = {}
    for row in rows(OffsetsTable, DATA):
        assert row["error"] is None
        position = f"{row['topic']}:{row['partition']}"
        if row["deleted"]:
            latest.get(row["group"], {}).pop(position, None)
        else:
            latest.setdefault(row["group"], {})[position] = (row["committedOffset"], row["metadata"])
    expected = {
        group: {offset_name: (offset["offset"], offset["metadata"]) for offset_name, offset in offsets.items()}
        for group, offsets in FACTS["group_offsets"].items()
        if offsets
    }
    assert {group: commits for group, commits in latest.items() if group in expected} == expected


def test_transactional_commits_apply_when_committed() -> None:
    committed = rows(OffsetsTable, DATA)
    everything = rows(OffsetsTable, DATA | {"isolation.level": "read_uncommitted"})
    assert len(committed) < len(everything)
    assert any(row["transactional"] for row in committed)


def test_groups_have_kafkas_types_and_members() -> None:
    records = rows(GroupsTable, DATA)
    assert not [row for row in records if row["error"]]
    types = {row["group"]: row["groupType"] for row in records if not row["deleted"]}
    named = [group for group in FACTS["groups"] if group["protocol"]]  # others have only committed, never joined
    assert len(named) > 4
    for group in named:
        assert types[group["groupId"]] == group["type"].lower(), group
    metadata = [row for row in records if row["recordType"] == "GroupMetadata" and row["record"]]
    assert all("protocol_type" in json.loads(row["record"]) for row in metadata)
    assert any(row["memberId"] for row in records if row["groupType"] == "consumer")
    assert any(row["epoch"] for row in records)


def test_transaction_states_equal_kafkas() -> None:
    latest = {row["transactionalId"]: row for row in rows(TransactionsTable, DATA)}
    for name, expected in FACTS["transactions"].items():
        row = latest[name]
        state = "".join(word.capitalize() for word in expected["state"].split("_"))
        actual = (row["state"], row["producerId"], row["producerEpoch"], row["timeoutMs"])
        assert actual == (state, expected["producerId"], expected["producerEpoch"], expected["transactionTimeoutMs"])
    states = [row["state"] for row in rows(TransactionsTable, DATA) if row["transactionalId"] == "tx-one"]
    assert {"Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "PrepareAbort", "CompleteAbort"} <= set(states)
    ongoing = [row for row in rows(TransactionsTable, DATA) if row["state"] == "Ongoing"]
    assert all(row["partitions"] for row in ongoing)


def test_metadata_names_every_topic_and_hides_secrets() -> None:
    records = rows(MetadataTable, DATA)
    assert not [row for row in records if row["error"]]
    topics = {json.loads(row["record"])["name"] for row in records if row["type"] == "TopicRecord"}
    assert set(FACTS["topics"]) <= topics
    users = [json.loads(row["record"]) for row in records if row["type"] == "UserScramCredentialRecord"]
    assert users
    assert all(user["stored_key"] == "(hidden)" for user in users)
    assert [row["offset"] for row in records if not row["snapshot"]] == sorted(
        row["offset"] for row in records if not row["snapshot"]
    )


def test_directory_without_topic_gives_empty_table(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\n")
    for table in (OffsetsTable, GroupsTable, TransactionsTable, MetadataTable):
        assert rows(table, {"path": str(tmp_path)}) == []


EVENTS = [
    {"seq": 0, "time": 1000, "node": 1, "kind": "node.started"},
    {
        "seq": 1,
        "time": 2000,
        "node": 1,
        "kind": "member.assigned",
        "group": "g",
        "type": "consumer",
        "member": "m",
        "epoch": 3,
        "partitions": {"orders": [0, 2], "payments": []},
    },
    {
        "seq": 2,
        "time": 3500,
        "node": 2,
        "kind": "offsets.committed",
        "group": "g",
        "offsets": [{"topic": "orders", "partition": 0, "offset": 7}],
    },
    {
        "seq": 3,
        "time": 4000,
        "node": 2,
        "kind": "response",
        "connection": 1,
        "api": "Fetch",
        "version": 17,
        "correlation_id": 5,
        "client_id": None,
        "bytes": 40,
        "ms": 1.5,
        "errors": ["NOT_LEADER_OR_FOLLOWER"],
        "new_field": "kept in the line",
    },
]


def test_event_rows_are_equal_for_any_split(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(to_line(event) for event in EVENTS * 50))
    whole = rows(EventsTable, {"path": str(path)})
    assert len(whole) == 200
    assert [row["kind"] for row in whole[:4]] == [event["kind"] for event in EVENTS]
    assert all(kind in KINDS for kind in {row["kind"] for row in whole})
    assert dict(whole[1]["partitions"]) == {"orders": [0, 2], "payments": []}
    assert whole[2]["offsets"] == [{"topic": "orders", "partition": 0, "offset": 7}]
    assert (whole[3]["ms"], whole[3]["errors"]) == (1.5, ["NOT_LEADER_OR_FOLLOWER"])
    assert json.loads(whole[3]["event"])["new_field"] == "kept in the line"
    assert whole[2]["time"].timestamp() == 3.5
    for size in ("1", "57", "1k", "7000"):
        options = {"path": str(path), "maxPartitionBytes": size}
        assert rows(EventsTable, options) == whole
    assert len(plan(EventsTable, {"path": str(tmp_path), "minPartitions": "6"})[1]) == 6


def test_event_log_of_cluster_is_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Cluster(topics=["orders:2"], events=str(path)) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "writer", "linger.ms": 0})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("orders", value="tea")
        consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": "people", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["orders"])
        producer.send_offsets_to_transaction([], consumer.consumer_group_metadata())
        producer.commit_transaction()
        read(consumer, 1)
        consumer.commit(asynchronous=False)
        consumer.close()
    events = rows(EventsTable, {"path": str(path)})
    assert [row["seq"] for row in events] == list(range(len(events)))
    kinds = {row["kind"] for row in events}
    assert {"topic.created", "request", "response", "group.state", "transaction.state", "offsets.committed"} <= kinds
    assert kinds <= KINDS.keys()
    committed = [row for row in events if row["kind"] == "offsets.committed"]
    assert {offset["topic"] for row in committed for offset in row["offsets"]} == {"orders"}


def test_invalid_line_is_reported_and_partial_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(to_line(EVENTS[0]) + to_line(EVENTS[1])[:20])
    assert len(rows(EventsTable, {"path": str(path)})) == 1
    path.write_text(to_line(EVENTS[0]) + '{"not": "an event"}\n' + to_line(EVENTS[1]))
    with pytest.raises(
        DamagedLineError, match=r"events.jsonl at byte \d+: expected an event with seq, time, node, kind"
    ):
        rows(EventsTable, {"path": str(path)})
    assert len(rows(EventsTable, {"path": str(path), "badRecords": "drop"})) == 2
    with pytest.raises(OptionError, match="there is no file at"):
        rows(EventsTable, {"path": str(tmp_path / "nothing")})


def test_captured_frames_are_decoded(tmp_path: Path) -> None:
    request = encode_request(12, 4, 9, "app", HeartbeatRequest(group_id="g", generation_id=3, member_id="m"))[4:]
    answered = encode_response(12, 4, 9, HeartbeatResponse(error_code=27))[4:]
    position = {"client": "1.2.3.4:5", "server": "b:9092", "node": 1, "api_key": 12, "api": "Heartbeat", "version": 4}
    same: dict[str, Any] = position | {"connection": 1, "correlation_id": 9, "client_id": "app"}
    frames = [
        CapturedFrame(time_us=1, direction=REQUEST, size=len(request), frame=request, **same),
        CapturedFrame(time_us=2, direction=RESPONSE, size=len(answered), frame=answered, **same),
        CapturedFrame(time_us=3, direction=REQUEST, size=999, frame=request[:9], **same),
    ]
    path = tmp_path / "capture.jsonl"
    path.write_text(header_line(target="b:9092") + "".join(frame_line(frame) for frame in frames))
    decoded = rows(WireTable, {"path": str(path)})
    assert [row["direction"] for row in decoded] == ["request", "response", "request"]
    assert json.loads(decoded[0]["message"])["group_id"] == "g"
    assert json.loads(decoded[1]["message"])["error_code"] == 27
    assert decoded[2]["message"] is None
    assert decoded[2]["error"] == "only 9 of 999 bytes were captured"
    assert decoded[0]["frame"] == request
    plain = rows(WireTable, {"path": str(path), "decode": "false"})
    assert [row["message"] for row in plain] == [None] * 3


PATHED = (LogSource, MetadataTable, OffsetsTable, GroupsTable, TransactionsTable, EventsTable, WireTable)


def test_every_format_is_registered() -> None:
    assert {source.name() for source in PATHED} | {"ottla"} <= {source.name() for source in SOURCES}


@pytest.mark.parametrize("table", PATHED, ids=lambda source: source.name())
def test_missing_path_error_shows_example_for_every_table(table: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=rf'spark.read.format\("{table.name()}"\).load\("/path/to/'):
        table({}).schema()
    with pytest.raises(OptionError, match=f"{table.name()} has no option nonsense"):
        table({"path": str(tmp_path), "nonsense": "1"}).schema()


def test_tables_are_available_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(to_line(event) for event in EVENTS))
    views = {table.name(): str(KAFKA / "data") for table in (OffsetsTable, TransactionsTable)}
    for name, value in {**views, "ottla-events": str(path)}.items():
        view = name.replace("-", "_")
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view} USING `{name}` OPTIONS (path '{value}')")
    row = spark.sql(
        """
        SELECT (SELECT max(committedOffset) FROM ottla_offsets WHERE group = 'by-admin') AS offset,
               (SELECT count(*) FROM ottla_transactions WHERE state = 'CompleteAbort') AS aborted,
               (SELECT max(partitions['orders'][1]) FROM ottla_events) AS assigned
        """
    ).collect()[0]
    assert (row.offset, row.assigned) == (2, 2)
    assert row.aborted > 0
