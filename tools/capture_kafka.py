"""Run the real Apache Kafka once and store its files as small fixtures under tests/fixtures/kafka/<version>/.

Bytes in `data/` (a whole log directory after a clean stop), `data-static/` (the same with a static quorum), and
`formatted*/` (before the first start); beside them what Kafka's own tools and clients say about them in `dumps/`,
`facts.json` and `records.jsonl`, and an example of every message class in `record-schemas.jsonl` and
`messages.jsonl.gz`. A new run changes times, ids and salts, so run it only when the fixtures must change.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.interop import scenario  # noqa: E402
from tests.interop.apache_kafka import STORAGE, ApacheKafka, dump_log, run_tool  # noqa: E402
from tests.interop.java_client import JavaClients, Record  # noqa: E402
from tests.interop.jvm import KAFKA_VERSION, jvm  # noqa: E402
from tests.reviewable_json import reviewable_json  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGET = ROOT / "tests" / "fixtures" / "kafka" / KAFKA_VERSION
CLUSTER_ID = "b3R0bGEtZml4dHVyZS0wMQ"


def main() -> None:
    """Capture all fixtures, or with "schemas" only the examples of classes."""
    if sys.argv[1:] == ["schemas"]:
        capture_schemas()
        return
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        capture_formatted(work)
        capture_static(work)
        capture_directory(work)
    capture_schemas()
    size = sum(path.stat().st_size for path in TARGET.rglob("*") if path.is_file())
    print(f"{TARGET.relative_to(ROOT)}: {size / 1024:.0f} KiB")


def capture_schemas() -> None:
    """Write an example of every message class in every version."""
    (TARGET / "record-schemas.jsonl").write_text(jvm().run("SchemaExamples", "records").stdout)
    write_gz(TARGET / "messages.jsonl.gz", jvm().run("SchemaExamples", "messages").stdout)


def capture_formatted(work: Path) -> None:
    """Write what StorageTool leaves behind, for both kinds of quorum."""
    for name, dynamic in (("formatted", True), ("formatted-static", False)):
        node = ApacheKafka(work / name, cluster_id=CLUSTER_ID, dynamic_quorum=dynamic)
        config = work / f"{name}.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in node.properties().items()))
        options = ["format", "--cluster-id", CLUSTER_ID, "--config", str(config)]
        users = ["--add-scram", "SCRAM-SHA-256=[name=alice,password=alice-secret]"] if dynamic else []
        run_tool(STORAGE, *options, *(["--standalone"] if dynamic else []), *users)
        keep_directory(work / name, TARGET / name)


def capture_static(work: Path) -> None:
    """Write a directory of a node with controller.quorum.voters (kraft.version 0)."""
    node = ApacheKafka(work / "data-static", cluster_id=CLUSTER_ID, dynamic_quorum=False, node_id=3)
    with node, JavaClients() as clients:
        clients.admin(node.bootstrap).create_topic("static", 1)
        with clients.producer(node.bootstrap) as producer:
            producer.send([Record("static", b"value", b"key", timestamp=scenario.START)])
    keep_directory(work / "data-static", TARGET / "data-static")


def capture_directory(work: Path) -> None:
    """Write the big one: every kind of thing that a small cluster keeps."""
    node = ApacheKafka(work / "data", cluster_id=CLUSTER_ID, settings=scenario.SETTINGS, sasl=True).start()
    clients = JavaClients()
    try:
        scenario.write_metadata(node, clients)
        scenario.write_records(node, clients)
        node.restart()  # leader epoch 1 and a second epoch of the quorum
        scenario.write_transactions(node, clients)
        scenario.write_compacted(node, clients)
        scenario.write_groups(node, clients)
        scenario.write_share_groups(node, clients)
        scenario.await_snapshot(node, clients)
        facts = scenario.collect_facts(node, clients)
        records = scenario.collect_records(node, clients)
    finally:
        clients.close()  # at once: members stay in their groups, transactions stay open
        node.stop()
    problems = node.complaints(ignore=[r"is already registered", r"Broker .* disconnected"])
    if problems:
        print("Kafka complained:", *problems, sep="\n  ")
    keep_directory(work / "data", TARGET / "data")
    (TARGET / "facts.json").write_text(reviewable_json(json.loads(json.dumps(facts, sort_keys=True)), 3) + "\n")
    (TARGET / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    capture_dumps(TARGET / "data")


def capture_dumps(data: Path) -> None:
    """Write what DumpLogSegments says about every file."""
    target = TARGET / "dumps"
    target.mkdir()
    decoders = {
        "__cluster_metadata": "--cluster-metadata-decoder",
        "__consumer_offsets": "--offsets-decoder",
        "__transaction_state": "--transaction-log-decoder",
        "__share_group_state": "--share-group-state-decoder",
    }

    def files(*suffixes: str) -> Iterator[str]:
        for path in sorted(data.rglob("*")):
            if path.suffix in suffixes and path.is_file() and not path.parent.name.endswith("-delete"):
                yield str(path.relative_to(data))

    logs = list(files(".log", ".checkpoint"))
    for prefix, decoder in decoders.items():
        mine = [log for log in logs if log.startswith(prefix)]
        text = dump_log(*mine, options=("--deep-iteration", decoder), cwd=data)
        write_gz(target / f"{prefix}.txt.gz", text)
    plain = [log for log in logs if not log.startswith("__") and "/" in log]
    write_gz(target / "records.txt.gz", dump_log(*plain, cwd=data))
    indexes = list(files(".index", ".timeindex", ".txnindex", ".snapshot"))
    write_gz(target / "indexes.txt.gz", dump_log(*indexes, options=(), cwd=data))


def keep_directory(source: Path, target: Path) -> None:
    """Copy a log directory; the lock of the process that had it is not part of it."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(".lock"))
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
        if path.suffix in (".index", ".timeindex") and path.stat().st_size > 1_000_000:
            # Indexes of a deleted topic keep the room that was set aside for them; a clean stop cuts the others.
            assert not any(path.read_bytes())
            path.write_bytes(b"")


def write_gz(path: Path, text: str) -> None:
    """Write compressed text whose bytes depend on nothing but the text."""
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
