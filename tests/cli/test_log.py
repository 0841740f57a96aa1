"""`ottla log` on directories that Kafka and ottla wrote."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ottla.cli import build
from ottla.records.builder import BatchBuilder
from ottla.records.iterate import iter_all_records
from ottla.world.disk_real import RealDisk

KAFKA = Path(__file__).resolve().parents[1] / "fixtures" / "kafka" / "4.3.1"
DATA = KAFKA / "data"


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(build(["log"]), ["log", *map(str, words)])
    return result.exit_code, result.output


def json_lines(*words: str | Path) -> list[dict[str, Any]]:
    _, output = run(*words, "--json")
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def kafka_dump(name: str) -> dict[str, list[str]]:
    """Return the output of Kafka's DumpLogSegments by file, with the lines of a multi-line value joined."""
    result: dict[str, list[str]] = {}
    for line in gzip.decompress((KAFKA / "dumps" / name).read_bytes()).decode().split("\n"):
        if line.startswith("Dumping "):
            result[line.removeprefix("Dumping ")] = []
        elif line.startswith(("baseOffset:", "| offset:")):
            result[next(reversed(result))].append(line)
    return result


def normal(value: Any) -> Any:
    """Return names in lower case without separators: Kafka prints camel case."""
    if isinstance(value, dict):
        return {name.replace("_", "").lower(): normal(entry) for name, entry in value.items()}
    return [normal(element) for element in value] if isinstance(value, list) else value


