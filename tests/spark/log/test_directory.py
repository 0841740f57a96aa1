"""The format `ottla-log` on ottla's directories, stopped or in use: splits, filters, damage, transactions."""

from __future__ import annotations

import random
import shutil
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
from confluent_kafka import Producer
from pyspark.sql import datasource as filters

from ottla.spark.data_loss import DataLossError
from ottla.spark.log.read import DamagedLogError
from ottla.spark.log.source import LogSource
from ottla.spark.options import OptionError
from ottla.spark.pushdown.filters import PUSHED
from ottla.testing import Cluster
from ottla.world.disk_real import RealDisk
from tests.spark.direct import make_source, plan, rows, table
from tests.testing.clients import completed

pytestmark = pytest.mark.xdist_group("spark")

START = 1_700_000_000_000
RECORDS = 6000
SMALL_SEGMENTS = {"segment.bytes": "1048576", "index.interval.bytes": "4096"}
FOREVER = {"log.retention.ms": "-1"}


def produce(cluster: Cluster, topic: str, count: int, *, first: int = 0, partitions: int = 1, **config: Any) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5, "batch.num.messages": 50, **config})
    for number in range(first, first + count):
        producer.produce(
            topic,
            key=str(number),
            value=f"value {number} ".encode() * 60,
            partition=number % partitions,
            timestamp=START + number * 10,
            headers=[("n", str(number))],
        )
        producer.poll(0)
    assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a stopped broker's directory: a topic in several segments, and one with transactions."""
    path = str(tmp_path_factory.mktemp("data"))
    topics = {
        "events": {"partitions": 2, "configs": SMALL_SEGMENTS},
        "payments": {"partitions": 1, "configs": SMALL_SEGMENTS},
        "stamped": {"partitions": 1, "configs": {"message.timestamp.type": "LogAppendTime"}},
    }
    with Cluster(topics=topics, data_dir=path, configs=FOREVER) as cluster:
        produce(cluster, "events", RECORDS, partitions=2)
        produce(cluster, "stamped", 10)
        _transactions(cluster)
    return path


COMMITTED: set[bytes] = set()


