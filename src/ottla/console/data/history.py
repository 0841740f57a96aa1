"""Values over time, sampled while a page is open: rates of topics, lags of groups."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

SAMPLES: Final = 900
SERIES: Final = 5000
RATE_SECONDS: Final = 10.0
SPACING_SECONDS: Final = 0.5
"""Samples that follow sooner are dropped: their rates would jump."""


class History:
    """The last samples of many series; the series that were not sampled for longest are dropped."""

    def __init__(self) -> None:
        self._series: OrderedDict[Hashable, deque[tuple[float, float]]] = OrderedDict()

    def add(self, key: Hashable, value: float, when: float | None = None) -> None:
        """Add a sample of a series."""
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = deque(maxlen=SAMPLES)
            while len(self._series) > SERIES:
                self._series.popitem(last=False)
        else:
            self._series.move_to_end(key)
        now = time.time() if when is None else when
        if not series or now - series[-1][0] >= SPACING_SECONDS:
            series.append((now, value))

    def samples(self, key: Hashable) -> list[tuple[float, float]]:
        """Return the samples of a series, oldest first."""
        return list(self._series.get(key, ()))

    def rate(self, key: Hashable) -> float | None:
        """Return the growth per second over the last seconds; None before there are two samples."""
        series = self.samples(key)  # a copy: other threads add samples
        if len(series) < 2:
            return None
        last = series[-1]
        first = next(sample for sample in series if last[0] - sample[0] <= RATE_SECONDS)
        if first is last:
            first = series[-2]
        return max(0.0, (last[1] - first[1]) / (last[0] - first[0]))

    def rates(self, key: Hashable) -> list[tuple[float, float]]:
        """Return the growth per second between the samples of a series."""
        series = self.samples(key)
        return [
            (after[0], max(0.0, (after[1] - before[1]) / (after[0] - before[0]))) for before, after in pairwise(series)
        ]


def history(shared: dict[str, Any]) -> History:
    """Return the history that the pages of a console share."""
    kept: History = shared.setdefault("history", History())
    return kept
