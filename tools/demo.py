"""`make demo`: a broker, a shop that writes in transactions, a Spark pipeline that is killed in the middle, the proof.

The proof is that every order was counted exactly once. Without the spark extra a consumer does the counting.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from ottla.testing.spark import streamed_rows

CLICKS = 20_000
USERS = 300
HOURS = 4
PER_TRANSACTION = 200
ABORT_EVERY = 9
SECONDS_OF_TRAFFIC = 20
PATIENCE = 600
STARTS = 5
SAY_EVERY = 10
MINUTE = 60_000
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a JVM that lives for half a minute never earns back more
WITH = ["--json", "--seed-topic", "clicks:3", "--seed-topic", "sessions:2"]
SERVE = [sys.executable, "-m", "ottla", "serve", "-p", "0", "-l", "warn", *WITH]
EXAMPLE = Path(__file__).parents[1] / "examples" / "pipelines" / "sessions"
REQUEST = (
    "00 00 00 23 00 12 00 04 25 ed c0 ae 00 09 6b 61 66 6b 61 2d 63 6c 69 "
    "00 0a 6b 61 66 6b 61 2d 63 6c 69 04 30 2e 31 00"
)
console = Console(highlight=False)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ottla-demo-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        started = time.perf_counter()
        broker = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ottla",
                "serve",
                "-d",
                str(folder / "broker"),
                "-p",
                "0",
                "-l",
                "warn",
                *WITH,
                *page_options(),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert broker.stdout is not None
            line = broker.stdout.readline()
            if not line:
                console.print("the broker did not start")
                return 1
            announced = json.loads(line)
            bootstrap = announced["bootstrap"]
            took = (time.perf_counter() - started) * 1000
            console.rule("[bold]1. A broker")
            console.print(f"ottla serves [bold]{bootstrap}[/], up {took:.0f} ms after it was called; data in {folder}")
            if "console" in announced:
                console.print(f"watch it in a browser: [bold]{announced['console']}[/]", soft_wrap=True)
            proven = tell(bootstrap, folder)
            broker.send_signal(signal.SIGTERM)
            broker.wait(60)
            look_inside(folder / "broker")
        finally:
            if broker.poll() is None:
                broker.kill()
                broker.wait()
    decode()
    return 0 if proven else 1


def page_options() -> list[str]:
    """The options that serve the console, if its packages are installed."""
    packages = ("jinja2", "starlette", "uvicorn")
    return ["--console", "0"] if all(importlib.util.find_spec(package) for package in packages) else []


def tell(bootstrap: str, folder: Path) -> bool:
    """The story; whether the numbers agree."""
    shop = Shop(bootstrap)
    problem = why_no_spark()
    if problem:
        console.rule("[bold]2. A shop that writes in transactions")
        console.print(f"[yellow]{problem}[/]; a consumer counts in place of the pipeline")
        shop.start()
        watch(shop, None)
        return prove_by_consumer(shop, bootstrap)
    console.rule("[bold]2. A shop that writes in transactions, and a Spark pipeline that cuts its clicks into sessions")
    pipeline = Pipeline(folder / "sessions", bootstrap)
    shop.start()
    for _ in range(STARTS):  # Spark gives a Python worker ten seconds to start; on a busy machine that may not do
        pipeline.start(once=False)
        watch(shop, pipeline, until=lambda: pipeline.batches() >= 2 or (shop.done and pipeline.batches() >= 1))
        if pipeline.running:
            break
    if not pipeline.running:
        return prove(shop, pipeline, bootstrap)
    pipeline.kill()
    where = "" if shop.done else ", while the shop is still open"
    console.print(
        f"\n[red]kill -9[/] of the pipeline's driver after batch {pipeline.batches() - 1}{where}; "
        "then it is started again from its checkpoint\n"
    )
    watch(shop, None)
    console.print()
    shop.close()
    for _ in range(STARTS):
        pipeline.start(once=True)
        watch(shop, pipeline, until=lambda: not pipeline.running)
        if pipeline.problem() is None:
            break
    return prove(shop, pipeline, bootstrap)


def why_no_spark() -> str | None:
    from ottla.spark.session import SparkSetupError, check_setup

    try:
        check_setup()
    except SparkSetupError as error:
        return str(error)
    return None


@dataclass
class Ledger:
    """What the shop itself knows: only what it committed."""

    clicks: int = 0
    orders: int = 0
    spent: int = 0
    aborted_orders: int = 0
    transactions: int = 0
    aborted: int = 0
    by_user: Counter[str] = field(default_factory=Counter)


class Shop:
    """Synthetic traffic: clicks, some of them orders, some late; every ninth transaction is aborted."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.ledger = Ledger()
        self.done = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._trade()
        except BaseException as error:
            self.failure = error
        self.done = True

    def _trade(self) -> None:
        dice = random.Random(42)
        producer = self._producer()
        opening = int(time.time() * 1000) - HOURS * 60 * MINUTE
        step = HOURS * 60 * MINUTE / CLICKS
        begun = time.monotonic()
        for first in range(0, CLICKS, PER_TRANSACTION):
            rows = []
            for number in range(first, first + PER_TRANSACTION):
                at = opening + int(number * step) - dice.randrange(10 * MINUTE)
                row: dict[str, Any] = {"user": f"user-{dice.randrange(USERS):03}", "at": at, "page": f"/{number % 97}"}
                if dice.random() < 0.2:
                    row |= {"order": number, "amount": dice.randrange(1, 100)}
                rows.append(row)
            self._transaction(producer, rows, commit=(first // PER_TRANSACTION) % ABORT_EVERY != ABORT_EVERY - 1)
            ahead = begun + SECONDS_OF_TRAFFIC * first / CLICKS - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)

    def close(self) -> None:
        """Write a visit one day later, so that all earlier sessions end."""
        later = int(time.time() * 1000) + 24 * 60 * MINUTE
        self._transaction(self._producer(), [{"user": "nobody", "at": later, "page": "/"}], commit=True)
        self.ledger.clicks -= 1

    def _producer(self) -> Producer:
        settings = {"bootstrap.servers": self._bootstrap, "transactional.id": "shop", "compression.type": "lz4"}
        producer = Producer(settings)
        producer.init_transactions(60)
        return producer

    def _transaction(self, producer: Producer, rows: list[dict[str, Any]], *, commit: bool) -> None:
        producer.begin_transaction()
        for row in rows:
            producer.produce("clicks", key=row["user"], value=json.dumps(row))
        orders = [row for row in rows if "order" in row]
        if not commit:
            producer.flush(60)
            producer.abort_transaction(60)
            self.ledger.aborted += 1
            self.ledger.aborted_orders += len(orders)
            return
        producer.commit_transaction(60)
        self.ledger.transactions += 1
        self.ledger.clicks += len(rows)
        self.ledger.orders += len(orders)
        self.ledger.spent += sum(row["amount"] for row in orders)
        self.ledger.by_user.update(row["user"] for row in orders)


class Pipeline:
    """The example pipeline as a process, with its checkpoints and its output in a folder of its own."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        from ottla.spark.pipeline.folder import find_pipeline

        shutil.copytree(EXAMPLE, folder)
        self.output = folder / "output"
        self._scratch = folder / "scratch"  # what a killed JVM cannot remove goes with the folder
        self._scratch.mkdir()
        self._pipeline = find_pipeline(folder)
        self._bootstrap = bootstrap
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, once: bool) -> None:
        from ottla.spark.pipeline.folder import RunSettings, start

        config = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
        settings = RunSettings(self._bootstrap, config=config, once=once)
        environment = {
            "OTTLA_OUTPUT": str(self.output),
            "SPARK_LOCAL_DIRS": str(self._scratch),
            "SPARK_SUBMIT_OPTS": f"{QUICK_JVM} -Djava.io.tmpdir={self._scratch}",
        }
        self._process = start(self._pipeline, settings, environment=environment)

    def status(self) -> dict[str, Any]:
        from ottla.spark.pipeline.folder import read_status

        return read_status(self._pipeline)

    def batches(self) -> int:
        """How many batches Spark has noted as done."""
        commits = self._pipeline.state / "checkpoints" / "sessions-to-topic" / "commits"
        return len([file for file in commits.iterdir() if file.name.isdigit()]) if commits.exists() else 0

    def kill(self) -> None:
        """As in a power cut: the driver and its JVM at once."""
        assert self._process is not None
        pid = self._process.pid
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                os.kill(int(stat.parent.name), signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def problem(self) -> str | None:
        from ottla.spark.pipeline.folder import error_in_log

        if self._process is None or self._process.returncode in (0, None):
            return None
        ending = "\n".join(self._pipeline.log_file.read_text(errors="replace").splitlines()[-40:])
        return f"{error_in_log(self._pipeline)}\n{ending}"


def watch(shop: Shop, pipeline: Pipeline | None, until: Any = None) -> None:
    """Show progress until the shop is closed or a process ends."""
    finished = until or (lambda: shop.done)
    end = time.monotonic() + PATIENCE
    reported_at = time.monotonic()
    with Live(console=console, refresh_per_second=4) as live:
        while True:
            live.update(view(shop, pipeline))
            if not console.is_terminal and time.monotonic() - reported_at > SAY_EVERY:  # a log has no live view
                reported_at = time.monotonic()
                console.print(one_line(shop, pipeline))
            if finished() or time.monotonic() > end or (pipeline is not None and not pipeline.running):
                break
            time.sleep(0.25)
        live.update(view(shop, pipeline))
    if not console.is_terminal:
        console.print()
    if shop.failure is not None:
        raise shop.failure


def one_line(shop: Shop, pipeline: Pipeline | None) -> str:
    """How far everybody is, for a console that cannot be written over."""
    line = f"shop: {shop.ledger.orders:,} orders in {shop.ledger.transactions:,} transactions"
    if pipeline is None:
        return line
    status = pipeline.status()
    rows = sum(query.get("total_rows", 0) for query in status["queries"])
    return f"{line}; pipeline {status['state']}, {pipeline.batches()} batches, {rows:,} rows"


def view(shop: Shop, pipeline: Pipeline | None) -> Group:
    ledger = shop.ledger
    table = Table("shop", "committed", "aborted", box=None, pad_edge=False)
    table.add_row("transactions", f"{ledger.transactions:,}", f"{ledger.aborted:,}")
    table.add_row("orders", f"{ledger.orders:,}", f"{ledger.aborted_orders:,}")
    table.add_row("clicks", f"{ledger.clicks:,}", "")
    parts: list[Any] = [table]
    if pipeline is not None:
        status = pipeline.status()
        queries = Table(f"pipeline: {status['state']}", "batch", "rows", "rows/s", "lag", box=None, pad_edge=False)
        for query in status["queries"]:
            lag = sum(source["lag"] or 0 for source in query["sources"])
            cells = (query["batch"], query.get("total_rows", 0), query["rows_per_second"], lag)
            queries.add_row(query["name"], *["-" if cell is None else f"{cell:,}" for cell in cells])
        parts.append(queries)
    return Group(*parts)


def read_all(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """Every committed record of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    partitions = sorted(consumer.list_topics(topic, 30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    result, ended = [], 0
    while ended < len(partitions):
        for message in consumer.consume(5000, 1.0):
            if message.error() is not None:
                ended += 1
            else:
                result.append(json.loads(message.value()))
    consumer.close()
    return result


def prove(shop: Shop, pipeline: Pipeline, bootstrap: str) -> bool:
    console.rule("[bold]3. The proof")
    if problem := pipeline.problem():
        console.print(f"the pipeline failed: {problem}", markup=False, style="red")
        return False
    sessions = read_all(bootstrap, "sessions")
    files = streamed_rows(pipeline.output / "sessions")
    ledger = shop.ledger
    by_user: Counter[str] = Counter()
    for row in sessions:
        by_user[row["user"]] += row["orders"]
    table = Table("", "the shop's ledger", "sessions in the topic", "sessions in Parquet")
    agree = True
    for name, expected in (("clicks", ledger.clicks), ("orders", ledger.orders), ("spent", ledger.spent)):
        totals = [sum(row[name] for row in rows) for rows in (sessions, files)]
        agree = agree and totals == [expected, expected]
        table.add_row(name, f"{expected:,}", *[f"{total:,}" for total in totals])
    table.add_row("sessions", "", f"{len(sessions):,}", f"{len(files):,}")
    console.print(table)
    top = Table("user", "orders in sessions", "orders in the ledger", box=None)
    for user, count in ledger.by_user.most_common(5):
        top.add_row(user, str(by_user[user]), str(count))
    console.print(top)
    agree = (
        agree
        and +by_user == +ledger.by_user
        and len(sessions) == len({(row["user"], row["start"]) for row in sessions})
    )
    console.print(
        f"[green]every one of {ledger.orders:,} orders was counted exactly once[/]: the driver was killed in between, "
        f"and none of the {ledger.aborted_orders:,} orders of aborted transactions is among them"
        if agree
        else "[red]the numbers do not agree"
    )
    return agree


def prove_by_consumer(shop: Shop, bootstrap: str) -> bool:
    console.rule("[bold]3. The proof")
    orders = Counter(row["order"] for row in read_all(bootstrap, "clicks") if "order" in row)
    agree = len(orders) == shop.ledger.orders and set(orders.values()) == {1}
    console.print(
        f"[green]a read_committed consumer sees each of {len(orders):,} committed orders once, and none of the "
        f"{shop.ledger.aborted_orders:,} aborted ones"
        if agree
        else f"[red]{shop.ledger.orders:,} orders were committed, {sum(orders.values()):,} were read"
    )
    return agree


def look_inside(folder: Path) -> None:
    console.rule("[bold]4. Apache Kafka's own files")
    table = Table("folder", "files", "bytes")
    sizes: dict[str, tuple[set[str], int]] = {}
    for folder_path in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = sorted(folder_path.iterdir())
        name = (
            folder_path.name.rpartition("-")[0] + "-*"
            if folder_path.name.startswith(("__consumer", "__transaction"))
            else folder_path.name
        )
        kinds, size = sizes.get(name, (set(), 0))
        kinds |= {file.suffix or file.name for file in files}
        sizes[name] = kinds, size + sum(file.stat().st_size for file in files)
    for name, (kinds, size) in sizes.items():
        table.add_row(name, ", ".join(sorted(kinds)), f"{size:,}")
    console.print(table)


def decode() -> None:
    console.rule("[bold]5. A frame, byte by byte")
    console.print(f"$ echo '{REQUEST[:35]}...' | ottla decode")
    subprocess.run([sys.executable, "-m", "ottla", "decode"], input=REQUEST, text=True, check=True)


if __name__ == "__main__":
    sys.exit(main())
