"""Paused nodes: like a process after SIGSTOP, they read and answer nothing, and their timers do not fire.

The rest of the cluster reacts as Kafka does: after `broker.session.timeout.ms` without a heartbeat the node is fenced
and other nodes become leaders of its partitions, until it resumes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.nodes.membership import fence_node, unfence_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.server.run import RunningCluster
    from ottla.world.clock import Clock, Timer


class NodeTimer:
    """A timer of one node; while the node is paused its callback is deferred."""

    __slots__ = ("_timer", "args", "callback", "when")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.when = 0.0
        self._timer: Timer | None = None

    def started(self, timer: Timer) -> NodeTimer:
        """Remember the timer of the underlying clock, and return self."""
        self._timer, self.when = timer, timer.when
        return self

    def cancel(self) -> None:
        """Do not call back."""
        self.callback = None
        if self._timer is not None:
            self._timer.cancel()


class NodeClock:
    """The clock of one node. Time passes while the node is paused; callbacks that are due run when it resumes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._paused = False
        self._due: list[NodeTimer] = []
        self.now_ms = clock.now_ms
        self.monotonic = clock.monotonic

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> NodeTimer:
        """Call back after `delay` seconds, or when the node resumes."""
        timer = NodeTimer(callback, args)
        return timer.started(self._clock.call_later(delay, self._fire, timer))

    def call_soon(self, callback: Callable[..., object], *args: Any) -> NodeTimer:
        """Call back on the next iteration of the event loop, or when the node resumes."""
        timer = NodeTimer(callback, args)
        return timer.started(self._clock.call_soon(self._fire, timer))

    def pause(self) -> None:
        """Defer callbacks that become due."""
        self._paused = True

    def resume(self) -> None:
        """Run the callbacks that became due meanwhile, in order."""
        self._paused = False
        due, self._due = self._due, []
        for timer in due:
            self._clock.call_soon(self._fire, timer)

    def _fire(self, timer: NodeTimer) -> None:
        if self._paused:
            self._due.append(timer)
        elif timer.callback is not None:
            callback, timer.callback = timer.callback, None
            callback(*timer.args)


class PausedNodes:
    """The paused nodes of a cluster, with the timers that fence them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clocks: dict[int, NodeClock] = {}
        self._fencing: dict[int, Timer] = {}

    def node_clock(self, node: int) -> NodeClock:
        """Return the clock of a node."""
        return self._clocks.setdefault(node, NodeClock(self._clock))

    def pause(self, running: RunningCluster, node: int) -> None:
        """Pause a node; no effect if it is paused already."""
        runtime = running.runtime
        if node in self._fencing or runtime is None:
            return
        running.servers[node].pause()
        self.node_clock(node).pause()
        seconds = runtime.nodes[node].config_int("broker.session.timeout.ms") / 1000
        self._fencing[node] = self._clock.call_later(seconds, fence_node, runtime, node)

    def resume(self, running: RunningCluster, node: int, *, unfence: bool = True) -> None:
        """Resume a node; without `unfence` (a node that was stopped meanwhile) it stays out of the cluster."""
        timer = self._fencing.pop(node, None)
        runtime = running.runtime
        if timer is None or runtime is None:
            return
        timer.cancel()
        if unfence:
            unfence_node(runtime, node)
        if node in running.servers:
            running.servers[node].resume()
        self.node_clock(node).resume()

    def resume_all(self, running: RunningCluster) -> None:
        """Resume every paused node."""
        for node in list(self._fencing):
            self.resume(running, node)
