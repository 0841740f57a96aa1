"""Browsing, searching and tailing records of a topic in windows, with progress and cancel; producing one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from ottla.client.filters import expression_filter
from ottla.client.producer import Producer
from ottla.client.reading import RecordReader, bounds, offsets_at
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import check_crc, iter_batches
from ottla.records.compression import CompressionType
from ottla.records.iterate import iter_records

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from ottla.client.client import Client
    from ottla.client.reading import Read
    from ottla.records.batch import BatchHeader
    from ottla.records.iterate import Record

    Filter = Callable[[Read], bool]

FETCH_BYTES: Final = 8 * 1024 * 1024
FILTER_WINDOW: Final = 4000
"""Offsets per partition that a search reads before it reports; it doubles up to 16 times this."""
LONGEST_FILTER: Final = 2000
FILTERS: Final = (
    ("any", "anything contains"),
    ("key", "key contains"),
    ("value", "value contains"),
    ("header", "header contains"),
    ("path", "JSON path"),
    ("expression", "expression"),
)
_PATH: Final = re.compile(
    r"\$?((?:\.?[A-Za-z_][\w-]*|\[\d+\]|\[\"[^\"]+\"\])+)\s*(?:(==|=|!=|<=|>=|<|>|~)\s*(.+))?", re.DOTALL
)
_STEP: Final = re.compile(r"\.?([A-Za-z_][\w-]*)|\[(\d+)\]|\[\"([^\"]+)\"\]")


class CancelledError(Exception):
    """The browser closed the stream."""


@dataclass(slots=True)
class RecordQuery:
    """What to read: partitions, where to begin, how many records, and a filter."""

    topic: str
    partitions: list[int]
    """Empty: all partitions."""
    start: str = "newest"
    """newest, oldest, offset or time."""
    at: int = 0
    """The offset or the time in ms."""
    limit: int = 50
    committed: bool = False
    matches: Filter | None = None


@dataclass(slots=True)
class Scan:
    """The state of a scan, as a page shows it."""

    scanned: int = 0
    total: int = 0
    matched: int = 0
    finished: bool = False
    records: list[Read] = field(default_factory=list)
    """The matches since the last report."""


def scan(client: Client, query: RecordQuery, report: Callable[[Scan], None], cancelled: threading.Event) -> None:
    """Read windows of offsets until enough records match; report each window's matches, in the order of time."""
    info = client.topics([query.topic])[0]
    partitions = query.partitions or list(info.partitions)
    for index in partitions:
        if index not in info.partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{query.topic} has partitions 0 to {len(info.partitions) - 1}, not {index}",
            )
    limits = bounds(client, query.topic, partitions, read_committed=query.committed)
    low = {index: bound.start for index, bound in limits.items()}
    high = {index: bound.end for index, bound in limits.items()}
    if query.start == "offset":
        low = {index: min(max(query.at, low[index]), high[index]) for index in partitions}
    elif query.start == "time":
        offsets = offsets_at(client, query.topic, partitions, query.at)
        low = {index: min(max(offsets[index], low[index]), high[index]) for index in partitions}
    backwards = query.start == "newest"
    state = Scan(total=sum(high[index] - low[index] for index in partitions))
    window = FILTER_WINDOW if query.matches is not None else max(1, ceil(query.limit / max(1, len(partitions))))
    while state.matched < query.limit:
        if backwards:
            begin = {index: max(low[index], high[index] - window) for index in partitions if high[index] > low[index]}
            end = {index: high[index] for index in begin}
        else:
            begin = {index: low[index] for index in partitions if low[index] < high[index]}
            end = {index: min(high[index], low[index] + window) for index in begin}
        if not begin:
            break
        records = _read_window(client, query, begin, end, cancelled)
        records.sort(key=lambda read: (read.record.timestamp, read.partition, read.record.offset), reverse=backwards)
        state.records = records[: query.limit - state.matched]
        state.matched += len(state.records)
        state.scanned += sum(end[index] - begin[index] for index in begin)
        (high if backwards else low).update(begin if backwards else end)
        report(state)
        window = min(window * 2, FILTER_WINDOW * 16)
    state.records = []
    state.finished = True
    report(state)


def _read_window(
    client: Client, query: RecordQuery, begin: dict[int, int], end: dict[int, int], cancelled: threading.Event
) -> list[Read]:
    matching: list[Read] = []

    def check() -> None:
        if cancelled.is_set():
            raise CancelledError
        if len(matching) > 4 * query.limit:  # keep the memory of a window with many large matches small
            matching.sort(key=lambda read: read.record.timestamp, reverse=query.start == "newest")
            del matching[query.limit :]

    reader = RecordReader(
        client,
        query.topic,
        begin,
        until=end,
        read_committed=query.committed,
        check_crcs=False,
        max_bytes=FETCH_BYTES,
        before_fetch=check,
    )
    matches = query.matches
    matching.extend(read for read in reader if matches is None or matches(read))
    return matching


