"""Transactions: commits per second next to kfake and Apache Kafka, and what old aborted ones cost a reader.

python bench/transactions.py [--seconds N] [--aborted N]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from confluent_kafka import Producer
from tests.conversations.local_talk import LocalTalk

from bench.peers import Peer, available
from ottla.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.records.builder import BatchBuilder
from ottla.records.control import ControlType

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.partition import Partition

RECENT = 1000


def commits(start: Callable[[Path], Peer], seconds: float) -> tuple[str, float, float]:
    """Commits per second of one producer with one record each, and the broker's processor time for one."""
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        peer = start(Path(folder))
        try:
            producer = Producer(
                {"bootstrap.servers": peer.bootstrap, "transactional.id": "bench", "linger.ms": 0, "log_level": 0}
            )
            producer.init_transactions(30)
            run(producer, 0.5)
            cpu = peer.cpu_seconds()
            began = time.perf_counter()
            done = run(producer, seconds)
            rate = done / (time.perf_counter() - began)
            return peer.name, rate, (peer.cpu_seconds() - cpu) * 1000 / done
        finally:
            peer.stop()


def run(producer: Producer, seconds: float) -> int:
    end = time.perf_counter() + seconds
    done = 0
    while time.perf_counter() < end:
        producer.begin_transaction()
        producer.produce("commits", b"x" * 100)
        producer.commit_transaction(30)
        done += 1
    return done


def reading(aborted: int) -> dict[str, float]:
    """Processor time of a read_committed fetch of recent records, in microseconds, behind two pasts of one size."""
    talk = LocalTalk({})
    fetches = {}
    for topic, ended in (("committed", ControlType.COMMIT), ("aborted", ControlType.ABORT)):
        talk.create(topic)
        partition = talk.runtime.nodes[1].leader_partition(topic, 0)
        fill(partition, aborted, ended)
        fetch_partition = FetchPartition(
            partition=0, fetch_offset=partition.log.log_end_offset - RECENT, partition_max_bytes=1 << 20
        )
        fetches[topic] = FetchRequest(
            max_wait_ms=0, isolation_level=1, topics=[FetchTopic(topic=topic, partitions=[fetch_partition])]
        )
    took: dict[str, list[float]] = {name: [] for name in fetches}
    for _ in range(400):  # in turns, because machines are noisy
        for name, request in fetches.items():
            began = time.process_time_ns()
            response = talk.quietly(request, FetchResponse, version=11)
            took[name].append((time.process_time_ns() - began) / 1000)
            partition_data = response.responses[0].partitions[0]
            assert partition_data.records, partition_data
            assert not partition_data.aborted_transactions
    talk.close()
    return {name: statistics.median(values) for name, values in took.items()}


def fill(partition: Partition, transactions: int, ended: ControlType) -> None:
    """A past of transactions that ended one way, and a thousand records that are none of theirs."""
    stamp = 1_700_000_000_000
    for number in range(transactions):
        batch = BatchBuilder(producer_id=number % 50, producer_epoch=0, base_sequence=number // 50, transactional=True)
        batch.append(None, b"never", (), stamp)
        partition.append(batch.build(), acks=-1, verified=True)
        partition.log.append_marker(ended, 0, producer_id=number % 50, producer_epoch=0, coordinator_epoch=0)
    for _ in range(RECENT):
        batch = BatchBuilder()
        batch.append(None, b"x" * 100, (), stamp)
        partition.append(batch.build(), acks=-1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8, help="how long each broker commits (8)")
    parser.add_argument("--aborted", type=int, default=100_000, help="aborted transactions in the past (100000)")
    options = parser.parse_args()
    results = [commits(start, options.seconds) for start in available()]
    first = results[0][1]
    print("One producer, one record of 100 bytes a transaction:\n")
    print("| | commits/s | broker CPU ms a commit | ottla / it |")
    print("|---|---:|---:|---:|")
    for name, rate, cpu in results:
        print(f"| {name} | {rate:.0f} | {cpu:.2f} | {first / rate:.2f} |")
    result = reading(options.aborted)
    print(
        f"\nA read_committed fetch of the last {RECENT} records behind {options.aborted:,} transactions, CPU: "
        f"{result['committed']:.0f} µs if they were committed, {result['aborted']:.0f} µs if they were aborted "
        f"({result['aborted'] / result['committed']:.2f} times)."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
