"""Recognise the format of each input and read it as events: files line by line, log directories folder by folder.

A piece is what one task reads. Each piece ends with a `summary` event (lines, unparsed lines, times, clock jumps), so
that one pass over the input is enough.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from ottla.analysis.event import CLIENT, Event, fits
from ottla.analysis.parse import history as parse_history
from ottla.analysis.parse import java as parse_java
from ottla.analysis.parse import kgo as parse_kgo
from ottla.analysis.parse import librdkafka as parse_librdkafka
from ottla.analysis.parse import ottla as parse_ottla
from ottla.analysis.parse import tap as parse_tap
from ottla.analysis.parse.log_directory import folder_events, is_log_directory, partition_folders, topic_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

PIECE: Final = 32 << 20
LINE_LIMIT: Final = 1 << 20
JUMP_MS: Final = 1_000
SUMMARY: Final = "summary"
SAMPLES: Final = 5
MOST_REQUESTS: Final = 10_000

Parser = Callable[[str, Event], "list[Event] | None"]

PARSERS: Final[dict[str, Parser]] = {
    parse_ottla.FORMAT: parse_ottla.parse,
    parse_tap.FORMAT: parse_tap.parse,
    parse_history.FORMAT: parse_history.parse,
    parse_kgo.FORMAT: parse_kgo.parse,
    parse_librdkafka.FORMAT: parse_librdkafka.parse,
    parse_java.FORMAT: parse_java.parse,
}
CLIENT_LOGS: Final = frozenset({parse_kgo.FORMAT, parse_librdkafka.FORMAT, parse_java.FORMAT})
_RECOGNISE: Final = {
    parse_ottla.FORMAT: parse_ottla.looks_like,
    parse_tap.FORMAT: parse_tap.looks_like,
    parse_history.FORMAT: parse_history.looks_like,
    parse_librdkafka.FORMAT: parse_librdkafka.looks_like,
    parse_java.FORMAT: parse_java.looks_like,
    parse_kgo.FORMAT: parse_kgo.looks_like,
}


class InputError(ValueError):
    """An input cannot be read; the message names it and the reason."""


class Piece(NamedTuple):
    """The input of one task: a byte range of a file, or a partition folder of a log directory (`end` is -1)."""

    path: str
    start: int
    end: int
    format: str = ""
    directory: str = ""


@dataclass(slots=True)
class Summary:
    """Counts and times of what was read from one file or folder."""

    path: str = ""
    lines: int = 0
    events: int = 0
    unparsed: int = 0
    formats: dict[str, int] = field(default_factory=dict)
    first_ms: int | None = None
    last_ms: int | None = None
    jumps: int = 0
    worst_jump_ms: int = 0
    samples: list[str] = field(default_factory=list)
    skews: int = 0
    worst_skew_ms: int = 0

    def count_jump(self, by_ms: int) -> None:
        """Count a clock that went back by so much between two lines of one host."""
        if by_ms > JUMP_MS:
            self.jumps += 1
            self.worst_jump_ms = max(self.worst_jump_ms, by_ms)

    def count_skew(self, by_ms: int) -> None:
        """Count a line that is older by so much than the line of another host before it."""
        if by_ms > JUMP_MS:
            self.skews += 1
            self.worst_skew_ms = max(self.worst_skew_ms, by_ms)

    def include(self, time_ms: int) -> None:
        """Extend the range of times by one."""
        if self.first_ms is None or time_ms < self.first_ms:
            self.first_ms = time_ms
        if self.last_ms is None or time_ms > self.last_ms:
            self.last_ms = time_ms

    def count(self, name: str, lines: int = 1) -> None:
        """Count lines of a format."""
        self.formats[name] = self.formats.get(name, 0) + lines

    def add(self, other: Summary) -> None:
        """Add the counts of another piece of the same input."""
        self.lines += other.lines
        self.events += other.events
        self.unparsed += other.unparsed
        for name, count in other.formats.items():
            self.count(name, count)
        for time_ms in (other.first_ms, other.last_ms):
            if time_ms is not None:
                self.include(time_ms)
        self.jumps += other.jumps
        self.worst_jump_ms = max(self.worst_jump_ms, other.worst_jump_ms)
        self.skews += other.skews
        self.worst_skew_ms = max(self.worst_skew_ms, other.worst_skew_ms)
        self.samples = (self.samples + other.samples)[:SAMPLES]

    def to_text(self) -> str:
        """Encode as the text of a `summary` event."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_text(cls, text: str) -> Summary:
        """Decode the text of a `summary` event."""
        return cls(**json.loads(text))


