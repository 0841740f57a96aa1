"""How fast the kernel is: validating and stamping 16 KiB batches with all rules on, and decoding logs to Arrow.

    python bench/kernel.py [--seconds S] [--repeats N]

Each figure is the median of N runs on one core, the best run beside it; both forms of the kernel are measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

from ottla.records import builder, columnar, iterate, kernel, validate
from ottla.records.batch import HEADER_SIZE, stamp_offset
from ottla.records.compression import CompressionType
from ottla.records.uncompiled import load_uncompiled_kernel

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

NOW = 1_700_000_000_000
BATCH_BYTES = 16 * 1024
LOG_BYTES = 64 * 1024 * 1024
USERS = (builder, columnar, iterate, validate)
# Compacted, so that keys are looked at; timestamps are checked in both directions.
RULES = validate.LogRules(compacted=True, timestamp_before_max_ms=7 * 24 * 3_600_000)


class Figure(NamedTuple):
    what: str
    form: str
    median: float
    best: float
    unit: str
    target: float | None


def a_batch(record_bytes: int, codec: int = CompressionType.NONE) -> tuple[bytearray, int]:
    """About 16 KiB of records of that size (key included), before compression."""
    key = b"key-%08d" % 7
    records = [iterate.Record(0, NOW + i, key, os.urandom(record_bytes - len(key))) for i in range(BATCH_BYTES)]
    count = (BATCH_BYTES - HEADER_SIZE) // (len(builder.build_batch(records[:1])) - HEADER_SIZE + 2)
    return builder.build_batch(records[:count], compression=codec), count


def a_log(record_bytes: int, codec: int, size: int) -> tuple[bytes, int]:
    batch, count = a_batch(record_bytes, codec)
    copies = max(1, size // len(batch))
    log = bytearray()
    for i in range(copies):
        stamp_offset(batch, 0, i * count, 0)
        log += batch
    return bytes(log), copies * count


def rate(work: Callable[[], float], seconds: float, repeats: int) -> tuple[float, float]:
    """Median and best of the work's amount per second."""
    work()
    rates = []
    for _ in range(repeats):
        done = 0.0
        start = time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            done += work()
        rates.append(done / spent)
    return statistics.median(rates), max(rates)


def validating(record_bytes: int, codec: int, rounds: int, *, log_append_time: bool = False) -> Callable[[], float]:
    batch, _ = a_batch(record_bytes, codec)
    rules = RULES
    if log_append_time:
        rules = validate.LogRules(compacted=True, timestamp_type=validate.TimestampType.LOG_APPEND_TIME)
    fresh = bytes(batch[:HEADER_SIZE])

    def work() -> float:
        for _ in range(rounds):
            batch[:HEADER_SIZE] = fresh  # as it came from the producer: the last round left its stamp there
            validate.validate(batch, rules, NOW + 500).stamp(123_456, 3)
        return len(batch) * rounds / 1e6

    return work


def decoding(record_bytes: int, codec: int, size: int) -> Callable[[], float]:
    """Into the columns that a table of a topic has unless headers are asked for."""
    log, count = a_log(record_bytes, codec, size)

    def work() -> float:
        rows = sum(batch.num_rows for batch in columnar.iter_arrow(log, headers=False))
        assert rows == count
        return rows / 1e6

    return work


def measure(form: ModuleType, seconds: float, repeats: int) -> list[Figure]:
    for user in USERS:
        user.kernel = form  # type: ignore[attr-defined]
    name = "compiled" if form.COMPILED else "uncompiled"
    rounds, size = (200, LOG_BYTES) if form.COMPILED else (2, 1 << 20)
    none, lz4, zstd = CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD
    cases: list[tuple[str, Callable[[], float], str, float | None]] = [
        ("validate and stamp, 100 B", validating(100, none, rounds), "MB/s", 700),
        ("validate and stamp, 1 KiB", validating(1024, none, rounds), "MB/s", 1500),
        ("the same with LogAppendTime, 100 B", validating(100, none, rounds, log_append_time=True), "MB/s", None),
        ("validate and stamp, 100 B, lz4", validating(100, lz4, rounds), "MB/s", None),
        ("decode to Arrow with CRC, 100 B", decoding(100, none, size), "M records/s", 10),
        ("decode to Arrow with CRC, 1 KiB", decoding(1024, none, size), "M records/s", None),
        ("decode to Arrow with CRC, 100 B, zstd", decoding(100, zstd, size), "M records/s", None),
    ]
    figures = []
    for what, work, unit, target in cases:
        median, best = rate(work, seconds, repeats)
        figures.append(Figure(what, name, median, best, unit, target if form.COMPILED else None))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5, help="how long one run lasts")
    parser.add_argument("--repeats", type=int, default=9, help="how many runs the median is taken of")
    options = parser.parse_args()
    forms = [load_uncompiled_kernel()]
    if kernel.COMPILED:
        forms.insert(0, kernel)
    print("| what | form | median | best | target |")
    print("|---|---|---|---|---|")
    for form in forms:
        for figure in measure(form, options.seconds, options.repeats):
            target = "" if figure.target is None else f"{figure.target:g}"
            print(
                f"| {figure.what} | {figure.form} | {figure.median:.4g} {figure.unit} | {figure.best:.4g} | {target} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