def _transactions(cluster: Cluster) -> None:
    """Write interleaved transactions of two producers, some committed, some aborted."""
    choice = random.Random(5)
    producers = []
    for name in ("one", "two"):
        config = {"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "linger.ms": 0}
        producers.append(Producer(config))
        producers[-1].init_transactions()
    COMMITTED.clear()
    for round_number in range(12):
        for producer in producers:
            producer.begin_transaction()
        values: list[set[bytes]] = [set(), set()]
        for number in range(40):
            which = choice.randrange(2)
            value = f"{round_number}/{number}".encode() + b"." * 100
            producers[which].produce("payments", value=value, partition=0)
            producers[which].flush(60)
            values[which].add(value)
        for which, producer in enumerate(producers):
            if choice.random() < 0.5:
                producer.commit_transaction()
                COMMITTED.update(values[which])
            else:
                producer.abort_transaction()
    completed(cluster, "one", "two")


def test_each_row_is_read_once_for_any_split(directory: str) -> None:
    whole = table(LogSource, {"path": directory, "subscribe": "events"}).sort_by([("partition", "ascending")])
    assert whole.num_rows == RECORDS
    assert sorted(int(key) for key in whole["key"].to_pylist()) == list(range(RECORDS))
    for option in ({"minPartitions": "16"}, {"maxPartitionBytes": "20k", "minPartitions": "1"}):
        options = {"path": directory, "subscribe": "events", **option}
        _, tasks = plan(LogSource, options)
        assert len(tasks) >= 8
        assert len({(p.partition, p.segment) for task in tasks for p in task.pieces}) > 2
        assert table(LogSource, options).sort_by([("partition", "ascending")]) == whole


def test_tasks_are_deterministic(directory: str) -> None:
    options = {"path": directory, "minPartitions": "12"}
    pieces = [[task.pieces for task in plan(LogSource, options)[1]] for _ in range(2)]
    assert pieces[0] == pieces[1]


def test_read_committed_is_exact_for_any_split(directory: str) -> None:
    for least in ("1", "40"):
        committed = rows(
            LogSource,
            {
                "path": directory,
                "subscribe": "payments",
                "isolation.level": "read_committed",
                "minPartitions": least,
                "includeBatch": "true",
            },
        )
        assert len(committed) == len(COMMITTED)
        assert {row["value"] for row in committed} == COMMITTED
    everything = rows(LogSource, {"path": directory, "subscribe": "payments"})
    assert len(everything) == 12 * 40 > len(COMMITTED) > 0


def test_filters_limit_opened_files(directory: str) -> None:
    def at(number: int) -> datetime:
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=START + number * 10)

    options = {"path": directory, "subscribe": "events"}
    everything = rows(LogSource, options)
    total = sum(piece.size for task in plan(LogSource, options)[1] for piece in task.pieces)
    cases: list[tuple[list[Any], Any, float]] = [
        ([filters.EqualTo(("partition",), 1)], lambda r: r["partition"] == 1, 0.6),
        ([filters.In(("partition",), (0, 7))], lambda r: r["partition"] == 0, 0.6),
        ([filters.GreaterThan(("partition",), 0)], lambda r: r["partition"] > 0, 1.0),
        ([filters.EqualTo(("topic",), "none")], lambda r: False, 0.0),
        ([filters.GreaterThanOrEqual(("offset",), 2900)], lambda r: r["offset"] >= 2900, 0.1),
        ([filters.LessThan(("offset",), 100)], lambda r: r["offset"] < 100, 0.1),
        ([filters.EqualTo(("offset",), 1500)], lambda r: r["offset"] == 1500, 0.1),
        ([filters.GreaterThan(("timestamp",), at(5900))], lambda r: r["timestamp"] > at(5900), 0.1),
        (
            [filters.GreaterThanOrEqual(("timestamp",), at(5000)), filters.LessThan(("timestamp",), at(5100))],
            lambda r: at(5000) <= r["timestamp"] < at(5100),
            0.3,
        ),
    ]
    for case, passes, share in cases:
        _, tasks = plan(LogSource, options, case)
        assert sum(piece.size for task in tasks for piece in task.pieces) <= share * total, case
        filtered = rows(LogSource, options, case)
        assert [row for row in filtered if passes(row)] == [row for row in everything if passes(row)], case
    # Rows of other times are not even handed to Spark.
    assert len(rows(LogSource, options, cases[-1][0])) <= 102


def test_timestamp_filter_keeps_out_of_order_record(tmp_path: Path) -> None:
    """Timestamps may be in any order: a batch with a late base timestamp can hold a matching record."""
    with Cluster(topics=["mixed"], data_dir=str(tmp_path), configs=FOREVER) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 50, "compression.type": "gzip"})
        for offset in (0, 500, 9000, 10, 9001, 9002):
            producer.produce("mixed", value=str(offset), timestamp=START + offset)
        assert producer.flush(60) == 0
        for offset in (9003, 9004):
            producer.produce("mixed", value=str(offset), timestamp=START + offset)
        assert producer.flush(60) == 0
    until = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=START + 100)
    matching = rows(LogSource, {"path": str(tmp_path)}, [filters.LessThan(("timestamp",), until)])
    assert [row["value"] for row in matching] == [b"0", b"10"]


def test_filters_are_not_pushed_without_ottlas_rule(directory: str) -> None:
    for source_options in ({}, {PUSHED: "true", "filterPushdown": "false"}):
        reader, _ = plan(LogSource, {"path": directory, **source_options})
        assert type(reader).pushFilters is filters.DataSourceReader.pushFilters


def test_offsets_and_timestamps_bound_read(directory: str) -> None:
    base = {"path": directory, "subscribe": "events"}
    bounded = rows(
        LogSource,
        base | {"startingOffsets": '{"events": {"0": 10, "1": -2}}', "endingOffsets": '{"events": {"0": 20, "1": 5}}'},
    )
    assert [(r["partition"], r["offset"]) for r in bounded] == [(0, n) for n in range(10, 20)] + [
        (1, n) for n in range(5)
    ]
    times = {"startingTimestamp": str(START + 1000), "endingTimestamp": str(START + 1200)}
    assert sorted(int(row["key"]) for row in rows(LogSource, base | times)) == list(range(100, 120))
    by_partition = {"startingOffsetsByTimestamp": f'{{"events": {{"0": {START + 59000}, "1": {START + 59500}}}}}'}
    assert len(rows(LogSource, base | by_partition)) == 50 + 25