def assert_says(ours: Any, theirs: Any, where: str) -> None:
    """Check that the output has everything that Kafka's tool prints."""
    if isinstance(theirs, dict):
        for name, value in theirs.items():
            assert name in ours, f"{where}: {name}"
            assert_says(ours[name], value, f"{where}.{name}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_says(mine, other, f"{where}[{number}]")
    else:
        assert ours == theirs, where


LOGS = ["records", "__cluster_metadata", "__consumer_offsets", "__transaction_state", "__share_group_state"]


@pytest.mark.parametrize("name", LOGS)
def test_dump_of_batches_equals_kafkas_tool(name: str) -> None:
    for path, lines in kafka_dump(f"{name}.txt.gz").items():
        batches = json_lines("dump", DATA / path)
        expected = [line for line in lines if line.startswith("baseOffset:")]
        assert len(batches) == len(expected), path
        for batch, line in zip(batches, expected, strict=True):
            facts = dict(re.findall(r"(\w+): (\S+)", line))
            assert (
                batch["base_offset"],
                batch["last_offset"],
                batch["record_count"],
                batch["base_sequence"],
                batch["last_sequence"],
                batch["producer_id"],
                batch["producer_epoch"],
                batch["partition_leader_epoch"],
                batch["position"],
                batch["size"],
                batch["magic"],
                batch["crc"],
            ) == tuple(
                int(facts[key])
                for key in (
                    "baseOffset",
                    "lastOffset",
                    "count",
                    "baseSequence",
                    "lastSequence",
                    "producerId",
                    "producerEpoch",
                    "partitionLeaderEpoch",
                    "position",
                    "size",
                    "magic",
                    "crc",
                )
            )
            assert batch["transactional"] == (facts["isTransactional"] == "true")
            assert batch["control"] == (facts["isControl"] == "true")
            assert batch["compression"] == facts["compresscodec"]
            assert batch["crc_ok"] == (facts["isvalid"] == "true")
            assert batch["max_timestamp"] == int(facts[batch["timestamp_type"]])


@pytest.mark.parametrize("name", LOGS[1:])
def test_dump_of_internal_records_equals_kafkas_tool(name: str) -> None:
    compared = 0
    for path, lines in kafka_dump(f"{name}.txt.gz").items():
        records = [
            record for batch in json_lines("dump", DATA / path, "-r", "--show-secrets") for record in batch["records"]
        ]
        expected = [line for line in lines if line.startswith("|")]
        assert len(records) == len(expected), path
        for record, line in zip(records, expected, strict=True):
            assert record["offset"] == int(line.split()[2])
            assert "error" not in record
            theirs = re.search(r" payload: (\{.*\})$", line)
            if theirs is None:
                continue
            payload = normal(json.loads(theirs[1]))
            if name == "__transaction_state":
                payload["data"].pop("transactionstatus")  # ottla prints its name
            if '"protocolType":"consumer"' in line:
                for member in payload["data"]["members"]:
                    member.pop("subscription")  # ottla decodes them
                    member.pop("assignment")
            assert_says(normal(record["value"]), payload["data"], f"{path} offset {record['offset']}")
            compared += 1
            key = re.search(r" key: (\{.*\}) payload:", line)
            if key is not None:
                assert_says(normal(record["key"]), normal(json.loads(key[1]))["data"], line)
    assert compared > 5


def test_dump_prints_keys_values_and_headers() -> None:
    (batch,) = json_lines("dump", DATA / "codec-zstd-0", "--records")
    first, second, third, fourth = batch["records"][:4]
    assert (first["key"], first["value"], first["headers"][0]["name"]) == ("key", "value", "trace")
    assert (second["key"], second["value"]) == ("key", None)
    assert (third["key"], third["value"]) == (None, "no key")
    assert [header["name"] for header in fourth["headers"]] == ["empty", "null", "", "trace"]
    assert "value_base64" in batch["records"][4]


def test_dump_prints_records_as_text() -> None:
    code, output = run("dump", DATA / "orders-1", "--records")
    assert code == 0
    assert "offsets 0-" in output
    assert output.count("\n  | ") == 3


def test_dump_prints_a_range_of_offsets() -> None:
    records = [r for batch in json_lines("dump", DATA / "segmented-0", "-r", "--from", "7", "--to", "17")
               for r in batch["records"]]  # fmt: skip
    assert [record["offset"] for record in records] == list(range(7, 18))


def test_dump_of_indexes_and_snapshots_equals_kafkas_tool() -> None:
    dumps: dict[str, list[str]] = {}
    for line in gzip.decompress((KAFKA / "dumps" / "indexes.txt.gz").read_bytes()).decode().splitlines():
        if line.startswith("Dumping "):
            dumps[line.removeprefix("Dumping ")] = []
        else:
            dumps[next(reversed(dumps))].append(line)
    seen = set()
    for path, lines in dumps.items():
        if not (DATA / path).stat().st_size:
            continue
        ours = json_lines("dump", DATA / path)
        rows = [line for line in lines if ": " in line and "Version" not in line and "Crc" not in line]
        kind = Path(path).suffix
        seen.add(kind)
        if kind == ".index":
            assert [list(row.values()) for row in ours] == [list(map(int, re.findall(r"-?\d+", row))) for row in rows]
        elif kind == ".snapshot":
            names = ["producer_id", "producer_epoch", "coordinator_epoch", "current_txn_first_offset"]
            expected = [list(map(int, re.findall(r"-?\d+", row)))[:3] for row in rows if "producerId" in row]
            assert sorted([row[name] for name in names[:3]] for row in ours) == sorted(expected)
    assert {".index", ".timeindex", ".txnindex", ".snapshot"} <= seen


def test_dump_prints_checkpoints_and_metadata_files() -> None:
    assert json_lines("dump", DATA / "orders-0" / "leader-epoch-checkpoint") == [
        {"epoch": 0, "start_offset": 0},
        {"epoch": 2, "start_offset": 1},
    ]
    assert {"topic": "trimmed", "partition": 0, "offset": 4} in json_lines("dump", DATA / "log-start-offset-checkpoint")
    (row,) = json_lines("dump", DATA / "orders-0" / "partition.metadata")
    assert list(row) == ["topic_id"]


def test_secrets_are_hidden_without_show_secrets() -> None:
    _, hidden = run("dump", DATA / "__cluster_metadata-0", "-r", "--json")
    _, shown = run("dump", DATA / "__cluster_metadata-0", "-r", "--json", "--show-secrets")
    assert '"stored_key": "(hidden)"' in hidden
    assert '"stored_key": "(hidden)"' not in shown


def test_ls_prints_offsets_sizes_and_times() -> None:
    rows = {(row["topic"], row["partition"]): row for row in json_lines("ls", DATA)}
    facts = json.loads((KAFKA / "facts.json").read_text())
    trimmed = rows["trimmed", 0]
    assert (trimmed["start_offset"], trimmed["end_offset"]) == (4, 10)
    assert (rows["segmented", 0]["segments"], rows["segmented", 0]["end_offset"]) == (3, 24)
    assert rows["orders", 2]["first_time"] == "2023-11-14T22:13:20.000Z"
    assert rows["deleted", 0]["mark"] == "delete"
    assert rows["orders", 0]["topic_id"] in json.dumps(facts)
    code, output = run("ls", DATA, "--topic", "orders")
    assert code == 0
    assert len(output.splitlines()) == 4


def test_ls_lists_internal_topics_only_with_internal() -> None:
    listed = {row["topic"] for row in json_lines("ls", DATA)}
    every = {row["topic"] for row in json_lines("ls", DATA, "--internal")}
    assert "orders" in listed
    assert {"__consumer_offsets", "__transaction_state"} <= every
    assert listed == {topic for topic in every if not topic.startswith("__")}
    assert json_lines("ls", DATA, "--topic", "__consumer_offsets")
    assert "of internal topics not listed; --internal lists them" in run("ls", DATA)[1]


def test_verify_of_a_good_directory_exits_with_0() -> None:
    code, output = run("verify", DATA)
    assert (code, "all is right" in output) == (0, True)


def test_verify_names_the_damaged_byte_and_exits_with_1(tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(DATA, root)
    log = root / "orders-2" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    code, output = run("verify", root)
    assert code == 1
    assert re.search(r"WRONG orders-2/0{20}\.log byte \d+ offset \d+: wrong CRC", output)
    findings = json_lines("verify", root)
    assert findings[-1]["wrong"] == 1
    assert findings[0]["path"] == str(log) or findings[1]["path"] == str(log)


def test_repair_truncates_only_with_truncate(tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(DATA, root)
    log = root / "orders-2" / "00000000000000000000.log"
    (root / "orders-2" / "00000000000000000000.timeindex").write_bytes(b"\1\2\3")
    log.write_bytes(log.read_bytes()[:-1])
    size = log.stat().st_size
    code, output = run("repair", root, "--dry-run", "--truncate")
    assert (code, log.stat().st_size) == (0, size)
    assert "would orders-2/00000000000000000000.log: cut at byte" in output
    assert not (root / ".lock").exists() or log.stat().st_size == size
    code, output = run("repair", root)
    assert (code, log.stat().st_size) == (1, size)
    assert "--truncate" in output
    code, output = run("repair", root, "--truncate")
    assert code == 0
    assert "all is right now" in output
    assert log.stat().st_size < size
    assert run("verify", root)[0] == 0


def test_ls_refuses_folders_that_only_look_like_partitions(tmp_path: Path) -> None:
    (tmp_path / "python3-1").mkdir()
    (tmp_path / "python3-1" / "setup.cfg").write_text("")
    code, output = run("ls", str(tmp_path))
    assert code == 2
    assert "is not a Kafka log directory" in output


def test_repair_of_damaged_metadata_needs_an_explicit_choice(tmp_path: Path) -> None:
    data = shutil.copytree(KAFKA / "data", tmp_path / "data")
    log = data / "__cluster_metadata-0" / f"{0:020d}.log"
    damaged = bytearray(log.read_bytes())
    damaged[300] ^= 1
    log.write_bytes(damaged)
    code, output = run("repair", str(data), "--truncate")
    assert code == 1
    assert "--metadata skip" in output
    assert log.read_bytes() == damaged
    assert run("verify", str(data))[0] == 1
    code, output = run("repair", str(data), "--metadata", "skip")
    assert "NoOpRecords" in output
    assert run("verify", str(data))[0] == 0


def test_repair_rewrites_unreadable_meta_properties(tmp_path: Path) -> None:
    data = shutil.copytree(KAFKA / "data", tmp_path / "data")
    (data / "meta.properties").write_bytes(b"\x00\xff garbage")
    _, output = run("repair", str(data))
    assert "write again with node.id 1" in output
    assert "node.id=1" in (data / "meta.properties").read_text()


def test_repair_drops_single_records(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "__consumer_offsets-3"
    folder.mkdir(parents=True)
    builder = BatchBuilder(partition_leader_epoch=0)
    for key in (b"first", b"unreadable", b"last"):
        builder.append(key, b"value", timestamp=1_000)
    (folder / f"{0:020}.log").write_bytes(builder.build())
    data = folder.parent
    code, output = run("repair", data, "--drop-record", "__consumer_offsets-3@1", "--dry-run")
    assert "drop the record at offset 1" in output
    code, output = run("repair", data, "--drop-record", "__consumer_offsets-3@1")
    assert code == 0, output
    assert "drop the record at offset 1" in output
    stored = (folder / f"{0:020}.log").read_bytes()
    assert [(record.offset, record.key) for _, record in iter_all_records(stored)] == [(0, b"first"), (2, b"last")]
    code, output = run("repair", data, "--drop-record", "__consumer_offsets-3@1")
    assert (code, "nothing to drop" in output) == (0, True)
    assert run("repair", data, "--drop-record", "nonsense")[0] != 0
    assert run("repair", data, "--drop-record", "none-0@5")[0] != 0


def test_repair_refuses_a_directory_in_use(tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(DATA, root)
    lock = RealDisk().lock(str(root / ".lock"))
    try:
        completed = subprocess.run(
            [sys.executable, "-m", "ottla", "log", "repair", str(root), "--truncate"], capture_output=True, text=True
        )
    finally:
        lock.release()
    assert completed.returncode == 1
    assert "in use by process" in completed.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ls", "/does/not/exist"], "no such file"),
        (["dump", str(DATA)], "ottla log ls"),
        (["dump", str(DATA / "orders-0"), "--values", "nonsense"], "use one of"),
        (["verify", str(DATA / "meta.properties")], "is a file"),
        (["ls", str(KAFKA / "dumps")], "is not a Kafka log directory"),
        (["ls", "/etc"], "/etc is not a Kafka log directory"),
        (["verify", "/etc"], "/etc is not a Kafka log directory"),
        (["repair", "/etc", "--dry-run"], "/etc is not a Kafka log directory"),
        (["dump", str(DATA / "meta.properties")], "is not a file that"),
    ],
)
def test_wrong_usage_exits_with_2_and_the_reason(words: list[str], says: str) -> None:
    code, output = run(*words)
    assert code == 2
    assert says in output
    assert len(output.strip().splitlines()) == 1
