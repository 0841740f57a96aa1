"""Select the lines of ottla's event log that an analysis uses, thousands at a time, with Arrow.

The other lines are only counted, with their times and clock jumps. Lines that are evidence, such as heartbeats, are
selected if they are close to another event of their group.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from ottla.analysis.parse.ottla import KINDS, REQUESTS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import IO

BLOCK: Final = 4 << 20
NEAR: Final = 6
"""How many lines of evidence before and after each event of a group are selected."""
_HEAD: Final = (
    r'^\{"seq":\d+,"time":(?P<time>\d{1,15}),"node":(?P<node>-?\d{1,9}),"kind":"(?P<kind>[a-z.]+)"'
    r'(?:,"connection":\d+,"api":"(?P<api>\w+)")?'
)
_GROUP: Final = r'"group":"(?P<group>(?:[^"\\]|\\.)*)"'
_LINE_END, _OBJECT_END = 10, 125
_NO, _YES, _REQUEST, _RESPONSE, _EVIDENCE = range(5)
_WITH_OFFSETS: Final = (b"Fetch", b"OffsetCommit")


class SelectedLine(NamedTuple):
    """A line to be parsed: its position, and the time of the line before if it has none itself."""

    position: int
    line: bytes
    carried_ms: int | None


class EventLogFilter:
    """Select lines from one piece of an event log."""

    def __init__(
        self,
        event_names: Collection[str],
        evidence: Collection[str],
        count_jump: Callable[[int], None],
        count_skew: Callable[[int], None],
    ) -> None:
        self._event_names, self._evidence = event_names, evidence
        self._count_jump, self._count_skew = count_jump, count_skew
        self._before: tuple[bytes, int] | None = None
        self._last: dict[bytes, int] = {}
        self._carried: int | None = None
        self._held: dict[bytes, deque[tuple[int, bytes]]] = {}
        self._after: dict[bytes, int] = {}
        self.first_ms: int | None = None
        self.last_ms: int | None = None
        self.lines = 0
        self.events = 0

    def select(self, data: bytes, position: int) -> Iterator[SelectedLine]:
        """Yield the selected lines of a block, evidence before the event that it belongs to."""
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_END) + 1
        if not len(ends) or ends[-1] != len(data):
            ends = np.append(ends, len(data))
        offsets = np.zeros(len(ends) + 1, np.int32)
        offsets[1:] = ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        lines = pa.Array.from_buffers(pa.binary(), len(ends), buffers)
        matches = pc.extract_regex(lines, _HEAD)
        heads = dict(zip((field.name for field in matches.type), matches.flatten(), strict=True))
        known = matches.is_valid().to_numpy(zero_copy_only=False)
        times = pc.cast(pc.cast(heads["time"], pa.string()), pa.int64())
        times = times.fill_null(0).to_numpy(zero_copy_only=False)
        carried = self._times(times, known, heads["node"])
        kinds = self._kinds(heads, data, ends)
        kinds = np.where(known, kinds, _YES)
        self._narrow(kinds, lines)
        dropped = kinds == _NO
        count = int(dropped.sum())
        self.lines += count
        self.events += count + self._more_events(dropped, heads, lines)
        return self._in_order(np.flatnonzero(~dropped), kinds, lines, offsets, data, position, known, carried)

    def _times(self, times: Any, known: Any, nodes: Any) -> Any:
        """Include all times in the range; return, for each line without a time, that of the last line with one."""
        if not known.any():
            return None
        of_known = times[known]
        low, high = int(of_known.min()), int(of_known.max())
        self.first_ms = low if self.first_ms is None else min(low, self.first_ms)
        self.last_ms = high if self.last_ms is None else max(high, self.last_ms)
        coded = nodes.dictionary_encode()
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        for code, node in enumerate(coded.dictionary.to_pylist()):
            mine = times[codes == code]
            before = self._last.get(node)
            steps = np.diff(mine, prepend=mine[0] if before is None else before)
            if len(steps) and int(steps.min()) < 0:
                for step in steps[steps < 0]:
                    self._count_jump(-int(step))
            self._last[node] = int(mine[-1])
        self._skews(of_known, codes[known], coded.dictionary)
        carried = np.maximum.accumulate(np.where(known, np.arange(len(times)), -1))
        without_time = (
            [self._carried if index < 0 else int(times[index]) for index in carried[~known]] if not known.all() else []
        )
        self._carried = int(of_known[-1])
        return without_time

    def _skews(self, times: Any, codes: Any, nodes: Any) -> None:
        """Count lines that are older than the line of another node before them."""
        first = nodes[int(codes[0])].as_py()
        if self._before is not None and self._before[0] != first:
            self._count_skew(self._before[1] - int(times[0]))
        self._before = (nodes[int(codes[-1])].as_py(), int(times[-1]))
        steps = np.diff(times)
        for step in steps[(codes[1:] != codes[:-1]) & (steps < 0)]:
            self._count_skew(-int(step))

    def _kinds(self, heads: dict[str, Any], data: bytes, ends: Any) -> Any:
        """Return what to do with each line, by its kind and its API; an incomplete line is selected."""
        kind, api = heads["kind"].dictionary_encode(), heads["api"].dictionary_encode()
        apis = [name.decode() for name in api.dictionary.to_pylist()]
        table = np.array(
            [self._kind(name.decode(), api_name) for name in kind.dictionary.to_pylist() for api_name in apis], np.int8
        )
        if not len(table):
            return np.zeros(len(ends), np.int8)
        kind_codes = kind.indices.fill_null(0).to_numpy(zero_copy_only=False)
        api_codes = api.indices.fill_null(0).to_numpy(zero_copy_only=False)
        by_kind = table[kind_codes * len(apis) + api_codes]
        text = np.frombuffer(data, np.uint8)
        whole = (text[ends - 1] == _LINE_END) & (text[np.maximum(ends - 2, 0)] == _OBJECT_END)
        return np.where(whole, by_kind, _YES)

    def _kind(self, kind: str, api: str) -> int:
        event_names = self._event_names
        if kind == "request":
            name = REQUESTS.get(api, "request")
            if name not in event_names:
                return _NO
            return _EVIDENCE if name in self._evidence else _REQUEST if name == "request" else _YES
        if kind == "response":
            return _RESPONSE if kind in event_names else _NO
        if kind == "member.left":
            names = {"group.left", "group.fenced"}
        elif kind == "timeout":
            names = {"timeout", "txn.timeout"}
        elif kind.startswith("connection."):
            names = {"connection"}
        else:
            names = {KINDS.get(kind, "log")}
        return _YES if names & set(event_names) else _NO

    def _narrow(self, kinds: Any, lines: Any) -> None:
        """Keep other requests only if a producer sent them, and responses only if they hold errors."""
        for kind, words in ((_REQUEST, ('"transactional_id"', '"producer_id"')), (_RESPONSE, ('"errors"',))):
            indexes = np.flatnonzero(kinds == kind)
            if len(indexes):
                some = lines.take(pa.array(indexes))
                has = np.zeros(len(indexes), bool)
                for word in words:
                    has |= pc.match_substring(some, word).to_numpy(zero_copy_only=False)
                kinds[indexes] = np.where(has, _YES, _NO)

    @staticmethod
    def _more_events(dropped: Any, heads: dict[str, Any], lines: Any) -> int:
        """Return how many events beyond one per line the dropped lines hold: one per committed or fetched offset."""
        more = 0
        is_commit = pc.equal(heads["kind"], b"offsets.committed").fill_null(False).to_numpy(zero_copy_only=False)
        commits = np.flatnonzero(is_commit & dropped)
        if len(commits):
            counts = pc.count_substring(lines.take(pa.array(commits)), '"offset":').to_numpy(zero_copy_only=False)
            more += int(np.maximum(counts - 1, 0).sum())
        is_request = pc.equal(heads["kind"], b"request").fill_null(False)
        is_listed = pc.and_(is_request, pc.is_in(heads["api"], pa.array(_WITH_OFFSETS, pa.binary())))
        listed = np.flatnonzero(is_listed.fill_null(False).to_numpy(zero_copy_only=False) & dropped)
        if len(listed):
            counts = pc.count_substring(lines.take(pa.array(listed)), '"offset":').to_numpy(zero_copy_only=False)
            more += int(counts.sum())
        return more

    def _in_order(
        self, chosen: Any, kinds: Any, lines: Any, offsets: Any, data: bytes, position: int, known: Any, carried: Any
    ) -> Iterator[SelectedLine]:
        groups: list[bytes | None] = [None] * len(chosen)
        if self._evidence and len(chosen):
            groups = pc.extract_regex(lines.take(pa.array(chosen)), _GROUP).field("group").to_pylist()
        unknown = iter(carried if carried is not None else [])
        for index, group in zip(chosen.tolist(), groups, strict=True):
            start = int(offsets[index])
            line = data[start : int(offsets[index + 1])]
            if kinds[index] == _EVIDENCE and group is not None:
                left = self._after.get(group, 0)
                if left == 0:
                    self._hold(group, position + start, line)
                    continue
                self._after[group] = left - 1
            elif group is not None and self._evidence:
                yield from self._release(group)
                self._after[group] = NEAR
            yield SelectedLine(position + start, line, None if known[index] else next(unknown, self._carried))

    def _hold(self, group: bytes, position: int, line: bytes) -> None:
        held = self._held.get(group)
        if held is None:
            held = self._held[group] = deque(maxlen=NEAR)
        if len(held) == NEAR:
            self.lines += 1
            self.events += 1
        held.append((position, line))

    def _release(self, group: bytes) -> Iterator[SelectedLine]:
        for position, line in self._held.pop(group, ()):
            yield SelectedLine(position, line, None)

    def rest(self) -> Iterator[SelectedLine]:
        """Yield the evidence still held at the end: it may belong to an event of the next piece."""
        for group in list(self._held):
            yield from self._release(group)


def blocks(file: IO[bytes], start: int, end: int, longest: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin between `start` and `end`, whole, in blocks of a few megabytes."""
    position = start
    while position < end:
        data = file.read(min(BLOCK, end - position))
        if not data:
            return
        if data[-1] != _LINE_END:
            data += file.readline(longest)
        yield position, data
        position += len(data)
