"""Finds out what each input is and reads it: files line by line, log directories folder by folder.

A piece is what one task reads. Each piece ends with a `summary` event: lines, unparsed lines, times and jumps of the
clock, so that nothing has to be read twice to say what was read.
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
_RECOGNISE: Final = {
    parse_ottla.FORMAT: parse_ottla.looks_like,
    parse_tap.FORMAT: parse_tap.looks_like,
    parse_history.FORMAT: parse_history.looks_like,
    parse_librdkafka.FORMAT: parse_librdkafka.looks_like,
    parse_java.FORMAT: parse_java.looks_like,
    parse_kgo.FORMAT: parse_kgo.looks_like,
}


class InputError(ValueError):
    """An input that cannot be read; the message says which and why."""


class Piece(NamedTuple):
    """What one task reads: a range of a file, or a partition's folder of a log directory (`end` is -1)."""

    path: str
    start: int
    end: int
    format: str = ""
    directory: str = ""


@dataclass(slots=True)
class Summary:
    """What was read of one file or folder."""

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
    wanted: int = 0
    skews: int = 0
    worst_skew_ms: int = 0

    def jumped(self, by_ms: int) -> None:
        """The clock of a host went back by so much, from one of its lines to the next."""
        if by_ms > JUMP_MS:
            self.jumps += 1
            self.worst_jump_ms = max(self.worst_jump_ms, by_ms)

    def skewed(self, by_ms: int) -> None:
        """A line of one host follows one of another that is so much later by its own clock."""
        if by_ms > JUMP_MS:
            self.skews += 1
            self.worst_skew_ms = max(self.worst_skew_ms, by_ms)

    def see(self, time_ms: int) -> None:
        """A time stands in it."""
        if self.first_ms is None or time_ms < self.first_ms:
            self.first_ms = time_ms
        if self.last_ms is None or time_ms > self.last_ms:
            self.last_ms = time_ms

    def count(self, name: str, lines: int = 1) -> None:
        """So many lines are of this format."""
        self.formats[name] = self.formats.get(name, 0) + lines

    def add(self, other: Summary) -> None:
        """Take in another one."""
        self.lines += other.lines
        self.events += other.events
        self.unparsed += other.unparsed
        self.wanted += other.wanted
        for name, count in other.formats.items():
            self.count(name, count)
        for time_ms in (other.first_ms, other.last_ms):
            if time_ms is not None:
                self.see(time_ms)
        self.jumps += other.jumps
        self.worst_jump_ms = max(self.worst_jump_ms, other.worst_jump_ms)
        self.skews += other.skews
        self.worst_skew_ms = max(self.worst_skew_ms, other.worst_skew_ms)
        self.samples = (self.samples + other.samples)[:SAMPLES]

    def to_text(self) -> str:
        """As the text of an event."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_text(cls, text: str) -> Summary:
        """The other way round."""
        return cls(**json.loads(text))


def find_pieces(paths: Iterable[str], size: int = PIECE, topics: Collection[str] | None = None) -> list[Piece]:
    """What there is to read (of log directories only these topics), or `InputError` with why there is nothing."""
    pieces: list[Piece] = []
    for path in paths:
        if not os.path.exists(path):
            raise InputError(f"{path} does not exist")
        if not (os.path.isdir(path) or os.path.isfile(path)):
            raise InputError(f"{path} is neither a file nor a folder: what comes through a pipe has to be a file first")
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
        kind = ""  # a compressed file that is damaged: what can be read of it will be
    if path.endswith(".gz"):
        return [Piece(path, 0, length, kind)]
    return [Piece(path, start, min(start + size, length), kind) for start in range(0, length, size)]


def detect(path: str) -> str:
    """The format of most of the lines at the start of a file; empty where none is known."""
    found: Counter[str] = Counter()
    with _open(path) as file:
        for line in file.read(1 << 16).decode("utf-8", "replace").splitlines()[:200]:
            for name, looks_like in _RECOGNISE.items():
                if looks_like(line):
                    found[name] += 1
                    break
    return found.most_common(1)[0][0] if found else ""


def _open(path: str) -> IO[bytes]:
    if path.endswith(".gz"):
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return open(path, "rb")


def read_piece(piece: Piece, wanted: Collection[str] | None = None, evidence: Collection[str] = ()) -> Iterator[Event]:
    """The events of a piece that are wanted (all, if none are named), and its summary at the end.

    Of large event logs, events that are only `evidence` are left out where nothing happens.
    """
    summary = Summary(piece.path)
    if piece.end < 0:
        source = _folder(piece, summary, appends=wanted is not None and "append" in wanted)
    else:
        source = _lines(piece, summary, wanted, evidence)
    for event in source:
        summary.events += 1
        if event.time_ms is not None:
            summary.see(event.time_ms)
        if wanted is None or event.event in wanted:
            summary.wanted += 1
            yield event
    yield Event(None, SUMMARY, file=piece.path, position=piece.start, text=summary.to_text())


def _folder(piece: Piece, summary: Summary, *, appends: bool) -> Iterator[Event]:
    names = topic_names(piece.directory) if "__consumer_offsets" in piece.path else {}
    for event in folder_events(piece.path, names, appends=appends):
        summary.lines += 1
        summary.count(event.format)
        if event.event == "unparsed":
            _keep(summary, event.text or "")
        yield event


def _keep(summary: Summary, text: str) -> None:
    summary.unparsed += 1
    if len(summary.samples) < SAMPLES:
        summary.samples.append(text[:200])


def _lines(
    piece: Piece, summary: Summary, wanted: Collection[str] | None, evidence: Collection[str]
) -> Iterator[Event]:
    """The events of the lines that begin within the piece; a line that begins in it is read to its end."""
    written_ms = int(os.path.getmtime(piece.path) * 1000)
    order = [piece.format] if piece.format else []
    order += [name for name in PARSERS if name not in order]
    parsers = [(name, PARSERS[name]) for name in order]
    clocks = _Clocks(summary)
    memory = _Memory()
    quick = piece.format == parse_ottla.FORMAT and wanted is not None and not piece.path.endswith(".gz")
    carried: int | None = None
    picked = _picked(piece, summary, wanted or (), evidence) if quick else _each(piece, summary)
    for here, data, before in picked:
        line = data.decode("utf-8", "replace").rstrip("\r\n")
        if not line.strip():
            continue
        carried = carried if before is None else before
        summary.lines += 1
        base = Event(written_ms, "log", file=piece.path, position=here, text=line)
        for name, parse in parsers:
            events = _understood(parse, line, base)
            if events is not None:
                summary.count(name)
                for event in events:
                    event = memory.complete(event)
                    if event.time_ms is None:
                        yield event._replace(time_ms=carried)  # a line without a time is as old as the one before
                        continue
                    carried = event.time_ms
                    if not quick:
                        clocks.see(event.host, event.time_ms)
                    yield event
                break
        else:
            _keep(summary, line)
            yield base._replace(time_ms=carried, event="unparsed")


def _understood(parse: Parser, line: str, base: Event) -> list[Event] | None:
    """The events of a line; None where a parser, or the table, has no place for what it says."""
    try:
        events = parse(line, base)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return None
    return events if events is None or all(map(fits, events)) else None


def _begin(file: IO[bytes], piece: Piece) -> int:
    """Go to the first line that begins within the piece; where that is."""
    if not piece.start:
        return 0
    file.seek(piece.start - 1)
    return piece.start + len(file.readline()) - 1


def _each(piece: Piece, summary: Summary) -> Iterator[tuple[int, bytes, int | None]]:
    """Every line."""
    with _open(piece.path) as file:
        position = _begin(file, piece)
        whole = piece.path.endswith(".gz")
        while whole or position < piece.end:
            try:
                data = file.readline(LINE_LIMIT)
            except (EOFError, OSError, zlib.error) as error:
                _keep(summary, f"cannot be read to its end ({error}): {piece.path}")
                return
            if not data:
                return
            yield position, data, None
            position += len(data)


def _picked(
    piece: Piece, summary: Summary, wanted: Collection[str], evidence: Collection[str]
) -> Iterator[tuple[int, bytes, int | None]]:
    """The lines of an event log that are wanted; what the others amount to goes into the summary."""
    try:
        from ottla.analysis.event_log_filter import Sieve, blocks
    except ImportError:  # without Arrow every line is looked at
        yield from _each(piece, summary)
        return

    sieve = Sieve(wanted, evidence, summary.jumped, summary.skewed)
    with _open(piece.path) as file:
        for position, data in blocks(file, _begin(file, piece), piece.end, LINE_LIMIT):
            yield from sieve.pick(data, position)
    yield from sieve.rest()
    summary.lines += sieve.lines
    summary.events += sieve.events
    summary.count(parse_ottla.FORMAT, sieve.lines)
    for time_ms in (sieve.first_ms, sieve.last_ms):
        if time_ms is not None:
            summary.see(time_ms)


class _Clocks:
    """What the times of a file say about the clocks by which they were taken."""

    def __init__(self, summary: Summary) -> None:
        self._summary = summary
        self._last: dict[str | None, int] = {}
        self._before: tuple[str | None, int] = (None, -1)

    def see(self, host: str | None, time_ms: int) -> None:
        """The next line is of this host, at this time."""
        self._summary.jumped(self._last.get(host, time_ms) - time_ms)
        self._last[host] = time_ms
        if self._before[0] != host:
            self._summary.skewed(self._before[1] - time_ms)
        self._before = (host, time_ms)


class _Memory:
    """What lines leave out because lines before them said it.

    A client names its group and its producer now and then, a response does not repeat its request, and a request for
    a producer id does not know the one that its transactional id has already.
    """

    def __init__(self) -> None:
        self._clients: dict[str | None, Event] = {}
        self._requests: dict[str, Event] = {}
        self._producers: dict[str, int] = {}
        self._last: Event | None = None

    def complete(self, event: Event) -> Event:
        """The event with what is known from before."""
        if event.side == CLIENT:
            if event.host is None and event.format == parse_java.FORMAT and self._last is not None:
                event = event._replace(host=self._last.host, client=self._last.client)  # the line before goes on
            self._last = event
            before = self._clients.get(event.host)
            if before is not None:
                event = _fill(event, before)
            self._clients[event.host] = event
            return event
        if event.transactional_id is not None:
            if event.producer_id is not None and event.producer_id >= 0:
                self._producers[event.transactional_id] = event.producer_id
            elif event.transactional_id in self._producers:
                event = event._replace(producer_id=self._producers[event.transactional_id])
        request = event.request
        if request is not None:
            asked = self._requests.pop(request, None)
            if asked is not None:
                event = _fill(event, asked)
            elif event.event != "response" and len(self._requests) < MOST_REQUESTS:
                self._requests[request] = event
        return event


def _fill(event: Event, known: Event) -> Event:
    return event._replace(
        group=event.group or known.group,
        member=event.member or known.member,
        epoch=known.epoch if event.epoch is None and event.request else event.epoch,
        transactional_id=event.transactional_id or known.transactional_id,
        producer_id=known.producer_id if event.producer_id is None else event.producer_id,
        producer_epoch=known.producer_epoch if event.producer_epoch is None else event.producer_epoch,
    )
