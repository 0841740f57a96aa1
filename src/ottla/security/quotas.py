"""Client quotas: rates of bytes, request time and mutations per client, and throttle times.

Rates are measured as Kafka's SampledStat does: `quota.window.num` samples of `quota.window.size.seconds`, and a
throttle time that brings the average of the window back to the limit (KIP-124). The server reports the throttle time
and mutes the connection (KIP-219).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.cluster.security.client_quotas import CLIENT_ID, IP, USER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ottla.cluster.security.client_quotas import QuotaEntity

PRODUCE: Final = "producer_byte_rate"
FETCH: Final = "consumer_byte_rate"
REQUEST: Final = "request_percentage"
CONNECTIONS: Final = "connection_creation_rate"
MOST_RATES: Final = 10_000
"""Bound of the cached rates: client names come from outside."""


@dataclass(slots=True)
class Rate:
    """An average per second over the last samples."""

    samples: int
    sample_seconds: float
    _values: deque[tuple[float, float]] = field(default_factory=deque)

    def record(self, value: float, now: float) -> None:
        """Add an amount at the current time."""
        self._forget(now)
        if self._values and now - self._values[-1][0] < self.sample_seconds:
            began, total = self._values[-1]
            self._values[-1] = (began, total + value)
        else:
            self._values.append((now, value))

    def measure(self, now: float) -> float:
        """Return the average now."""
        self._forget(now)
        return sum(total for _, total in self._values) / self.window(now)

    def window(self, now: float) -> float:
        """Return the length of the window in seconds.

        At least all samples but one, so that a first burst is no high rate.
        """
        elapsed = now - self._values[0][0] if self._values else 0.0
        full = (self.samples - 1) * self.sample_seconds
        whole = int(elapsed / self.sample_seconds) * self.sample_seconds
        return (elapsed + max(full - whole, 0.0)) or self.sample_seconds

    def _forget(self, now: float) -> None:
        oldest = now - self.samples * self.sample_seconds
        while self._values and self._values[0][0] <= oldest:
            self._values.popleft()


class Quotas:
    """The quotas of the metadata image and the measured rates of clients."""

    def __init__(
        self,
        image: Callable[[], Mapping[QuotaEntity, Mapping[str, float]]],
        monotonic: Callable[[], float],
        *,
        samples: int = 11,
        sample_seconds: float = 1.0,
    ) -> None:
        self._image = image
        self._now = monotonic
        self._samples = samples
        self._sample_seconds = sample_seconds
        self._rates: dict[tuple[str, QuotaEntity], Rate] = {}
        self._limits: dict[tuple[str, str, str], tuple[float, QuotaEntity] | None] = {}
        self.active = False
        self.quotas_changed()

    def quotas_changed(self) -> None:
        """Drop the resolved limits, because the image's quotas changed. Measured rates stay."""
        self._limits.clear()
        self.active = bool(self._image())

    def wait(self, key: str, user: str, client_id: str, amount: float, *, most: float | None = None) -> float:
        """Record an amount and return the throttle time in seconds, at most `most`."""
        limit = self._limit(key, user, client_id)
        if limit is None:
            return 0.0
        bound, entity = limit
        rate = self._rate(key, entity)
        now = self._now()
        rate.record(amount, now)
        seconds = self._wait(rate, bound, now)
        return seconds if most is None else min(seconds, most)

    def take_back(self, key: str, user: str, client_id: str, amount: float) -> None:
        """Subtract an amount that was not sent."""
        limit = self._limit(key, user, client_id)
        if limit is not None:
            self._rate(key, limit[1]).record(-amount, self._now())

    def most_in_window(self, key: str, user: str, client_id: str) -> float | None:
        """Return the largest amount that a whole window allows; None without a limit."""
        limit = self._limit(key, user, client_id)
        return None if limit is None else limit[0] * max(self._samples - 1, 1) * self._sample_seconds

    def connection_wait(self, host: str) -> float:
        """Record a connection of an address and return its throttle time in seconds."""
        image = self._image()
        for entity in (((IP, host),), ((IP, None),)):
            bound = image.get(entity, {}).get(CONNECTIONS)
            if bound is None:
                continue
            rate = self._rate(CONNECTIONS, ((IP, host),))
            now = self._now()
            rate.record(1, now)
            seconds = self._wait(rate, bound, now)
            if seconds:
                rate.record(-1, now)  # a refused connection does not count
            return seconds
        return 0.0

    # Private parts

    @staticmethod
    def _wait(rate: Rate, bound: float, now: float) -> float:
        value = rate.measure(now)
        if value <= bound:
            return 0.0
        return (value - bound) / bound * rate.window(now)

    def _rate(self, key: str, entity: QuotaEntity) -> Rate:
        rate = self._rates.get((key, entity))
        if rate is None:
            if len(self._rates) >= MOST_RATES:
                self._rates.clear()
            rate = self._rates[key, entity] = Rate(self._samples, self._sample_seconds)
        return rate

    def _limit(self, key: str, user: str, client_id: str) -> tuple[float, QuotaEntity] | None:
        entity = (key, user, client_id)
        if entity not in self._limits:
            if len(self._limits) >= MOST_RATES:
                self._limits.clear()
            self._limits[entity] = self._find(key, user, client_id)
        return self._limits[entity]

    def _find(self, key: str, user: str, client_id: str) -> tuple[float, QuotaEntity] | None:
        """Return the most specific quota and the entity that shares it: all clients that it was set for."""
        image = self._image()
        both: QuotaEntity = ((CLIENT_ID, client_id), (USER, user))
        for entity, shared in (
            (both, both),
            (((CLIENT_ID, None), (USER, user)), both),
            (((USER, user),), ((USER, user),)),
            (((CLIENT_ID, client_id), (USER, None)), both),
            (((CLIENT_ID, None), (USER, None)), both),
            (((USER, None),), ((USER, user),)),
            (((CLIENT_ID, client_id),), ((CLIENT_ID, client_id),)),
            (((CLIENT_ID, None),), ((CLIENT_ID, client_id),)),
        ):
            bound = image.get(entity, {}).get(key)
            if bound is not None:
                return bound, shared
        return None