def find_pieces(paths: Iterable[str], size: int = PIECE, topics: Collection[str] | None = None) -> list[Piece]:
    """Return the pieces of all inputs (of log directories only these topics); raise `InputError` if one is unusable."""
    pieces: list[Piece] = []
    for path in paths:
        if not os.path.exists(path):
            raise InputError(f"{path} does not exist")
        if not (os.path.isdir(path) or os.path.isfile(path)):
            raise InputError(f"{path} is neither a file nor a folder: save what comes through a pipe to a file first")
        if os.path.isdir(path):
            if is_log_directory(path):
                pieces += [Piece(folder, 0, -1, directory=path) for folder in partition_folders(path, topics)]
                continue
            files = sorted(
                os.path.join(folder, name)
                for folder, _, names in os.walk(path)
                for name in names
                if not name.startswith(".") and os.path.isfile(os.path.join(folder, name))
            )
            if not files:
                raise InputError(f"{path} is an empty folder: give log files, or a Kafka log directory")
        else:
            files = [path]
        for file in files:
            pieces += _file_pieces(file, size)
    return pieces


def _file_pieces(path: str, size: int) -> list[Piece]:
    length = os.path.getsize(path)
    try:
        kind = detect(path)
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and error.strerror:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
        kind = ""  # a damaged compressed file: it is read up to the damage
    if path.endswith(".gz"):
        return [Piece(path, 0, length, kind)]
    return [Piece(path, start, min(start + size, length), kind) for start in range(0, length, size)]


def detect(path: str) -> str:
    """Return the format of most lines at the start of a file, or an empty string if none is known."""
    counts: Counter[str] = Counter()
    with _open(path) as file:
        for line in file.read(1 << 16).decode("utf-8", "replace").splitlines()[:200]:
            for name, looks_like in _RECOGNISE.items():
                if looks_like(line):
                    counts[name] += 1
                    break
    return counts.most_common(1)[0][0] if counts else ""


def _open(path: str) -> IO[bytes]:
    if path.endswith(".gz"):
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return open(path, "rb")


def read_piece(
    piece: Piece, event_names: Collection[str] | None = None, evidence: Collection[str] = ()
) -> Iterator[Event]:
    """Yield the events of a piece that an analysis wants (all, if `event_names` is None), then the summary.

    Events that are only `evidence` are skipped where nothing else happens to their group (event logs only).
    """
    summary = Summary(piece.path)
    if piece.end < 0:
        source = _folder(piece, summary, appends=event_names is not None and "append" in event_names)
    else:
        source = _lines(piece, summary, event_names, evidence)
    for event in source:
        summary.events += 1
        if event.time_ms is not None:
            summary.include(event.time_ms)
        if event_names is None or event.event in event_names:
            yield event
    yield Event(None, SUMMARY, file=piece.path, position=piece.start, text=summary.to_text())


def _folder(piece: Piece, summary: Summary, *, appends: bool) -> Iterator[Event]:
    names = topic_names(piece.directory) if "__consumer_offsets" in piece.path else {}
    for event in folder_events(piece.path, names, appends=appends):
        summary.lines += 1
        summary.count(event.format)
        if event.event == "unparsed":
            _count_unparsed(summary, event.text or "")
        yield event


