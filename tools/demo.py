"""`make demo`: a broker comes up on Kafka's own directory format, an ordinary client uses it, and we look inside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

RECORDS = 100_000
PARTITIONS = 3
REQUEST = (
    "00 00 00 23 00 12 00 04 25 ed c0 ae 00 09 6b 61 66 6b 61 2d 63 6c 69 "
    "00 0a 6b 61 66 6b 61 2d 63 6c 69 04 30 2e 31 00"
)
console = Console(highlight=False)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ottla-demo-") as folder:
        started = time.perf_counter()
        broker = subprocess.Popen(
            [sys.executable, "-m", "ottla", "serve", "-d", folder, "-p", "0", "-l", "warn", "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert broker.stdout is not None
            line = broker.stdout.readline()
            if not line:
                console.print("the broker did not start")
                return 1
            bootstrap = json.loads(line)["bootstrap"]
            took = (time.perf_counter() - started) * 1000
            console.rule("[bold]1. A broker")
            console.print(
                f"ottla serves [bold]{bootstrap}[/], up {took:.0f} ms after it was called; its data is in {folder}"
            )
            produce_and_consume(bootstrap)
            broker.send_signal(signal.SIGTERM)
            broker.wait(30)
            look_inside(Path(folder))
        finally:
            if broker.poll() is None:
                broker.kill()
                broker.wait()
    decode()
    return 0


def produce_and_consume(bootstrap: str) -> None:
    console.rule("[bold]2. An ordinary client (librdkafka)")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic("orders", PARTITIONS, 1)]).values():
        future.result(30)
    with progress() as bars:
        sending = bars.add_task("produce", total=RECORDS)
        delivered = 0

        def acknowledged(error: object, _: object) -> None:
            nonlocal delivered
            assert error is None, error
            delivered += 1
            if delivered % 1000 == 0 or delivered == RECORDS:
                bars.update(sending, completed=delivered)

        producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "lz4", "linger.ms": 5}
        )
        for number in range(RECORDS):
            value = json.dumps({"order": number, "amount": number % 97})
            while True:
                try:
                    producer.produce("orders", key=str(number % 1000), value=value, on_delivery=acknowledged)
                    break
                except BufferError:
                    producer.poll(0.05)
            if number % 1000 == 0:
                producer.poll(0)
        producer.flush(60)
        reading = bars.add_task("consume", total=RECORDS)
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "demo", "auto.offset.reset": "earliest", "check.crcs": True}
        )
        consumer.subscribe(["orders"])
        seen: set[int] = set()
        end = time.monotonic() + 60
        while len(seen) < RECORDS and time.monotonic() < end:
            for message in consumer.consume(5000, 1.0):
                assert message.error() is None, message.error()
                seen.add(json.loads(message.value())["order"])
            bars.update(reading, completed=len(seen))
        consumer.close()
    verdict = "every one of them came back" if len(seen) == RECORDS else f"only {len(seen)} came back"
    console.print(f"{delivered} records were acknowledged, {verdict}")


def progress() -> Progress:
    return Progress(
        TextColumn("{task.description:8}"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


def look_inside(folder: Path) -> None:
    console.rule("[bold]3. Apache Kafka's own files")
    table = Table("folder", "files", "bytes")
    for each in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = sorted(each.iterdir())
        names = ", ".join(sorted({file.suffix or file.name for file in files}))
        table.add_row(each.name, names, f"{sum(file.stat().st_size for file in files):,}")
    console.print(table)


def decode() -> None:
    console.rule("[bold]4. A frame, byte by byte")
    console.print(f"$ echo '{REQUEST[:35]}...' | ottla decode")
    subprocess.run([sys.executable, "-m", "ottla", "decode"], input=REQUEST, text=True, check=True)


if __name__ == "__main__":
    sys.exit(main())