def tail(
    client: Client, query: RecordQuery, report: Callable[[Sequence[Read], int], None], cancelled: threading.Event
) -> None:
    """Follow the end of a topic until cancelled: report a sample of new records, and how many there were."""
    info = client.topics([query.topic])[0]
    partitions = query.partitions or list(info.partitions)
    ends = {index: bound.end for index, bound in bounds(client, query.topic, partitions).items()}
    sample: list[Read] = []
    count = 0

    def before_fetch() -> None:
        nonlocal sample, count
        if cancelled.is_set():
            raise CancelledError
        report(sample, count)
        sample, count = [], 0

    reader = RecordReader(
        client,
        query.topic,
        ends,
        read_committed=query.committed,
        check_crcs=False,
        max_wait_ms=500,
        max_bytes=FETCH_BYTES,
        before_fetch=before_fetch,
    )
    for read in reader:
        if query.matches is None or query.matches(read):
            count += 1
            if len(sample) < query.limit:
                sample.append(read)


@dataclass(slots=True)
class RecordDetails:
    """One record with its batch."""

    partition: int
    record: Record
    batch: BatchHeader
    crc_valid: bool

    @property
    def compression(self) -> str:
        """The codec of the batch."""
        return CompressionType(self.batch.compression).name.lower()


def read_record(client: Client, topic: str, partition: int, offset: int) -> RecordDetails:
    """Return one record with its batch; OFFSET_OUT_OF_RANGE if there is none at the offset."""
    client.topics([topic])
    data = client.fetch(topic, {partition: offset}, max_wait_ms=100, partition_max_bytes=64 * 1024)[partition]
    raw = data.records or b""
    for header in iter_batches(raw):
        if header.last_offset < offset:
            continue
        for record in iter_records(raw, header):
            if record.offset == offset:
                return RecordDetails(partition, record, header, check_crc(raw, header))
        break
    raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{topic}-{partition} has no record at offset {offset}")


def produce_record(
    client: Client,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
    partition: int | None,
    compression: str,
) -> tuple[int, int]:
    """Write one record; return its partition and offset."""
    delivered: list[Any] = []
    client.topics([topic])
    producer = Producer(client, idempotent=False, compression=compression, delivered=delivered.append)
    producer.send(topic, key, value, headers, partition)
    producer.flush()
    return delivered[0].partition, delivered[0].base_offset


def make_filter(kind: str, text: str) -> Filter | None:
    """Return the filter that a user wrote, None without one; ValueError if it cannot be read."""
    if not text.strip():
        return None
    if len(text) > LONGEST_FILTER:
        raise ValueError(f"a filter has at most {LONGEST_FILTER:,} characters")
    if kind == "expression":
        try:
            return expression_filter(text)
        except ValueError as error:
            raise ValueError(str(error).removeprefix(f"--filter {text}: ")) from error
    if kind == "path":
        return _path_filter(text.strip())
    needle = text.encode("utf-8", "surrogateescape")
    lower = needle.lower()

    def contains(data: bytes | None) -> bool:
        return data is not None and lower in data.lower()

    if kind == "key":
        return lambda read: contains(read.record.key)
    if kind == "value":
        return lambda read: contains(read.record.value)

    def in_headers(read: Read) -> bool:
        return any(
            lower in name.encode("utf-8", "replace").lower() or contains(data) for name, data in read.record.headers
        )

    if kind == "header":
        return in_headers
    if kind == "any":
        return lambda read: contains(read.record.key) or contains(read.record.value) or in_headers(read)
    raise ValueError(f"{kind!r} is not a kind of filter")


def _path_filter(text: str) -> Filter:
    """Return a filter for a JSON path of the value that exists, or compares as written: `$.items[0].sku = B-1`."""
    match = _PATH.fullmatch(text)
    if match is None:
        raise ValueError("write a path such as $.items[0].sku, or a comparison such as $.total > 100")
    steps: list[str | int] = [
        int(index) if index else name or quoted for name, index, quoted in _STEP.findall(match[1])
    ]
    operator, operand = match[2], (match[3] or "").strip()
    try:
        literal = json.loads(operand) if operand else None
    except ValueError:
        literal = operand.strip("'")

    def matches(read: Read) -> bool:
        try:
            node = json.loads(read.record.value or b"")
            for step in steps:
                node = node[step]
        except (ValueError, KeyError, IndexError, TypeError):
            return False
        if operator is None:
            return True
        try:
            return bool(_COMPARE[operator](node, literal))
        except TypeError:
            return False

    return matches


_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": lambda left, right: left == right,
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "~": lambda left, right: str(right).lower() in str(left).lower(),
}