def _count_unparsed(summary: Summary, text: str) -> None:
    summary.unparsed += 1
    if len(summary.samples) < SAMPLES:
        summary.samples.append(text[:200])


def _lines(
    piece: Piece, summary: Summary, event_names: Collection[str] | None, evidence: Collection[str]
) -> Iterator[Event]:
    """Yield the events of the lines that begin within the piece; the last one is read to its end."""
    written_ms = int(os.path.getmtime(piece.path) * 1000)
    order = [piece.format] if piece.format else []
    order += [name for name in PARSERS if name not in order]
    parsers = [(name, PARSERS[name]) for name in order]
    clocks = _Clocks(summary)
    context = _Context()
    quick = piece.format == parse_ottla.FORMAT and event_names is not None and not piece.path.endswith(".gz")
    carried: int | None = None
    lines = _filtered_lines(piece, summary, event_names or (), evidence) if quick else _all_lines(piece, summary)
    for position, data, before in lines:
        line = data.decode("utf-8", "replace").rstrip("\r\n")
        if not line.strip():
            continue
        carried = carried if before is None else before
        summary.lines += 1
        base = Event(written_ms, "log", file=piece.path, position=position, text=line)
        for name, parse in parsers:
            events = _parse_safely(parse, line, base)
            if events is not None:
                summary.count(name)
                for event in events:
                    event = context.complete(event)
                    if event.time_ms is None:
                        yield event._replace(time_ms=carried)  # a line without a time gets the time of the line before
                        continue
                    carried = event.time_ms
                    if not quick:
                        clocks.compare(event.host, event.time_ms)
                    yield event
                break
        else:
            _count_unparsed(summary, line)
            yield base._replace(time_ms=carried, event="unparsed")


def _parse_safely(parse: Parser, line: str, base: Event) -> list[Event] | None:
    """Return the events of a line, or None if the parser fails on it or a value does not fit its column."""
    try:
        events = parse(line, base)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return None
    return events if events is None or all(map(fits, events)) else None


def _seek_first_line(file: IO[bytes], piece: Piece) -> int:
    """Seek to the first line that begins within the piece and return its position."""
    if not piece.start:
        return 0
    file.seek(piece.start - 1)
    return piece.start + len(file.readline()) - 1


def _all_lines(piece: Piece, summary: Summary) -> Iterator[tuple[int, bytes, int | None]]:
    """Yield every line of a piece with its position."""
    with _open(piece.path) as file:
        position = _seek_first_line(file, piece)
        whole = piece.path.endswith(".gz")
        while whole or position < piece.end:
            try:
                data = file.readline(LINE_LIMIT)
            except (EOFError, OSError, zlib.error) as error:
                _count_unparsed(summary, f"cannot be read to its end ({error}): {piece.path}")
                return
            if not data:
                return
            yield position, data, None
            position += len(data)


def _filtered_lines(
    piece: Piece, summary: Summary, event_names: Collection[str], evidence: Collection[str]
) -> Iterator[tuple[int, bytes, int | None]]:
    """Yield the lines of an event log that an analysis wants, and count the others in the summary."""
    try:
        from ottla.analysis.event_log_filter import EventLogFilter, blocks
    except ImportError:  # without Arrow every line is parsed
        yield from _all_lines(piece, summary)
        return

    lines = EventLogFilter(event_names, evidence, summary.count_jump, summary.count_skew)
    with _open(piece.path) as file:
        for position, data in blocks(file, _seek_first_line(file, piece), piece.end, LINE_LIMIT):
            yield from lines.select(data, position)
    yield from lines.rest()
    summary.lines += lines.lines
    summary.events += lines.events
    summary.count(parse_ottla.FORMAT, lines.lines)
    for time_ms in (lines.first_ms, lines.last_ms):
        if time_ms is not None:
            summary.include(time_ms)


