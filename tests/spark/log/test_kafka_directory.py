"""The format `ottla-log` on a directory of Apache Kafka 4.3.1: rows equal the records of Kafka's consumer."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from ottla.spark.log.source import LogSource
from tests.spark.direct import plan, rows

pytestmark = pytest.mark.xdist_group("spark")

KAFKA = Path(__file__).resolve().parents[2] / "fixtures" / "kafka" / "4.3.1"
DATA = str(KAFKA / "data")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def seen_by_kafka(*, committed: bool) -> list[dict[str, Any]]:
    records = []
    for line in (KAFKA / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["topic"].startswith("__") or (committed and not record["committed"]):
            continue
        records.append(
            {
                "key": decoded(record["key"]),
                "value": decoded(record["value"]),
                "topic": record["topic"],
                "partition": record["partition"],
                "offset": record["offset"],
                "timestamp": EPOCH + timedelta(milliseconds=record["timestamp"]),
                "timestampType": 1 if record["timestamp_type"] == "LogAppendTime" else 0,
                "headers": [{"key": name, "value": decoded(value)} for name, value in record["headers"]] or None,
            }
        )
    return sorted(records, key=lambda row: (row["topic"], row["partition"], row["offset"]))


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_rows_equal_records_of_kafkas_consumer(level: str) -> None:
    records = rows(LogSource, {"path": DATA, "includeHeaders": "true", "kafka.isolation.level": level})
    assert records == seen_by_kafka(committed=level == "read_committed")


def test_read_committed_hides_open_and_aborted_transactions() -> None:
    everything = rows(LogSource, {"path": DATA, "subscribePattern": "transactional|open"})
    committed = rows(
        LogSource, {"path": DATA, "subscribePattern": "transactional|open", "isolation.level": "read_committed"}
    )
    assert 0 < len(committed) < len(everything)
    assert all(row in everything for row in committed)


def test_batch_columns_equal_kafkas_dump() -> None:
    records = rows(LogSource, {"path": DATA, "subscribe": "segmented,codec-zstd,transactional", "includeBatch": "true"})
    segments = {row["segment"] for row in records if row["topic"] == "segmented"}
    assert segments == {0, 8, 16}
    assert all(row["segment"] <= row["batchOffset"] <= row["offset"] for row in records)
    assert {row["compression"] for row in records if row["topic"] == "codec-zstd"} == {"zstd"}
    assert all(row["transactional"] == (row["topic"] == "transactional") for row in records if row["producerId"] > 0)
    for row in records:
        folder = Path(DATA) / f"{row['topic']}-{row['partition']}" / f"{row['segment']:020d}.log"
        with folder.open("rb") as file:
            file.seek(row["position"])
            assert int.from_bytes(file.read(8), "big") == row["batchOffset"]
        assert not row["control"]


def test_control_records_are_included_on_request() -> None:
    records = rows(LogSource, {"path": DATA, "subscribe": "transactional", "includeControl": "true"})
    markers = [row for row in records if row["control"]]
    assert {row["key"] for row in markers} == {b"COMMIT", b"ABORT"}
    plain = rows(LogSource, {"path": DATA, "subscribe": "transactional"})
    assert len(records) == len(plain) + len(markers)


def test_deleted_topic_is_skipped_and_internal_topics_need_name() -> None:
    topics = {row["topic"] for row in rows(LogSource, {"path": DATA})}
    assert "deleted" not in topics
    assert not any(topic.startswith("__") for topic in topics)
    assert rows(LogSource, {"path": DATA, "subscribe": "__consumer_offsets"})


def test_records_before_log_start_offset_are_skipped() -> None:
    facts = json.loads((KAFKA / "facts.json").read_text())
    first = min(row["offset"] for row in rows(LogSource, {"path": DATA, "subscribe": "trimmed"}))
    assert first == facts["offsets"]["earliest"]["trimmed:0"]["offset"] > 0


def test_offsets_for_timestamps_equal_kafkas() -> None:
    facts = json.loads((KAFKA / "facts.json").read_text())
    for time, answers in facts["offsets"].items():
        if not time.isdigit():
            continue
        for name, answer in answers.items():
            topic, _, number = name.rpartition(":")
            if topic.startswith("__"):
                continue
            options = {
                "path": DATA,
                "assign": json.dumps({topic: [int(number)]}),
                "startingTimestamp": time,
                "startingOffsetsByTimestampStrategy": "latest",
            }
            offsets = [row["offset"] for row in rows(LogSource, options)]
            everything = rows(LogSource, {"path": DATA, "assign": options["assign"]})
            # Kafka may answer with the offset of a marker; the first row is then one behind it.
            later = [row["offset"] for row in everything if 0 <= answer["offset"] <= row["offset"]]
            assert offsets == later, name


def test_filtered_partitions_are_skipped_without_opening_files(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = []
    import ottla.spark.log.files as log_files

    real = log_files.read_folder

    def noted(disk: Any, path: str) -> Any:
        listed.append(path.rpartition("/")[2])
        return real(disk, path)

    monkeypatch.setattr(log_files, "read_folder", noted)
    _, tasks = plan(LogSource, {"path": DATA, "assign": '{"orders": [1]}', "readUpTo": "lastBatch"})
    assert listed == ["orders-1"]
    assert [(piece.topic, piece.partition) for task in tasks for piece in task.pieces] == [("orders", 1)]
