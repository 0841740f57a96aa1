"""Mutate valid batches and check that both kernels give equal results and never crash.

    python -m tests.records.fuzz [--cases N] [--seed S]

Raises at the first case whose results differ or that raises anything but `InvalidRecords`.
"""

from __future__ import annotations

import argparse
import random
import struct
import time
from array import array
from typing import TYPE_CHECKING

from ottla.records import builder, columnar, iterate, kernel, validate
from ottla.records.batch import HEADER_SIZE, TimestampType, compute_crc, read_header
from ottla.records.compression import compress
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import Record
from ottla.records.uncompiled import load_uncompiled_kernel
from ottla.records.validate import LogRules

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

NOW = 1_700_000_000_000
LIMIT = 1 << 20
USERS = (builder, columnar, iterate, validate)
INTERESTING = (0, 1, 2, 0x3F, 0x40, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
WIDE = (0, 1, -1, 2, 48, 49, 50, 127, 128, 2**15, 2**31 - 1, -(2**31), 2**31 - 12)
RULES = (
    LogRules(max_decompressed=LIMIT),
    LogRules(compacted=True, timestamp_before_max_ms=1000, timestamp_after_max_ms=10, max_decompressed=LIMIT),
    LogRules(timestamp_type=TimestampType.LOG_APPEND_TIME, from_client=False, max_decompressed=LIMIT),
)
GOOD = bytes(builder.build_batch([Record(0, NOW, b"key", b"value" * 20)] * 3))


def random_batch(chance: random.Random) -> bytearray:
    def blob() -> bytes | None:
        return None if chance.random() < 0.2 else chance.randbytes(chance.choice((0, 1, 5, 70, 130)))

    records = [
        Record(
            0,
            NOW + chance.randrange(-2000, 100),
            blob(),
            blob(),
            tuple((chance.choice(("", "h", "name")), blob()) for _ in range(chance.choice((0, 0, 0, 1, 3)))),
        )
        for _ in range(chance.choice((1, 1, 2, 5, 70)))
    ]
    return builder.build_batch(records)


def broken(data: bytearray, chance: random.Random) -> bytearray:
    data = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
        if not data:
            break
        at = chance.randrange(len(data))
        match chance.randrange(7):
            case 0:
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                data[at] = chance.choice(INTERESTING)
            case 2:
                del data[at : at + chance.choice((1, 2, 9))]
            case 3:
                data[at:at] = chance.randbytes(chance.choice((1, 2, 9)))
            case 4:
                data[at : at + 5] = b"\xff" * chance.randrange(6) + bytes([chance.choice(INTERESTING)])
            case 5:
                del data[at:]
            case 6:
                data[at:] = chance.randbytes(len(data) - at)
    return data


def random_case(chance: random.Random) -> bytes:
    """Return a batch with a broken header, records or compressed frame, usually with a matching CRC."""
    data = random_batch(chance)
    where = chance.randrange(4)
    if where == 0:
        return bytes(broken(data, chance))
    body = broken(data[HEADER_SIZE:], chance)
    codec = chance.choice((0, 0, 1, 2, 3, 4))
    if codec:
        body = bytearray(compress(codec, body))
        if where == 1:
            body = broken(body, chance)
        struct.pack_into(">h", data, 21, codec)
    data[HEADER_SIZE:] = body
    struct.pack_into(">i", data, 8, len(data) - 12)
    if where == 2:
        field = chance.choice((">h21", ">i23", ">q27", ">q35", ">q43", ">h51", ">i53", ">i57", ">i57"))
        value = chance.choice(WIDE)
        if field[1] == "h":
            value = (value + 2**15) % 2**16 - 2**15
        struct.pack_into(field[:2], data, int(field[2:]), value)
    struct.pack_into(">I", data, 17, compute_crc(data, 0, len(data)))
    return bytes(data)


def answers(form: ModuleType, data: bytes) -> list[object]:
    """Apply every reader of untrusted bytes; return the results."""
    for user in USERS:
        user.kernel = form  # type: ignore[attr-defined]
    results: list[object] = []

    def note(work: Callable[[], object]) -> None:
        try:
            results.append(work())
        except InvalidRecords as error:
            results.append((error.code, error.message, error.record_errors))

    for rules in RULES:
        note(lambda rules=rules: tuple(validate.validate(data, rules, NOW))[3:])  # type: ignore[misc]
        note(lambda rules=rules: bytes(validate.validate(data, rules, NOW).stamp(5, 1)))  # type: ignore[misc]
    note(lambda: [record for _, record in iterate.iter_all_records(data, include_control=True)])
    note(lambda: columnar.to_arrow(data, batch_columns=True, limit=LIMIT).to_pydict())
    note(lambda: columnar.to_arrow(data, first_offset=1, last_offset=3, verify_crc=False, limit=LIMIT).num_rows)
    log = GOOD + data + GOOD
    note(lambda: list(columnar.iter_arrow(log, headers=False, limit=LIMIT)))
    note(lambda: columnar.to_arrow(log, headers=False, first_offset=1, verify_crc=False, limit=LIMIT))
    note(lambda: walks(form, data))
    return results


def walks(form: ModuleType, data: bytes) -> list[object]:
    header = read_header(data)
    records = bytes(iterate.record_bytes(data, header, LIMIT))
    count = min(max(0, header.record_count), len(records))

    def walk() -> kernel.RecordWalk:
        made: kernel.RecordWalk = form.RecordWalk(records, 0, len(records), count)
        return made

    table = array("q", bytes(64 * count))
    marks, slots = bytearray(count), array("Q", bytes(24 * 7))
    hasher = form.KeyHash(bytes(16))
    out = bytearray(len(records) + 16 * count)
    return [
        form.index_records(walk(), table),
        table,
        hasher.put_keys(walk(), header.base_offset, 0, slots, 6),
        hasher.mark_latest(walk(), header.base_offset, slots, marks),
        bytes(marks),
        form.copy_records(walk(), marks, 0, out),
        bytes(out),
        form.copy_records(walk(), marks, -(2**62), out),
        bytes(out),
        [walk().is_later(header.base_timestamp, latest) for latest in (NOW, NOW - 1, NOW - 1000, -(2**62))],
        [form.BatchScan(GOOD + data + GOOD).next_in_time(0, 0, NOW - ago) for ago in (0, 1, 1000)],
    ]


def run(cases: int, seed: int) -> int:
    """Run so many cases; return how many the first rules refused."""
    chance = random.Random(seed)
    forms = [load_uncompiled_kernel()]
    if kernel.COMPILED:
        forms.append(kernel)
    refused = 0
    try:
        for _ in range(cases):
            data = random_case(chance)
            first, *others = (answers(form, data) for form in forms)
            refused += isinstance(first[1], tuple)
            for other in others:
                assert other == first, f"the forms differ on {data.hex()}"
    finally:
        for user in USERS:
            user.kernel = kernel  # type: ignore[attr-defined]
    return refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    options = parser.parse_args()
    start = time.monotonic()
    refused = run(options.cases, options.seed)
    print(f"{options.cases} cases with seed {options.seed}: {refused} refused, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
