"""Looks at lines of ottla's event log thousands at a time, with Arrow: which ones an analysis wants to see at all.

Of the others it takes what a summary needs (how many, their times, clocks that go back). Lines that are only evidence,
such as heartbeats, pass when something happens to their group soon after or just before.
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
"""So many lines of evidence before and after each event of a group pass."""
_HEAD: Final = (
    r'^\{"seq":\d+,"time":(?P<time>\d{1,15}),"node":(?P<node>-?\d{1,9}),"kind":"(?P<kind>[a-z.]+)"'
    r'(?:,"connection":\d+,"api":"(?P<api>\w+)")?'
)
_GROUP: Final = r'"group":"(?P<group>(?:[^"\\]|\\.)*)"'
_LINE_END, _OBJECT_END = 10, 125
_NO, _YES, _REQUEST, _RESPONSE, _EVIDENCE = range(5)


class Picked(NamedTuple):
    """A line to be parsed: where it begins, and the time of the line before if it has none of its own."""

    position: int
    line: bytes
    carried_ms: int | None


class Sieve:
    """Picks lines from one piece of an event log."""

    def __init__(
        self,
        wanted: Collection[str],
        evidence: Collection[str],
        jumped: Callable[[int], None],
        skewed: Callable[[int], None],
    ) -> None:
        self._wanted, self._evidence = wanted, evidence
        self._jumped, self._skewed = jumped, skewed
        self._before: tuple[bytes, int] | None = None
        self._last: dict[bytes, int] = {}
        self._carried: int | None = None
        self._held: dict[bytes, deque[tuple[int, bytes]]] = {}
        self._after: dict[bytes, int] = {}
        self.first_ms: int | None = None
        self.last_ms: int | None = None
        self.lines = 0
        self.events = 0

    def pick(self, data: bytes, position: int) -> Iterator[Picked]:
        """The lines of a block that are wanted, those of evidence before the event that they belong to."""
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_END) + 1
        if not len(ends) or ends[-1] != len(data):
            ends = np.append(ends, len(data))
        offsets = np.zeros(len(ends) + 1, np.int32)
        offsets[1:] = ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        lines = pa.Array.from_buffers(pa.binary(), len(ends), buffers)
        found = pc.extract_regex(lines, _HEAD)
        heads = dict(zip((field.name for field in found.type), found.flatten(), strict=True))
        known = found.is_valid().to_numpy(zero_copy_only=False)
        times = pc.cast(pc.cast(heads["time"], pa.string()), pa.int64())
        times = times.fill_null(0).to_numpy(zero_copy_only=False)
        carried = self._times(times, known, heads["node"])
        kinds = self._kinds(heads, data, ends)
        kinds = np.where(known, kinds, _YES)
        self._narrow(kinds, lines)
        dropped = kinds == _NO
        count = int(dropped.sum())
        self.lines += count
        self.events += count + self._more_events(dropped, heads["kind"], lines)
        return self._in_order(np.flatnonzero(~dropped), kinds, lines, offsets, data, position, known, carried)

    # The parts of it

    def _times(self, times: Any, known: Any, nodes: Any) -> Any:
        """See all times; returns the time of the last line before each that has one."""
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
                    self._jumped(-int(step))
            self._last[node] = int(mine[-1])
        self._skews(of_known, codes[known], coded.dictionary)
        carried = np.maximum.accumulate(np.where(known, np.arange(len(times)), -1))
        found = (
            [self._carried if index < 0 else int(times[index]) for index in carried[~known]] if not known.all() else []
        )
        self._carried = int(of_known[-1])
        return found

    def _skews(self, times: Any, codes: Any, nodes: Any) -> None:
        """Where a line goes back behind that of another node before it."""
        first = nodes[int(codes[0])].as_py()
        if self._before is not None and self._before[0] != first:
            self._skewed(self._before[1] - int(times[0]))
        self._before = (nodes[int(codes[-1])].as_py(), int(times[-1]))
        steps = np.diff(times)
        for step in steps[(codes[1:] != codes[:-1]) & (steps < 0)]:
            self._skewed(-int(step))

    def _kinds(self, heads: dict[str, Any], data: bytes, ends: Any) -> Any:
        """What to do with each line, by its kind and its request; a line that is cut off is looked at."""
        kind, api = heads["kind"].dictionary_encode(), heads["api"].dictionary_encode()
        apis = [each.decode() for each in api.dictionary.to_pylist()]
        table = np.array(
            [self._kind(name.decode(), each) for name in kind.dictionary.to_pylist() for each in apis], np.int8
        )
        if not len(table):
            return np.zeros(len(ends), np.int8)
        kind_codes = kind.indices.fill_null(0).to_numpy(zero_copy_only=False)
        api_codes = api.indices.fill_null(0).to_numpy(zero_copy_only=False)
        found = table[kind_codes * len(apis) + api_codes]
        text = np.frombuffer(data, np.uint8)
        whole = (text[ends - 1] == _LINE_END) & (text[np.maximum(ends - 2, 0)] == _OBJECT_END)
        return np.where(whole, found, _YES)

    def _kind(self, kind: str, api: str) -> int:
        wanted = self._wanted
        if kind == "request":
            name = REQUESTS.get(api, "request")
            if name not in wanted:
                return _NO
            return _EVIDENCE if name in self._evidence else _REQUEST if name == "request" else _YES
        if kind == "response":
            return _RESPONSE if kind in wanted else _NO
        if kind == "member.left":
            names = {"group.left", "group.fenced"}
        elif kind == "timeout":
            names = {"timeout", "txn.timeout"}
        elif kind.startswith("connection."):
            names = {"connection"}
        else:
            names = {KINDS.get(kind, "log")}
        return _YES if names & set(wanted) else _NO

    def _narrow(self, kinds: Any, lines: Any) -> None:
        """Requests that are no event of their own count if they are a producer's, responses if they have errors."""
        for kind, words in ((_REQUEST, ('"transactional_id"', '"producer_id"')), (_RESPONSE, ('"errors"',))):
            places = np.flatnonzero(kinds == kind)
            if len(places):
                some = lines.take(pa.array(places))
                has = np.zeros(len(places), bool)
                for word in words:
                    has |= pc.match_substring(some, word).to_numpy(zero_copy_only=False)
                kinds[places] = np.where(has, _YES, _NO)

    @staticmethod
    def _more_events(dropped: Any, kinds: Any, lines: Any) -> int:
        """A commit of several offsets is as many events."""
        is_commit = pc.equal(kinds, b"offsets.committed").fill_null(False).to_numpy(zero_copy_only=False)
        commits = np.flatnonzero(is_commit & dropped)
        if not len(commits):
            return 0
        counts = pc.count_substring(lines.take(pa.array(commits)), '"offset":').to_numpy(zero_copy_only=False)
        return int(np.maximum(counts - 1, 0).sum())

    def _in_order(
        self, chosen: Any, kinds: Any, lines: Any, offsets: Any, data: bytes, position: int, known: Any, carried: Any
    ) -> Iterator[Picked]:
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
            yield Picked(position + start, line, None if known[index] else next(unknown, self._carried))

    def _hold(self, group: bytes, position: int, line: bytes) -> None:
        held = self._held.get(group)
        if held is None:
            held = self._held[group] = deque(maxlen=NEAR)
        if len(held) == NEAR:
            self.lines += 1
            self.events += 1
        held.append((position, line))

    def _release(self, group: bytes) -> Iterator[Picked]:
        for position, line in self._held.pop(group, ()):
            yield Picked(position, line, None)

    def rest(self) -> Iterator[Picked]:
        """What may be evidence for what comes after the piece."""
        for group in list(self._held):
            yield from self._release(group)


def blocks(file: IO[bytes], start: int, end: int, longest: int) -> Iterator[tuple[int, bytes]]:
    """Whole lines from `start` on, those that begin before `end`, in blocks of a few megabytes."""
    position = start
    while position < end:
        data = file.read(min(BLOCK, end - position))
        if not data:
            return
        if data[-1] != _LINE_END:
            data += file.readline(longest)
        yield position, data
        position += len(data)
