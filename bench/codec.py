"""How fast the codecs are against kio, whose decoder is native: the same messages, in the same run, in turns.

    python bench/codec.py [--rounds N]

Both sides take turns within each round, and it is processor time that counts, so that a busy machine changes little;
each figure is the median of the rounds, and the ratio is the median of the rounds' ratios. Importing `ottla.protocol`
is measured against a bare interpreter.
"""

from __future__ import annotations

import argparse
import datetime
import io
import resource
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from kio.schema.fetch.v16 import request as kio_fetch
from kio.schema.produce.v11 import request as kio_produce
from kio.serial import entity_reader, entity_writer

from ottla.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.schema import Uuid

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = bytes(range(256)) * 4
TOPIC_ID = bytes(range(16))
CALLS = 2000


class Figure(NamedTuple):
    what: str
    ours: float
    kio: float
    ratio: float
    target: float


def kio_bytes(entity: object) -> Callable[[], bytes]:
    write = entity_writer(type(entity))  # type: ignore[type-var]

    def encode() -> bytes:
        buffer = io.BytesIO()
        write(buffer, entity)  # type: ignore[arg-type]
        return buffer.getvalue()

    return encode


def contests() -> list[tuple[str, Callable[[], object], Callable[[], object], float]]:
    """What is measured, ours, kio's, and the ratio that ours may take at most."""
    fetch = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        topics=[
            FetchTopic(
                topic_id=Uuid(TOPIC_ID),
                partitions=[FetchPartition(partition=0, fetch_offset=5, partition_max_bytes=1048576)],
            )
        ],
    )
    their_fetch = kio_fetch.FetchRequest(
        max_wait=datetime.timedelta(milliseconds=500),
        min_bytes=1,
        topics=(
            kio_fetch.FetchTopic(
                topic_id=UUID(bytes=TOPIC_ID),
                partitions=(kio_fetch.FetchPartition(partition=0, fetch_offset=5, partition_max_bytes=1048576),),
            ),
        ),
        forgotten_topics_data=(),
    )
    produce = ProduceRequest(
        acks=-1,
        timeout_ms=30000,
        topic_data=[TopicProduceData(name="topic-name", partition_data=[PartitionProduceData(records=BATCH)])],
    )
    their_produce = kio_produce.ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout=datetime.timedelta(milliseconds=30000),
        topic_data=(
            kio_produce.TopicProduceData(
                name="topic-name", partition_data=(kio_produce.PartitionProduceData(index=0, records=BATCH),)
            ),
        ),
    )
    fetch_bytes, produce_bytes = fetch.encode(16), produce.encode(11)
    write_fetch, write_produce = kio_bytes(their_fetch), kio_bytes(their_produce)
    assert fetch_bytes == write_fetch()
    assert produce_bytes == write_produce()
    read_fetch, read_produce = entity_reader(kio_fetch.FetchRequest), entity_reader(kio_produce.ProduceRequest)
    view = memoryview(produce_bytes)

    def kio_reads_fetch() -> object:
        return read_fetch(fetch_bytes, 0)

    def kio_reads_produce() -> object:
        return read_produce(produce_bytes, 0)

    return [
        ("decode Fetch v16, one partition", lambda: FetchRequest.decode(fetch_bytes, 16), kio_reads_fetch, 3),
        ("decode Produce v11, one batch", lambda: ProduceRequest.decode(produce_bytes, 11), kio_reads_produce, 3),
        ("decode Produce v11 from a memoryview", lambda: ProduceRequest.decode(view, 11), kio_reads_produce, 3),
        ("encode Fetch v16, one partition", lambda: fetch.encode(16), write_fetch, 1),
        ("encode Produce v11, one batch", lambda: produce.encode(11), write_produce, 1),
    ]


def seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    for _ in range(CALLS):
        work()
    return (time.thread_time() - began) / CALLS


def measure(rounds: int) -> list[Figure]:
    figures = []
    for what, ours, kio, target in contests():
        mine, theirs = [], []
        for _ in range(rounds):
            mine.append(seconds(ours))
            theirs.append(seconds(kio))
        ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
        figures.append(Figure(what, statistics.median(mine), statistics.median(theirs), ratio, target))
    return figures


def import_milliseconds(rounds: int) -> float:
    """What importing the package adds to a bare interpreter, median of the rounds."""

    def run(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    run("import ottla.protocol")  # writes the bytecode
    return 1000 * statistics.median(run("import ottla.protocol") - run("pass") for _ in range(rounds))


def table(figures: list[Figure], importing: float) -> str:
    lines = ["| what | ottla | kio | ottla / kio | at most |", "|---|---:|---:|---:|---:|"]
    lines += [
        f"| {figure.what} | {figure.ours * 1e6:.2f} µs | {figure.kio * 1e6:.2f} µs | {figure.ratio:.2f} |"
        f" {figure.target:g} |"
        for figure in figures
    ]
    lines.append(f"| import ottla.protocol, over a bare interpreter | {importing:.0f} ms | | | 60 ms |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    figures = measure(options.rounds)
    importing = import_milliseconds(min(options.rounds, 15))
    print(table(figures, importing))
    missed = [figure.what for figure in figures if figure.ratio > figure.target] + ["import"] * (importing > 60)
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
