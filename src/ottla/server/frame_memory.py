"""The memory of requests that are being received or handled, bounded for all connections of a node together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.world.machine import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.world.clock import Clock

UNLIMITED = -1
DEFAULT_SHARE = 4  # without a configured limit, one in so many bytes of the machine's memory


class FrameMemory:
    """Kafka's SimpleMemoryPool for `queued.max.request.bytes`.

    A frame reserves its whole size before it is received, if any memory is left. The last reservation may exceed the
    limit, so that every frame that began to arrive can be completed. Connections without memory stop reading and
    continue in the order of arrival. Frames that fit into a connection's first buffer are not counted.
    """

    __slots__ = ("_clock", "_configured", "_waiting", "used")

    def __init__(self, clock: Clock, configured: Callable[[], int]) -> None:
        self._clock = clock
        self._configured = configured
        self._waiting: dict[Callable[[], object], None] = {}
        self.used = 0

    @property
    def limit(self) -> int:
        """The configured limit in bytes; a quarter of the machine's memory where none is configured."""
        configured = self._configured()
        return memory_bytes() // DEFAULT_SHARE if configured <= 0 else configured

    @property
    def scarce(self) -> bool:
        """Return whether more than half of the memory is taken."""
        return self.used > self.limit // 2

    def take(self, size: int) -> bool:
        """Take memory for a frame; return False if none is left."""
        if self.used >= self.limit:
            return False
        self.used += size
        return True

    def wait(self, wake: Callable[[], object]) -> None:
        """Call `wake` on the loop when there is memory again."""
        self._waiting[wake] = None

    def forget(self, wake: Callable[[], object]) -> None:
        """Cancel `wait`."""
        self._waiting.pop(wake, None)

    def release(self, size: int) -> None:
        """Give memory back and wake the connection that waited longest."""
        self.used -= size
        if self._waiting and self.used < self.limit:
            wake = next(iter(self._waiting))
            del self._waiting[wake]
            self._clock.call_soon(wake)
