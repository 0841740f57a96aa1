"""The decision about a micro-batch: which transactions hold its rows, and how a consumer group's offset stores that.

The bookkeeping group of a query has the offset N + 1 on partition 0 of every topic of batch N. The metadata of that
offset is the decision, compressed; a large one continues in further groups (`<group>.1`, `<group>.2`, ...).
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.client.client import TopicPartition

PREFIX: Final = "ottla-sink-"
FORMAT: Final = "2"
CHUNK: Final = 3900  # characters; offset.metadata.max.bytes is 4096 by default
_METADATA: Final = re.compile(r"ottla-sink/(\d+) (\d+)/(\d+) (\S*)")


class BookkeepingError(RuntimeError):
    """The bookkeeping of a query cannot be read, or contradicts the batch that runs."""


def group_name(query: str, chunk: int = 0) -> str:
    """Return the bookkeeping group of a query; `chunk` counts the groups of a large decision."""
    return f"{PREFIX}{query}" + (f".{chunk}" if chunk else "")


def driver_id(query: str) -> str:
    """Return the transactional id with which drivers decide."""
    return f"{PREFIX}{query}"


def task_id(query: str, task: int, slot: int = 0, segment: int = 0) -> str:
    """Return the transactional id of a task's attempt.

    `slot`, 0 or 1, tells concurrent attempts apart, and `segment` the transactions of one long attempt.
    """
    suffix = f".{slot}.{segment}" if segment else f".{slot}" if slot else ""
    return f"{PREFIX}{query}-{task}{suffix}"


def other_slot(transactional_id: str) -> str:
    """Return the transactional id of the attempts that may run beside the attempts of this one."""
    name, dot, rest = transactional_id.rpartition("-")[2].partition(".")
    prefix = transactional_id.removesuffix(name + dot + rest)
    slot, _, segment = rest.partition(".")
    if segment:
        return f"{prefix}{name}.{1 - int(slot)}.{segment}"
    return f"{prefix}{name}" if slot else f"{prefix}{name}.1"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """First and last offset of a batch's rows in a partition; rows of others lie between them."""

    first: int
    last: int

    def union(self, other: OffsetRange) -> OffsetRange:
        """Return the range that covers both."""
        return OffsetRange(min(self.first, other.first), max(self.last, other.last))


UNKNOWN_RANGE: Final = OffsetRange(0, 2**63 - 1)
"""The broker acknowledged a retried batch as a duplicate without its offset."""


@dataclass(frozen=True, slots=True)
class SinkTransaction:
    """A transaction with rows of a batch. Producer id and epoch together occur in no other transaction of the id."""

    transactional_id: str
    producer_id: int
    epoch: int
    rows: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Batch `batch` consists of the rows of `transactions`, and of rows that the driver wrote with this decision."""

    batch: int
    run: str = ""
    rows: int = 0
    decided_ms: int = 0
    topics: tuple[str, ...] = ()
    """Where the bookkeeping is stored: every topic of the batch."""
    transactions: tuple[SinkTransaction, ...] = ()
    ranges: dict[TopicPartition, OffsetRange] = field(default_factory=dict)

    def without(self, transactions: Iterable[SinkTransaction]) -> Decision:
        """Return the decision after the rows of these transactions were written by the driver."""
        copied = set(transactions)
        return replace(self, transactions=tuple(entry for entry in self.transactions if entry not in copied))

    def chunks(self, query: str) -> list[str]:
        """Return the metadata for each bookkeeping group, the first one first."""
        packed = base64.b85encode(zlib.compress(json.dumps(self._pack(query), separators=(",", ":")).encode(), 9))
        text = packed.decode()
        parts = [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)]
        return [f"ottla-sink/{FORMAT} {number}/{len(parts)} {part}" for number, part in enumerate(parts, 1)]

    def _pack(self, query: str) -> dict[str, Any]:
        prefix = f"{PREFIX}{query}-"
        ranges: dict[str, list[list[int]]] = {}
        for (topic, partition), offsets in sorted(self.ranges.items()):
            ranges.setdefault(topic, []).append([partition, offsets.first, offsets.last - offsets.first])
        return {
            "run": self.run,
            "rows": self.rows,
            "ms": self.decided_ms,
            "topics": self.topics,
            "transactions": [
                [entry.transactional_id.removeprefix(prefix), entry.producer_id, entry.epoch, entry.rows]
                for entry in self.transactions
            ],
            "ranges": ranges,
        }

    @classmethod
    def parse(cls, query: str, batch: int, chunks: Sequence[str]) -> Decision:
        """Parse the metadata of a query's bookkeeping groups; raise BookkeepingError if it is damaged."""
        prefix = f"{PREFIX}{query}-"
        try:
            text = "".join(_match(chunk)[4] for chunk in chunks)
            packed = json.loads(zlib.decompress(base64.b85decode(text)))
            return cls(
                batch,
                str(packed["run"]),
                int(packed["rows"]),
                int(packed["ms"]),
                tuple(packed["topics"]),
                tuple(
                    SinkTransaction(prefix + suffix, producer_id, epoch, rows)
                    for suffix, producer_id, epoch, rows in packed["transactions"]
                ),
                {
                    (topic, partition): OffsetRange(first, first + span)
                    for topic, entries in packed["ranges"].items()
                    for partition, first, span in entries
                },
            )
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            raise BookkeepingError(
                f"group {group_name(query)} holds a decision about batch {batch} that cannot be read: {error}"
            ) from error


def count_chunks(query: str, metadata: str) -> int:
    """Return how many groups hold a decision, from the metadata of the first one."""
    return int(_match(metadata, query)[3])


def _match(metadata: str, query: str = "") -> re.Match[str]:
    match = _METADATA.fullmatch(metadata)
    if match is None or match[1] != FORMAT:
        raise BookkeepingError(
            f"group {group_name(query)} has offset metadata that this version of ottla did not write: {metadata[:80]!r}"
        )
    return match
