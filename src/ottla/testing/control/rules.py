"""Rules: what happens to chosen requests, in front of ottla's broker or any Kafka; kfake's control functions.

    rule = cluster.on("Produce", topic="orders", partition=0, times=2).error("NOT_LEADER_OR_FOLLOWER")
    ...
    rule.wait()

`Rules` has no access to sockets or to the broker: its caller passes an `Exchange`.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.events import NO_EVENT_LOG
from ottla.pending import Pending
from ottla.protocol.schema import Struct
from ottla.testing.control.exchange import (
    complete,
    cut_response,
    delay_response,
    join_parts,
    lose_response,
    release_parts,
    then,
)
from ottla.testing.control.matching import (
    RequestMatch,
    api_keys,
    check_conditions,
    check_function,
    check_seconds,
    error_code,
    partition_set,
)
from ottla.testing.control.partition_errors import PartitionErrors
from ottla.testing.control.requests import ReceivedRequest, ReceivedRequests

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ottla.events import Events
    from ottla.protocol.error_codes import ErrorCode
    from ottla.protocol.schema import Message
    from ottla.server.connection import Part
    from ottla.testing.control.exchange import Answer, Exchange
    from ottla.testing.control.matching import Api
    from ottla.world.clock import Clock
    from ottla.world.random import Random

log = logging.getLogger(__name__)

T = TypeVar("T")
NOT_HANDLED = object()
"""The result of an action that leaves the request to the next rule, or to the broker."""
LENGTH_AND_CORRELATION_ID = 8


@dataclass(eq=False)
class Rule:
    """A rule in force, as the methods of `RuleBuilder` return it. Safe to use from any thread.

    `number` identifies it in the control API and in the event log, `hits` counts the requests that it acted on, and
    `requests` holds them.
    """

    number: int
    match: RequestMatch
    action: str
    times: int | None
    _act: Callable[[Rule, Exchange], Any] = field(repr=False)
    _owner: Rules = field(repr=False)
    hits: int = 0
    requests: list[ReceivedRequest] = field(default_factory=list, repr=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False)
    _sleeping: list[Callable[[], None]] = field(default_factory=list, repr=False)
    _awake: bool = False
    failure: Exception | None = None

    @property
    def active(self) -> bool:
        """Whether the rule will act on further requests."""
        return self in self._owner.active

    def wait(self, timeout: float = 60.0, hits: int = 1) -> list[ReceivedRequest]:
        """Wait until the rule has acted on `hits` requests, and return all requests that it acted on.

        Raise TimeoutError after `timeout` seconds, and the exception of the test's own function if that failed.
        """
        with self._changed:
            reached = self._changed.wait_for(lambda: self.hits >= hits or self.failure is not None, timeout)
            if self.failure is not None:
                raise self.failure
            if not reached:
                raise TimeoutError(f"{self.action} rule {self.number}: acted on {self.hits} of {hits} requests")
            return list(self.requests)

    async def wait_async(self, timeout: float = 60.0, hits: int = 1) -> list[ReceivedRequest]:
        """Do what `wait` does, without blocking the event loop of an asynchronous test."""
        return await asyncio.to_thread(self.wait, timeout, hits)

    def remove(self) -> None:
        """Deactivate the rule; requests that it holds are served."""
        self._owner.on_loop(lambda: self._owner.drop(self))

    def keep(self) -> None:
        """Act on every matching request from now on, not only on the first `times`."""
        self.times = None

    def wake(self) -> None:
        """Serve the requests that `sleep` holds, and do not hold later ones."""
        self._owner.on_loop(self._wake)

    def _wake(self) -> None:
        self._awake = True
        sleeping, self._sleeping = self._sleeping, []
        for serve in sleeping:
            serve()

    def guarded(self, change: Callable[[T], T]) -> Callable[[T], Any]:
        """Return `change` with its exceptions passed to `wait`; its argument is then used unchanged."""

        def run(value: T) -> T:
            try:
                return change(value)
            except Exception as error:
                self._fail(error)
                return value

        return run

    def _fail(self, error: Exception) -> None:
        log.error("the %s rule %d failed", self.action, self.number, exc_info=error)
        with self._changed:
            self.failure = error
            self._changed.notify_all()

    def _hit(self, received: ReceivedRequest) -> None:
        with self._changed:
            self.hits += 1
            self.requests.append(received)
            self._changed.notify_all()


class RuleBuilder:
    """Chosen requests, as `Cluster.on` returns them. Each method adds a rule for them and returns it."""

    def __init__(self, rules: Rules, match: RequestMatch, times: int | None) -> None:
        self._rules = rules
        self._match = match
        self._times = times

    def observe(self, look: Callable[[ReceivedRequest], object] | None = None) -> Rule:
        """Count and record the requests, and change nothing. `look` is called on the cluster's thread."""
        if look is not None:
            check_function(look)

        def act(_: Rule, exchange: Exchange) -> Any:
            if look is not None:
                look(exchange.received)
            return NOT_HANDLED

        return self._add("observe", act)

    def answer(self, answer: Message | Callable[[ReceivedRequest], Any]) -> Rule:
        """Send a response in place of the broker's: a message, or what a function of the request returns.

        A function that returns None leaves the request to the broker, and `times` does not count it. A coroutine
        function is awaited while other requests are served.
        """
        if not isinstance(answer, Struct):
            check_function(answer)

        def act(rule: Rule, exchange: Exchange) -> Any:
            response = answer(exchange.received) if callable(answer) else answer
            if inspect.isawaitable(response):
                return self._rules.answer_later(rule, exchange, response)
            return NOT_HANDLED if response is None else exchange.encode(response)

        return self._add("answer", act)

    def edit(self, change: Callable[[Any], Any]) -> Rule:
        """Let the broker handle the request; `change` takes its response message and returns the one to send."""
        check_function(change)
        return self._add("edit", lambda rule, exchange: exchange.serve(exchange.request, rule.guarded(change)))

    def error(self, code: ErrorCode | int | str) -> Rule:
        """Respond with an error code. If topic or partitions were chosen, only those fail and the rest is served."""
        error = error_code(code)

        def act(_: Rule, exchange: Exchange) -> Any:
            if self._match.selects_partitions:
                return PartitionErrors(self._match.covers, error).apply(exchange)
            response = exchange.error_response(exchange.request, error)
            return None if response is None else exchange.encode(response)

        return self._add("error", act)

    def delay(self, seconds: float) -> Rule:
        """Wait, by the cluster's clock, before the request is handled."""
        check_seconds(seconds)

        def act(_: Rule, exchange: Exchange) -> Any:
            return self._rules.hold(exchange, lambda serve: self._rules.clock.call_later(seconds, serve))

        return self._add("delay", act)

    def delay_response(self, seconds: float) -> Rule:
        """Handle the request at once and send its response later, by the cluster's clock."""
        check_seconds(seconds)

        def act(_: Rule, exchange: Exchange) -> Any:
            return delay_response(exchange, self._rules.clock, seconds)

        return self._add("delay_response", act)

    def sleep(self, *, out_of_order: bool = False) -> Rule:
        """Hold the request until `Rule.wake()`. Other connections are served meanwhile.

        With `out_of_order`, later requests of the same connection are handled too; their responses wait for this one.
        """

        def act(rule: Rule, exchange: Exchange) -> Any:
            if rule._awake:
                return NOT_HANDLED
            return self._rules.hold(exchange, rule._sleeping.append, out_of_order=out_of_order)

        return self._add("sleep", act)

    def drop_response(self) -> Rule:
        """Handle the request and never respond."""

        def act(_: Rule, exchange: Exchange) -> Any:
            return then(exchange.serve(exchange.request), release_parts)

        return self._add("drop_response", act)

    def drop_connection(self, *, after_handling: bool = False) -> Rule:
        """Close the connection without a response: before the request is handled, or after."""

        def act(_: Rule, exchange: Exchange) -> Any:
            if after_handling:
                return lose_response(exchange)
            exchange.close(abort=True)
            return None

        return self._add("drop_connection", act)

    def cut(self, after: int | None = None) -> Rule:
        """Send only the first `after` bytes of the response (half of it by default), and close the connection."""
        if after is not None and (not isinstance(after, int) or after < 0):
            raise ValueError(f"cut: {after!r} is not a number of bytes")

        def act(_: Rule, exchange: Exchange) -> Any:
            return cut_response(exchange, after)

        return self._add("cut", act)

    def corrupt(self, *positions: int, count: int = 1) -> Rule:
        """Invert bytes of the response body: at these positions (negative: from the end), or `count` random ones."""
        if not all(isinstance(number, int) for number in (*positions, count)) or count < 1:
            raise ValueError("corrupt: positions must be numbers, and count 1 or more")

        def act(rule: Rule, exchange: Exchange) -> Any:
            def invert(parts: Sequence[Part]) -> Sequence[Part]:
                body = sum(len(part) for part in parts) - LENGTH_AND_CORRELATION_ID
                chosen = positions or [self._rules.random.below(body) for _ in range(min(count, body))]
                for position in chosen:
                    if not -body <= position < body:
                        raise ValueError(f"corrupt: the response has {body} bytes, and none at {position}")
                frame = bytearray(join_parts(parts))
                for position in chosen:
                    frame[position if position < 0 else LENGTH_AND_CORRELATION_ID + position] ^= 0xFF
                return [bytes(frame)]

            return then(exchange.serve(exchange.request), rule.guarded(invert))

        return self._add("corrupt", act)

    def _add(self, action: str, act: Callable[[Rule, Exchange], Any]) -> Rule:
        return self._rules.add(self._match, action, self._times, act)