class _Clocks:
    """Compare the times of consecutive lines to find clocks that jump or differ."""

    def __init__(self, summary: Summary) -> None:
        self._summary = summary
        self._last: dict[str | None, int] = {}
        self._before: tuple[str | None, int] = (None, -1)

    def compare(self, host: str | None, time_ms: int) -> None:
        """Compare the time of the next line with the last one of its host and with the line before."""
        self._summary.count_jump(self._last.get(host, time_ms) - time_ms)
        self._last[host] = time_ms
        if self._before[0] != host:
            self._summary.count_skew(self._before[1] - time_ms)
        self._before = (host, time_ms)


class _Context:
    """Complete events with facts from earlier lines of the file.

    A client names its group and its producer id only now and then, a response does not repeat its request, an
    InitProducerId request does not hold the producer id that its transactional id already has, a member's assignment
    does not name its client, and newer requests name topics by id.
    """

    def __init__(self) -> None:
        self._clients: dict[str | None, Event] = {}
        self._timeouts: dict[str | None, int] = {}
        self._requests: dict[str, Event] = {}
        self._producers: dict[str, int] = {}
        self._members: dict[str, str] = {}
        self._topics: dict[str, str] = {}
        self._last: Event | None = None

    def complete(self, event: Event) -> Event:
        """Return the event with the columns that earlier lines fill."""
        event = self._name_topics(event)
        if event.side == CLIENT and event.format in CLIENT_LOGS:
            return self._complete_client_line(event)
        if event.transactional_id is not None:
            if event.producer_id is not None and event.producer_id >= 0:
                self._producers[event.transactional_id] = event.producer_id
            elif event.transactional_id in self._producers:
                event = event._replace(producer_id=self._producers[event.transactional_id])
        if event.member:
            if event.client:
                self._members[event.member] = event.client
            elif event.member in self._members:
                event = event._replace(client=self._members[event.member])
        request_id = event.request
        if request_id is None:
            return event
        request = self._requests.pop(request_id, None)
        if request is not None:
            event = _fill(event, request)
            if event.event == "response" and event.partitions is None:
                event = event._replace(
                    partitions=request.partitions, duration_ms=event.duration_ms or request.duration_ms
                )
        elif event.event != "response" and len(self._requests) < MOST_REQUESTS:
            self._requests[request_id] = event
        return event

    def _complete_client_line(self, event: Event) -> Event:
        if event.host is None and event.format == parse_java.FORMAT and self._last is not None:
            event = event._replace(host=self._last.host, client=self._last.client)  # it continues the line before
        self._last = event
        if event.event == "txn.init":
            if event.duration_ms is not None:
                self._timeouts[event.host] = event.duration_ms
            else:
                event = event._replace(duration_ms=self._timeouts.get(event.host))
        before = self._clients.get(event.host)
        if before is not None:
            event = _fill(event, before)
        self._clients[event.host] = event
        return event

    def _name_topics(self, event: Event) -> Event:
        """Replace topic ids by names, as far as Metadata responses in the capture name them."""
        if event.format != parse_tap.FORMAT:
            return event
        if event.event == "topic" and event.topic is not None and event.text is not None:
            self._topics[event.text] = event.topic
            return event
        if not self._topics:
            return event
        if event.topic in self._topics:
            event = event._replace(topic=self._topics[event.topic])
        if event.partitions:
            event = event._replace(partitions=[self._partition(name) for name in event.partitions])
        return event

    def _partition(self, name: str) -> str:
        topic, _, number = name.rpartition("-")
        return f"{self._topics.get(topic, topic)}-{number}"


def _fill(event: Event, known: Event) -> Event:
    return event._replace(
        group=event.group or known.group,
        member=event.member or known.member,
        epoch=known.epoch if event.epoch is None and event.request else event.epoch,
        transactional_id=event.transactional_id or known.transactional_id,
        producer_id=known.producer_id if event.producer_id is None else event.producer_id,
        producer_epoch=known.producer_epoch if event.producer_epoch is None else event.producer_epoch,
    )
