"""Nodes that hang, as a process does after SIGSTOP: nothing is read or answered, and the node's own timers wait.

The rest of the cluster notices as it does in Kafka: after `broker.session.timeout.ms` without a sign of life the node
is fenced, and others lead what it led, until it goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.membership import fence_node, unfence_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.server.run import RunningCluster
    from ottla.world.clock import Clock, Timer


class NodeTimer:
    """A timer of a node that may hang when it is due."""

    __slots__ = ("_timer", "args", "callback", "when")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.when = 0.0
        self._timer: Timer | None = None

    def started(self, timer: Timer) -> NodeTimer:
        """The timer of the clock beneath that it waits for."""
        self._timer, self.when = timer, timer.when
        return self

    def cancel(self) -> None:
        """Let it not happen."""
        self.callback = None
        if self._timer is not None:
            self._timer.cancel()


class NodeClock:
    """The time of one node. It goes on while the node hangs, but what falls due waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._hangs = False
        self._due: list[NodeTimer] = []
        self.now_ms = clock.now_ms
        self.monotonic = clock.monotonic

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> NodeTimer:
        """Call back after `delay` seconds, or when the node goes on."""
        timer = NodeTimer(callback, args)
        return timer.started(self._clock.call_later(delay, self._fire, timer))

    def call_soon(self, callback: Callable[..., object], *args: Any) -> NodeTimer:
        """Call back on the next turn, or when the node goes on."""
        timer = NodeTimer(callback, args)
        return timer.started(self._clock.call_soon(self._fire, timer))

    def hang(self) -> None:
        """Let what falls due wait."""
        self._hangs = True

    def go_on(self) -> None:
        """Let what fell due meanwhile happen, in its order."""
        self._hangs = False
        due, self._due = self._due, []
        for timer in due:
            self._clock.call_soon(self._fire, timer)

    def _fire(self, timer: NodeTimer) -> None:
        if self._hangs:
            self._due.append(timer)
        elif timer.callback is not None:
            callback, timer.callback = timer.callback, None
            callback(*timer.args)


class HangingNodes:
    """Which nodes hang."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clocks: dict[int, NodeClock] = {}
        self._fencing: dict[int, Timer] = {}

    def clock_of(self, node: int) -> NodeClock:
        """The clock of a node."""
        return self._clocks.setdefault(node, NodeClock(self._clock))

    def hang(self, running: RunningCluster, node: int) -> None:
        """Let a node hang; one that hangs already does so on."""
        cluster = running.cluster
        if node in self._fencing or cluster is None:
            return
        running.servers[node].hang()
        self.clock_of(node).hang()
        seconds = cluster.nodes[node].config_int("broker.session.timeout.ms") / 1000
        self._fencing[node] = self._clock.call_later(seconds, fence_node, cluster, node)

    def go_on(self, running: RunningCluster, node: int, *, alive: bool = True) -> None:
        """Let a node go on; one that was stopped meanwhile (not `alive`) only hangs no more."""
        timer = self._fencing.pop(node, None)
        cluster = running.cluster
        if timer is None or cluster is None:
            return
        timer.cancel()
        if alive:
            unfence_node(cluster, node)
        if node in running.servers:
            running.servers[node].go_on()
        self.clock_of(node).go_on()

    def all_go_on(self, running: RunningCluster) -> None:
        """Let every node go on."""
        for node in list(self._fencing):
            self.go_on(running, node)