class Rules:
    """The rules of one cluster or one tap, tried in the order in which they were added."""

    def __init__(
        self, clock: Clock, random: Random, on_loop: Callable[[Callable[[], Any]], Any], events: Events = NO_EVENT_LOG
    ) -> None:
        self.clock = clock
        self.random = random
        self.on_loop = on_loop
        self.active: list[Rule] = []
        self.by_number: dict[int, Rule] = {}
        """All rules that have not been removed, also those that have acted `times` times."""
        self.received = ReceivedRequests()
        self._events = events
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    def on(
        self,
        api: Api | Collection[Api] | None = None,
        *,
        node: int | None = None,
        topic: str | None = None,
        partition: int | Collection[int] | None = None,
        client_id: str | None = None,
        times: int | None = 1,
        where: Callable[[ReceivedRequest], bool] | None = None,
    ) -> RuleBuilder:
        """Choose requests by these conditions; see `Cluster.on`."""
        check_conditions(node, topic, partition, client_id, times, where)
        match = RequestMatch(api_keys(api), node, topic, partition_set(partition), client_id, where)
        return RuleBuilder(self, match, times)

    def add(self, match: RequestMatch, action: str, times: int | None, act: Callable[[Rule, Exchange], Any]) -> Rule:
        """Activate a rule and return it."""

        def activate() -> Rule:
            rule = Rule(next(self._numbers), match, action, times, act, self)
            self.active.append(rule)
            self.by_number[rule.number] = rule
            return rule

        added: Rule = self.on_loop(activate)
        return added

    def drop(self, rule: Rule) -> None:
        """Deactivate a rule and serve the requests that it holds."""
        if rule in self.active:
            self.active.remove(rule)
        if self.by_number.get(rule.number) is rule:
            del self.by_number[rule.number]
        rule._wake()

    def clear(self) -> None:
        """Deactivate all rules, discard the received requests, and number new rules from 1."""
        for rule in list(self.by_number.values()):
            self.drop(rule)
        self.received.clear()
        self._numbers = itertools.count(1)

    def handle(self, exchange: Exchange) -> Answer:
        """Let the first rule that matches act on a request; serve the request if none does."""
        self.received.add(exchange.received)
        for rule in list(self.active):
            try:
                if not rule.match.matches(exchange):
                    continue
                result = rule._act(rule, exchange)
            except Exception as error:
                # The test's own function failed: `Rule.wait` raises it, and the request is served.
                rule._fail(error)
                result = NOT_HANDLED
            if result is NOT_HANDLED and rule.action != "observe":
                continue
            if rule.times is not None and rule.hits + 1 >= rule.times and rule in self.active:
                self.active.remove(rule)
            self._events.of_node(exchange.received.node).emit(
                "rule", rule=rule.number, action=rule.action, api=exchange.received.api
            )
            rule._hit(exchange.received)
            if result is not NOT_HANDLED:
                return result  # type: ignore[no-any-return]
        return exchange.serve(exchange.request)

    def hold(
        self, exchange: Exchange, wait: Callable[[Callable[[], None]], object], *, out_of_order: bool = False
    ) -> Pending[Sequence[Part]]:
        """Serve a request when `wait` calls its argument, unless the client has disconnected by then."""
        exchange.keep()
        answer: Pending[Sequence[Part]] = Pending(effect_applied=out_of_order)

        def serve() -> None:
            if not answer.settled:
                complete(answer, exchange.serve(exchange.request))

        wait(serve)
        return answer

    def answer_later(self, rule: Rule, exchange: Exchange, awaitable: Any) -> Pending[Sequence[Part]]:
        """Respond with what an awaitable returns; serve the request if that is None or an exception."""
        exchange.keep()
        answer: Pending[Sequence[Part]] = Pending()

        async def run() -> None:
            parts: Sequence[Part] | None = None
            try:
                response = await awaitable
                parts = None if response is None else exchange.encode(response)
            except Exception as error:
                rule._fail(error)
            if answer.settled:
                return
            if parts is None:
                complete(answer, exchange.serve(exchange.request))
            else:
                answer.complete(parts)

        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return answer