def test_columns_option_and_schema_select_columns(directory: str) -> None:
    from pyspark.sql.types import LongType, StringType, StructType

    selected = table(LogSource, {"path": directory, "subscribe": "events", "columns": "offset,Headers"})
    assert selected.column_names == ["offset", "headers"]
    source = LogSource({"path": directory, "subscribe": "events"})
    reader = source.reader(StructType().add("offset", LongType()))
    batch = next(reader.read(reader.partitions()[0]))
    assert batch.schema.names == ["offset"]
    with pytest.raises(OptionError, match=r"column offset as bigint, not as string: leave"):
        source.reader(StructType().add("offset", StringType()))
    with pytest.raises(OptionError, match=r"no column nonsense; the columns are key, value"):
        source.reader(StructType().add("nonsense", StringType()))


@pytest.fixture
def copy(directory: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(directory, tmp_path / "copy"))


def damage(copy: Path, topic: str, batch: int) -> tuple[int, int]:
    """Change a byte of one batch's records; return the offsets of that batch."""
    records = rows(LogSource, {"path": str(copy), "subscribe": topic, "includeBatch": "true"})
    bases = sorted({(r["segment"], r["position"], r["batchOffset"]) for r in records if r["partition"] == 0})
    segment, position, base = bases[batch]
    end = min((b for _, _, b in bases if b > base), default=records[-1]["offset"] + 1)
    path = copy / f"{topic}-0" / f"{segment:020d}.log"
    data = bytearray(path.read_bytes())
    data[position + 70] ^= 0xFF
    path.write_bytes(data)
    return base, end


def test_damaged_batch_fails_read_with_position(copy: Path) -> None:
    damage(copy, "events", 7)
    with pytest.raises(DamagedLogError, match=r"events-0/0{20}\.log is damaged at or behind byte \d+: .*CRC"):
        rows(LogSource, {"path": str(copy), "subscribe": "events"})


