"""Send dead letters back to the topics they came from, each once: sent records and progress are one transaction.

Reads letters of `Expectations` and of Kafka Connect, whose error headers have the same names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from ottla.client.groups import committed
from ottla.client.producer import Producer
from ottla.client.reading import RecordReader, bounds
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.spark.expectations import HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ottla.client.client import Client
    from ottla.client.reading import Read

REDRIVES: Final = "ottla.redrives"
"""Header of a redriven record: how often it was sent back."""
LETTERS_PER_TRANSACTION: Final = 1000
_TEXT_LIMIT: Final = 200


class RedriveError(RuntimeError):
    """A letter cannot be sent back; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter: where it is, where it came from, and why it is dead. Empty: the header is missing."""

    partition: int
    offset: int
    topic: str
    original_partition: str
    original_offset: str
    reason: str
    redrives: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @classmethod
    def parse(cls, read: Read) -> Letter:
        """Split a record's headers into those of the error and those of the original record."""
        texts: dict[str, str] = {}
        kept: list[tuple[str, bytes | None]] = []
        redrives = 0
        for name, value in read.record.headers:
            text = name.decode(errors="replace") if isinstance(name, bytes) else name
            if text.startswith(HEADER):
                texts[text.removeprefix(HEADER)] = (value or b"").decode(errors="replace")
            elif text == REDRIVES:
                redrives = int(value) if value and value.isdigit() else 0
            else:
                kept.append((text, value))
        return cls(
            read.partition,
            read.record.offset,
            texts.get("topic", ""),
            texts.get("partition", ""),
            texts.get("offset", ""),
            texts.get("exception.message", "")[:_TEXT_LIMIT],
            redrives,
            read.record.key,
            read.record.value,
            tuple(kept),
        )


@dataclass(slots=True)
class Redriven:
    """What a run sent: letters by target topic, and how many letters remain."""

    sent: dict[str, int] = field(default_factory=dict)
    remaining: int = 0


def default_group(topic: str) -> str:
    """Return the consumer group that holds the progress of a dead-letter topic."""
    return f"ottla-redrive-{topic}"


def letters(client: Client, topic: str, group: str) -> tuple[Iterator[Letter], dict[int, int]]:
    """Return the letters that were not sent back yet, and the end offset of each partition."""
    ends = bounds(client, topic, client.topics([topic])[0].partitions, read_committed=True)
    done = _committed(client, group)
    starts = {partition: max(bound.start, done.get((topic, partition), 0)) for partition, bound in ends.items()}
    until = {partition: bound.end for partition, bound in ends.items()}
    reader = RecordReader(client, topic, starts, until=until)
    return (Letter.parse(read) for read in reader), until


def redrive(
    client: Client,
    topic: str,
    *,
    group: str,
    to: str | None = None,
    limit: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Redriven:
    """Send letters back to the topics in their headers, or to `to`; a second run continues after them.

    A killed run sends none twice to readers of committed records. Raises `RedriveError` for a letter without a topic
    and for a topic that does not exist; letters before it are sent.
    """
    waiting, ends = letters(client, topic, group)
    result = Redriven()
    producer = Producer(client, transactional_id=group)
    producer.initialize()
    known: set[str] = set()
    total = 0
    while chunk := list(islice(waiting, min(LETTERS_PER_TRANSACTION, (limit or 1 << 62) - total))):
        problem = None
        sent: dict[str, int] = {}
        done: dict[tuple[str, int], tuple[int, str]] = {}
        for letter in chunk:
            target = to or letter.topic
            problem = _problem(client, topic, letter, target, known)
            if problem is not None:
                break
            headers = (*letter.headers, (REDRIVES, b"%d" % (letter.redrives + 1)))
            producer.send(target, letter.key, letter.value, headers)
            sent[target] = sent.get(target, 0) + 1
            done[topic, letter.partition] = (letter.offset + 1, "")
        if done:
            producer.flush()
            producer.add_offsets(group, done)
            producer.commit()
        for target, count in sent.items():
            result.sent[target] = result.sent.get(target, 0) + count
        total += len(chunk)
        progress(total)
        if problem is not None:
            raise RedriveError(f"{problem}; {sum(result.sent.values())} letters before it were sent")
    result.remaining = _remaining(client, topic, group, ends)
    return result


def _problem(client: Client, topic: str, letter: Letter, target: str, known: set[str]) -> str | None:
    """Return why a letter cannot be sent; None if it can."""
    where = f"{topic}-{letter.partition} offset {letter.offset}"
    if not target:
        return f"{where} has no header {HEADER}topic: give the topic with --to"
    if target == topic:
        return f"{where} came from {topic} itself: give another topic with --to"
    if target not in known:
        try:
            client.topics([target])
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return f"{where} came from {target}, which does not exist: create it, or give another topic with --to"
        known.add(target)
    return None


def _remaining(client: Client, topic: str, group: str, ends: Mapping[int, int]) -> int:
    """Return how many letters up to the ends are not sent back."""
    waiting, _ = letters(client, topic, group)
    return sum(1 for letter in waiting if letter.offset < ends[letter.partition])


def _committed(client: Client, group: str) -> dict[tuple[str, int], int]:
    try:
        return dict(committed(client, group))
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return {}
        raise