def test_damaged_batch_can_be_dropped_or_shown(copy: Path) -> None:
    base, end = damage(copy, "events", 7)
    kept = rows(LogSource, {"path": str(copy), "subscribe": "events", "badRecords": "drop"})
    assert {r["offset"] for r in kept if r["partition"] == 0} == set(range(RECORDS // 2)) - set(range(base, end))
    shown = rows(LogSource, {"path": str(copy), "subscribe": "events", "badRecords": "column", "includeBatch": "true"})
    bad = [row for row in shown if row["badRecord"] is not None]
    assert [(row["topic"], row["partition"], row["offset"]) for row in bad] == [("events", 0, base)]
    assert "CRC" in bad[0]["badRecord"]
    assert int.from_bytes(bad[0]["value"][:8], "big") == base
    assert len(shown) == len(kept) + 1


def test_wrong_batch_length_loses_only_rows_up_to_next_index_entry(copy: Path) -> None:
    path = copy / "events-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[8:12] = (2**31 - 1).to_bytes(4, "big")
    path.write_bytes(data)
    with pytest.raises(DamagedLogError, match="at or behind byte 0"):
        rows(LogSource, {"path": str(copy), "subscribe": "events"})
    kept = [r for r in rows(LogSource, {"path": str(copy), "badRecords": "drop"}) if r["topic"] == "events"]
    assert RECORDS - 400 < len(kept) < RECORDS


def test_read_works_without_offset_index(copy: Path) -> None:
    for index in (copy / "events-0").glob("*.index"):
        index.unlink()
    for index in (copy / "events-1").glob("*.index"):
        index.write_bytes(b"nonsense")
    assert len(rows(LogSource, {"path": str(copy), "subscribe": "events", "minPartitions": "8"})) == RECORDS


def test_preallocated_index_of_running_kafka_is_read(copy: Path) -> None:
    for index in (*(copy / "events-0").glob("*.index"), *(copy / "events-0").glob("*.timeindex")):
        index.write_bytes(index.read_bytes() + bytes(10 << 20))
    options = {"path": str(copy), "assign": '{"events": [0]}', "minPartitions": "6"}
    assert len(plan(LogSource, options)[1]) >= 6
    assert len(rows(LogSource, options)) == RECORDS // 2
    late = options | {"startingTimestamp": str(START + 59_000)}
    assert len(rows(LogSource, late)) == 50


def test_torn_tail_is_not_read(copy: Path) -> None:
    (copy / ".kafka_cleanshutdown").unlink()
    last = sorted((copy / "events-0").glob("*.log"))[-1]
    whole = rows(LogSource, {"path": str(copy), "subscribe": "events"})
    last.write_bytes(last.read_bytes()[:-5])
    torn = rows(LogSource, {"path": str(copy), "subscribe": "events"})
    assert 0 < len(whole) - len(torn) <= 50
    last.write_bytes(last.read_bytes() + bytes(100))  # a file that was made longer before it was filled
    assert rows(LogSource, {"path": str(copy), "subscribe": "events"}) == torn


def test_checkpointed_high_watermark_bounds_replicated_log(copy: Path) -> None:
    checkpoint = copy / "replication-offset-checkpoint"
    lines = checkpoint.read_text().splitlines()
    checkpoint.write_text("\n".join("events 0 100" if line.startswith("events 0 ") else line for line in lines) + "\n")
    base = {"path": str(copy), "assign": '{"events": [0]}'}
    assert len(rows(LogSource, base | {"readUpTo": "highWatermark"})) == 100
    # With one replica all that is written is decided, and the checkpoint is only late.
    assert len(rows(LogSource, base)) == RECORDS // 2


def test_file_removed_after_planning_is_reported(copy: Path) -> None:
    options = {"path": str(copy), "assign": '{"events": [0]}'}
    before = rows(LogSource, options)
    reader, tasks = plan(LogSource, options)
    first = min((copy / "events-0").glob("*.log"))
    replaced = first.read_bytes()
    first.rename(first.with_suffix(".log.gone"))
    first.write_bytes(replaced)  # as a cleaner swaps files: same name, another file
    assert [r for task in tasks for b in reader.read(task) for r in b.to_pylist()] == before
    first.unlink()
    with pytest.raises(DataLossError, match=r"events-0: offsets 0 to \d+ were removed"):
        [batch for task in tasks for batch in reader.read(task)]
    reader, _ = plan(LogSource, options | {"failOnDataLoss": "false"})
    left = [r for task in tasks for b in reader.read(task) for r in b.to_pylist()]
    assert 0 < len(left) < len(before)


def test_deleted_records_in_a_batch_that_reaches_beyond_are_not_returned(copy: Path) -> None:
    options = {"path": str(copy), "assign": '{"events": [0]}', "badRecords": "column"}
    reader, tasks = plan(LogSource, options | {"failOnDataLoss": "false"})
    strict, _ = plan(LogSource, options)
    start = 1003  # within a batch of 50
    set_log_start(copy, "events", 0, start)
    assert [row["offset"] for row in rows(LogSource, options)] == list(range(start, RECORDS // 2))
    # As after a DeleteRecords between planning and reading.
    late = [offset for task in tasks for batch in reader.read(task) for offset in batch["offset"].to_pylist()]
    assert late == list(range(start, RECORDS // 2))
    with pytest.raises(DataLossError, match=r"events-0: offsets 0 to 1002 were removed"):
        [batch for task in tasks for batch in strict.read(task)]
    # Neither are the bytes of a damaged batch, which hold deleted records too.
    bases = [row["batchOffset"] for row in rows(LogSource, options | {"includeBatch": "true"})]
    set_log_start(copy, "events", 0, 0)
    number = sorted({row["batchOffset"] for row in rows(LogSource, options | {"includeBatch": "true"})}).index(bases[0])
    damage(copy, "events", number)
    set_log_start(copy, "events", 0, start)
    bad = [row for row in rows(LogSource, options) if row["badRecord"] is not None]
    assert [(row["offset"], row["value"]) for row in bad] == [(bases[0], None)]


def set_log_start(copy: Path, topic: str, partition: int, offset: int) -> None:
    (copy / "log-start-offset-checkpoint").write_text(f"0\n1\n{topic} {partition} {offset}\n")


def test_offsets_outside_log_follow_fail_on_data_loss(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    set_log_start(copy, "events", 0, 1003)
    end = RECORDS // 2
    for start, stop, left in ((5, 1010, range(1003, 1010)), (2990, 9999, range(2990, end)), (4000, 4001, range(0))):
        options = {
            "path": str(copy),
            "assign": '{"events": [0]}',
            "startingOffsets": f'{{"events": {{"0": {start}}}}}',
            "endingOffsets": f'{{"events": {{"0": {stop}}}}}',
        }
        with pytest.raises(DataLossError, match=rf"events-0 has offsets 1003 to {end}, and the read requests"):
            rows(LogSource, options)
        assert [row["offset"] for row in rows(LogSource, options | {"failOnDataLoss": "false"})] == list(left)
        assert "records are gone" in capfd.readouterr().err


def test_segment_deleted_by_retention_is_reported_at_any_moment(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention removes the oldest segment whenever a file is opened: no moment gives a FileNotFoundError."""
    options = {"path": str(copy), "assign": '{"events": [0]}', "minPartitions": "6"}
    everything = [row["offset"] for row in rows(LogSource, options)]
    opened = RealDisk.open
    for moment in range(1, 40, 3):
        folder = copy / f"round-{moment}"
        shutil.copytree(copy / "events-0", folder / "events-0")
        shutil.copy(copy / "meta.properties", folder)
        calls = 0

        def racing(self: Any, path: str, *, _moment: int = moment, _folder: Path = folder, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= _moment and calls % 3 == 0:
                segments = sorted((_folder / "events-0").glob("*.log"))
                for file in (_folder / "events-0").glob(f"{segments[0].stem}.*") if len(segments) > 1 else ():
                    file.unlink()
            return opened(self, path, **more)

        monkeypatch.setattr(RealDisk, "open", racing)
        left = [row["offset"] for row in rows(LogSource, {**options, "path": str(folder), "failOnDataLoss": "false"})]
        monkeypatch.undo()
        assert left == sorted(set(left) & set(everything))
        assert left[-1] == everything[-1]


def test_min_partitions_makes_at_least_so_many_tasks(directory: str) -> None:
    for least in (1, 2, 5, 17):
        options = {"path": directory, "subscribe": "events", "minPartitions": str(least)}
        assert len(plan(LogSource, options)[1]) >= least
        assert len(rows(LogSource, options)) == RECORDS


def test_directory_in_use_is_read_up_to_last_stable_offset(tmp_path: Path) -> None:
    topics = {"live": {"partitions": 1, "configs": SMALL_SEGMENTS}}
    with Cluster(topics=topics, data_dir=str(tmp_path), configs=FOREVER) as cluster:
        seen = 0
        for round_number in range(4):
            produce(cluster, "live", 500, first=round_number * 500)
            committed = rows(LogSource, {"path": str(tmp_path), "isolation.level": "read_committed"})
            assert [int(row["key"]) for row in committed] == list(range(len(committed)))
            assert len(committed) == (round_number + 1) * 500 > seen
            seen = len(committed)
        settings = {"transactional.id": "open", "transaction.timeout.ms": 600_000, "linger.ms": 0}
        producer = Producer({"bootstrap.servers": cluster.bootstrap, **settings})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("live", value=b"undecided", partition=0)
        producer.flush(60)
        produce(cluster, "live", 5, first=2000)
        undecided = rows(LogSource, {"path": str(tmp_path), "isolation.level": "read_committed"})
        assert len(undecided) == 2000  # up to the last stable offset, as a consumer would
        assert len(rows(LogSource, {"path": str(tmp_path)})) == 2006
        producer.abort_transaction()  # decided; the marker is in the log a little later
        deadline = time.monotonic() + 300
        decided = undecided
        while len(decided) == len(undecided) and time.monotonic() < deadline:
            decided = rows(LogSource, {"path": str(tmp_path), "isolation.level": "read_committed"})
        assert len(decided) == 2005


def test_directories_of_several_brokers_are_read_together(tmp_path: Path) -> None:
    with Cluster(3, topics=["spread:6"], data_dir=str(tmp_path), configs=FOREVER) as cluster:
        produce(cluster, "spread", 60, partitions=6)
    merged = rows(LogSource, {"path": str(tmp_path)})
    assert sorted(int(row["key"]) for row in merged) == list(range(60))
    listed = ",".join(str(tmp_path / f"node-{n}") for n in (1, 2, 3))
    assert rows(LogSource, {"path": listed}) == merged


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, 'needs a log directory: spark.read.format("ottla-log").load('),
        ({"path": "/nowhere"}, "'/nowhere' is not a folder"),
        ({"subscibe": "events"}, "no option subscibe; did you mean subscribe?"),
        ({"subscribe": "events", "assign": "{}"}, "subscribe and assign exclude each other"),
        ({"subscribe": "nothing"}, "; there are events, payments, stamped"),
        ({"assign": '{"events": [9]}'}, "there is no partition events-9"),
        ({"assign": "events:0"}, 'assign must be JSON such as {"orders": [0, 1]}'),
        ({"startingOffsets": "first"}, 'startingOffsets must be earliest, latest or JSON such as {"orders": {"0": 23'),
        ({"startingOffsets": '{"events": {"0": "x"}}'}, "startingOffsets must map partitions to numbers"),
        (
            {"startingOffsets": '{"events": {"0": 5}}'},
            "startingOffsets must name every partition that is read (-2 is earliest, -1 latest); it lacks events-1, ",
        ),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "startingOffsets names other-0"),
        ({"startingTimestamp": "9999999999999"}, "no record at 9999999999999 ms or later; give an earlier"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"badRecords": "ignore"}, "badRecords must be one of fail, drop, column, not 'ignore'"),
        ({"isolation.level": "dirty"}, "isolation.level must be one of read_uncommitted, read_committed"),
        ({"minPartitions": "many"}, "minPartitions must be a whole number, for example 1000"),
        ({"maxPartitionBytes": "0"}, "maxPartitionBytes must be a number of bytes, for example"),
        ({"includeHeaders": "ja"}, "includeHeaders must be true or false, not 'ja'"),
        ({"columns": "offset,nonsense"}, "columns: unknown column 'nonsense'; the columns are key"),
        ({"subscribePattern": "("}, "subscribePattern '(' is no regular expression of Java: Unclosed group"),
        ({"assign": "{}"}, "assign names no partition; write for example"),
        (
            {"subscribe": "events", "startingTimestamp": str(START + 4000), "endingTimestamp": str(START + 1000)},
            "events-0 would be read from offset 200 to 50: the end is before the start",
        ),
        (
            {"startingOffsets": '{"events": {"0": 20}}', "endingOffsets": '{"events": {"0": 2}}'},
            "endingOffsets of events-0 is 2, before its startingOffsets, 20",
        ),
    ],
)
def test_invalid_option_error_shows_valid_value(directory: str, options: dict[str, str], message: str) -> None:
    source_options = options if not options else {"path": directory, **options}
    with pytest.raises(OptionError) as raised:
        rows(LogSource, source_options)
    assert message in str(raised.value)


def test_folder_named_like_partition_is_not_a_log_directory(tmp_path: Path) -> None:
    (tmp_path / "llvm-14" / "lib").mkdir(parents=True)
    with pytest.raises(OptionError, match=r"is no log directory: it has neither meta\.properties nor folders such as"):
        make_source(LogSource, {"path": str(tmp_path)})


def test_url_is_read_through_fsspec(directory: str) -> None:
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    store.put(directory, "/lake", recursive=True)
    try:
        for options in (
            {"includeBatch": "true", "includeHeaders": "true"},
            {"subscribe": "payments", "isolation.level": "read_committed"},
            {"subscribe": "events", "startingTimestamp": str(START + 30_000), "minPartitions": "7"},
        ):
            local = rows(LogSource, {"path": directory, **options})
            assert local
            assert rows(LogSource, {"path": "memory://lake", **options}) == local
        assert rows(LogSource, {"path": "memory://lake/", "subscribe": "stamped"})
        with pytest.raises(OptionError, match="'memory://nothing' is not a folder there"):
            rows(LogSource, {"path": "memory://nothing"})
    finally:
        store.rm("/lake", recursive=True)


def test_unsupported_url_names_package_to_install(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(OptionError, match="fsspec cannot read nonsense:// paths here"):
        rows(LogSource, {"path": "nonsense://bucket/logs"})
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(OptionError, match=r"gone:// paths are read through fsspec.*: pip install fsspec"):
        rows(LogSource, {"path": "gone://bucket/logs"})
