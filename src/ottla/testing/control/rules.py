"""Control functions: what a test does to single requests, in front of a broker or of any Kafka.

    control = cluster.on("Produce", topic="orders", partition=0, times=2).error("NOT_LEADER_OR_FOLLOWER")
    ...
    control.wait()

A rule says which requests, an action what happens to them. `Controls` knows neither sockets nor the broker: whoever
asks it brings an `Exchange`, which can do with one request whatever can be done with it.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ottla.pending import Pending
from ottla.protocol.api import APIS, find_api
from ottla.protocol.error_codes import ErrorCode
from ottla.protocol.schema import Struct
from ottla.testing.control.partition_errors import PartitionErrors, partitions_of
from ottla.testing.control.requests import RequestsSeen, SeenRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.events import Events
    from ottla.protocol.schema import Message
    from ottla.server.connection import Part
    from ottla.world.clock import Clock
    from ottla.world.random import Random

    Answer = Sequence[Part] | Pending[Sequence[Part]] | None

log = logging.getLogger(__name__)

T = TypeVar("T")
Api = str | int
Edit = Callable[[Any], Any]
NOT_HANDLED = object()
LENGTH_AND_CORRELATION = 8
LONGEST_SECONDS = 1e9


class Exchange(Protocol):
    """One request, and what can be done with it."""

    seen: SeenRequest
    request: Any

    def keep(self) -> None:
        """Copy what is borrowed: the request will be needed after this turn of the loop."""
        ...

    def serve(self, request: Any, edit: Edit | None = None) -> Answer:
        """Have it answered as if nobody had stepped in; `edit` may change the response before it is encoded."""
        ...

    def encode(self, response: Message) -> Sequence[Part]:
        """The frame of a response."""
        ...

    def refusal(self, request: Any, code: ErrorCode) -> Any:
        """The response that carries an error of the whole request."""
        ...

    def close(self, *, at_once: bool) -> None:
        """End the connection, now or when what is on its way has been sent."""
        ...

    def topic_name(self, topic_id: Any) -> str | None:
        """The name of a topic that the request has by its id."""
        ...

    def topic_id(self, name: str) -> Any:
        """The id of a topic, or None."""
        ...

    def fetched(self) -> list[tuple[str, int]]:
        """The partitions of the fetch session that the request belongs to."""
        ...


@dataclass(slots=True, frozen=True)
class Match:
    """Which requests a control function is for; what is not given does not matter."""

    apis: frozenset[int] | None = None
    node: int | None = None
    topic: str | None = None
    partitions: frozenset[int] | None = None
    client_id: str | None = None
    where: Callable[[SeenRequest], bool] | None = None

    def fits(self, exchange: Exchange) -> bool:
        """Whether a request is one of them."""
        seen = exchange.seen
        if self.apis is not None and seen.api_key not in self.apis:
            return False
        if self.node is not None and seen.node != self.node:
            return False
        if self.client_id is not None and seen.client_id != self.client_id:
            return False
        if self.topic is not None and not any(self.covers(*place) for place in partitions_of(exchange)):
            return False
        return self.where is None or self.where(seen)

    def covers(self, topic: str, index: int | None) -> bool:
        """Whether a partition is one of the chosen ones; a topic as a whole (None) is if any of its partitions is."""
        if self.topic is not None and topic != self.topic:
            return False
        return self.partitions is None or index is None or index in self.partitions

    @property
    def is_partial(self) -> bool:
        """Whether it is about some partitions, and not about requests as a whole."""
        return self.topic is not None


@dataclass(eq=False)
class Control:
    """A control function in force. Safe on any thread."""

    number: int
    match: Match
    action: str
    times: int | None
    _act: Callable[[Control, Exchange], Any] = field(repr=False)
    _owner: Controls = field(repr=False)
    hits: int = 0
    requests: list[SeenRequest] = field(default_factory=list, repr=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False)
    _sleeping: list[Callable[[], None]] = field(default_factory=list, repr=False)
    _awake: bool = False
    failure: Exception | None = None

    @property
    def active(self) -> bool:
        """Whether it will act again."""
        return self in self._owner.rules

    def wait(self, timeout: float = 60.0, hits: int = 1) -> list[SeenRequest]:
        """Wait until it has acted that often; returns the requests it acted on. TimeoutError if it does not happen.

        An exception that a function of the test's own has raised is raised here.
        """
        with self._changed:
            reached = self._changed.wait_for(lambda: self.hits >= hits or self.failure is not None, timeout)
            if self.failure is not None:
                raise self.failure
            if not reached:
                raise TimeoutError(f"{self.action} control {self.number}: {self.hits} of {hits} requests came")
            return list(self.requests)

    async def wait_async(self, timeout: float = 60.0, hits: int = 1) -> list[SeenRequest]:
        """The same without holding up the loop that a test runs on."""
        return await asyncio.to_thread(self.wait, timeout, hits)

    def remove(self) -> None:
        """Act no more; requests that sleep go on."""
        self._owner.on_loop(lambda: self._owner.drop(self))

    def keep(self) -> None:
        """Act on every request from now on, not only on the first ones."""
        self.times = None

    def wake(self) -> None:
        """Let requests that sleep go on, and those still to come pass."""
        self._owner.on_loop(self._wake)

    def _wake(self) -> None:
        self._awake = True
        waiting, self._sleeping = self._sleeping, []
        for go_on in waiting:
            go_on()

    def guarded(self, change: Callable[[T], T]) -> Callable[[T], Any]:
        """A function of the test's own that is called later: what it raises is told where the test waits.

        What was to be changed then stays as it is.
        """

        def run(value: T) -> T:
            try:
                return change(value)
            except Exception as error:
                self._fail(error)
                return value

        return run

    def _fail(self, error: Exception) -> None:
        log.error("the %s control %d failed", self.action, self.number, exc_info=error)
        with self._changed:
            self.failure = error
            self._changed.notify_all()

    def _hit(self, seen: SeenRequest) -> None:
        with self._changed:
            self.hits += 1
            self.requests.append(seen)
            self._changed.notify_all()


class Rule:
    """Requests that were chosen; the methods say what happens to them, and put that in force."""

    def __init__(self, controls: Controls, match: Match, times: int | None) -> None:
        self._controls = controls
        self._match = match
        self._times = times

    def observe(self, look: Callable[[SeenRequest], object] | None = None) -> Control:
        """Look on, and change nothing. `look` is called on the cluster's thread."""
        if look is not None:
            _check_function(look)

        def act(_: Control, exchange: Exchange) -> Any:
            if look is not None:
                look(exchange.seen)
            return NOT_HANDLED

        return self._add("observe", act)

    def answer(self, answer: Message | Callable[[SeenRequest], Any]) -> Control:
        """Answer in place of the broker: with a response, or with what a function of the request returns.

        A function that returns None leaves the request alone and is not used up. It may be a coroutine function: then
        the request sleeps while others go on.
        """
        if not isinstance(answer, Struct):
            _check_function(answer)

        def act(control: Control, exchange: Exchange) -> Any:
            made = answer(exchange.seen) if callable(answer) else answer
            if inspect.isawaitable(made):
                return self._controls.later(control, exchange, made)
            return NOT_HANDLED if made is None else exchange.encode(made)

        return self._add("answer", act)

    def edit(self, change: Callable[[Any], Any]) -> Control:
        """Let the broker answer, and change its response: `change` gets the message and returns one."""
        _check_function(change)
        return self._add("edit", lambda control, exchange: exchange.serve(exchange.request, control.guarded(change)))

    def error(self, code: ErrorCode | int | str) -> Control:
        """Answer an error code. With a topic, or partitions of it, only these fail and the rest is served."""
        wanted = error_code(code)

        def act(_: Control, exchange: Exchange) -> Any:
            if self._match.is_partial:
                return PartitionErrors(self._match.covers, wanted).apply(exchange)
            response = exchange.refusal(exchange.request, wanted)
            return None if response is None else exchange.encode(response)

        return self._add("error", act)

    def delay(self, seconds: float) -> Control:
        """Let the request wait for so long, by the cluster's clock, before it is handled."""
        check_seconds(seconds)

        def act(_: Control, exchange: Exchange) -> Any:
            return self._controls.hold(exchange, lambda go: self._controls.clock.call_later(seconds, go))

        return self._add("delay", act)

    def delay_response(self, seconds: float) -> Control:
        """Handle the request at once, and let its answer wait for so long."""
        check_seconds(seconds)

        def act(_: Control, exchange: Exchange) -> Any:
            def held(parts: Sequence[Part]) -> Pending[Sequence[Part]]:
                later: Pending[Sequence[Part]] = Pending(effect_applied=True)
                self._controls.clock.call_later(seconds, _pass_on, parts, later)
                return later

            return _then(exchange.serve(exchange.request), held)

        return self._add("delay response", act)

    def sleep(self, *, out_of_order: bool = False) -> Control:
        """Let the request wait until `wake()`. Other connections go on; with `out_of_order`, later requests of the
        same connection are handled too, and their answers wait for this one.
        """

        def act(control: Control, exchange: Exchange) -> Any:
            if control._awake:
                return NOT_HANDLED
            return self._controls.hold(exchange, control._sleeping.append, out_of_order=out_of_order)

        return self._add("sleep", act)

    def drop_response(self) -> Control:
        """Handle the request, and never answer it."""

        def act(_: Control, exchange: Exchange) -> Any:
            return _then(exchange.serve(exchange.request), _let_go)

        return self._add("drop response", act)

    def drop_connection(self, *, after_handling: bool = False) -> Control:
        """End the connection: without having handled the request, or having handled it and not answered."""

        def act(_: Control, exchange: Exchange) -> Any:
            def end(parts: Sequence[Part]) -> None:
                _let_go(parts)
                exchange.close(at_once=True)

            if after_handling:
                return _then(exchange.serve(exchange.request), end)
            exchange.close(at_once=True)
            return None

        return self._add("drop connection", act)

    def cut(self, after: int | None = None) -> Control:
        """Send the first bytes of the answer, half of them unless `after` says how many, and end the connection."""
        if after is not None and (not isinstance(after, int) or after < 0):
            raise ValueError(f"cut: {after!r} is no number of bytes")

        def act(_: Control, exchange: Exchange) -> Any:
            def shorten(parts: Sequence[Part]) -> Sequence[Part]:
                frame = _whole(parts)
                exchange.close(at_once=False)
                return [frame[: len(frame) // 2 if after is None else after]]

            return _then(exchange.serve(exchange.request), shorten)

        return self._add("cut", act)

    def corrupt(self, *positions: int, count: int = 1) -> Control:
        """Change bytes of the answer: at these positions of its body (negative: from its end), or `count` of any."""
        if not all(isinstance(each, int) for each in (*positions, count)) or count < 1:
            raise ValueError("corrupt: positions are numbers, and count is 1 or more")

        def act(control: Control, exchange: Exchange) -> Any:
            def spoil(parts: Sequence[Part]) -> Sequence[Part]:
                body = sum(len(part) for part in parts) - LENGTH_AND_CORRELATION
                where = positions or [self._controls.random.below(body) for _ in range(min(count, body))]
                for position in where:
                    if not -body <= position < body:
                        raise ValueError(f"corrupt: the answer has {body} bytes, and none at {position}")
                frame = bytearray(_whole(parts))
                for position in where:
                    frame[position if position < 0 else LENGTH_AND_CORRELATION + position] ^= 0xFF
                return [bytes(frame)]

            return _then(exchange.serve(exchange.request), control.guarded(spoil))

        return self._add("corrupt", act)

    def _add(self, action: str, act: Callable[[Control, Exchange], Any]) -> Control:
        return self._controls.add(self._match, action, self._times, act)


class Controls:
    """The control functions of one cluster, or of one tap. The rules are tried in the order of their making."""

    def __init__(
        self, clock: Clock, random: Random, on_loop: Callable[[Callable[[], Any]], Any], events: Events | None = None
    ) -> None:
        self.clock = clock
        self.random = random
        self.on_loop = on_loop
        self.rules: list[Control] = []
        self.seen = RequestsSeen()
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
        where: Callable[[SeenRequest], bool] | None = None,
    ) -> Rule:
        """Choose requests: by API, node, topic, partitions of it, client id, and how often; None is always."""
        if partition is not None and topic is None:
            raise ValueError("partition= says nothing without topic=")
        if times is not None and (not isinstance(times, int) or times < 1):
            raise ValueError("times= is 1 or more, or None for always")
        partitions = None
        if partition is not None:
            partitions = frozenset([partition] if isinstance(partition, int | str) else partition)
            if not all(isinstance(each, int) for each in partitions):
                raise ValueError(f"partition= is a number or several, not {partition!r}")
        for name, value, kind in (("node", node, int), ("topic", topic, str), ("client_id", client_id, str)):
            if value is not None and not isinstance(value, kind):
                raise ValueError(f"{name}= is of type {kind.__name__}, not {value!r}")
        if where is not None and not callable(where):
            raise ValueError("where= is a function of the request")
        return Rule(self, Match(api_keys(api), node, topic, partitions, client_id, where), times)

    def add(self, match: Match, action: str, times: int | None, act: Callable[[Control, Exchange], Any]) -> Control:
        """Put a control function in force."""
        control = Control(next(self._numbers), match, action, times, act, self)
        self.on_loop(lambda: self.rules.append(control))
        return control

    def drop(self, control: Control) -> None:
        """Let a control function act no more."""
        if control in self.rules:
            self.rules.remove(control)
        control._wake()

    def clear(self) -> None:
        """Drop all, and forget the requests that were seen."""
        for control in list(self.rules):
            self.drop(control)
        self.seen.clear()

    def handle(self, exchange: Exchange) -> Answer:
        """Let the first control function that fits decide; if there is none, the request is served."""
        self.seen.add(exchange.seen)
        for control in list(self.rules):
            try:
                if not control.match.fits(exchange):
                    continue
                result = control._act(control, exchange)
            except Exception as error:
                # A mistake of the test: it is told where the test waits, and the request is served.
                control._fail(error)
                result = NOT_HANDLED
            if result is NOT_HANDLED and control.action != "observe":
                continue
            if control.times is not None and control.hits + 1 >= control.times and control in self.rules:
                self.rules.remove(control)
            if self._events is not None:
                self._events.of_node(exchange.seen.node).emit(
                    "control", control=control.number, action=control.action, api=exchange.seen.api
                )
            control._hit(exchange.seen)
            if result is not NOT_HANDLED:
                return result  # type: ignore[no-any-return]
        return exchange.serve(exchange.request)

    def hold(
        self, exchange: Exchange, wait: Callable[[Callable[[], None]], object], *, out_of_order: bool = False
    ) -> Pending[Sequence[Part]]:
        """Serve a request when `wait` calls back, unless its client is gone by then."""
        exchange.keep()
        answer: Pending[Sequence[Part]] = Pending(effect_applied=out_of_order)

        def go_on() -> None:
            if not answer.settled:
                _pass_on(exchange.serve(exchange.request), answer)

        wait(go_on)
        return answer

    def later(self, control: Control, exchange: Exchange, made: Any) -> Pending[Sequence[Part]]:
        """Answer with what a coroutine returns; with None the request is served then."""
        exchange.keep()
        answer: Pending[Sequence[Part]] = Pending()

        async def run() -> None:
            parts: Sequence[Part] | None = None
            try:
                response = await made
                parts = None if response is None else exchange.encode(response)
            except Exception as error:
                control._fail(error)
            if answer.settled:
                return
            if parts is None:
                _pass_on(exchange.serve(exchange.request), answer)
            else:
                answer.complete(parts)

        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return answer


def api_keys(api: Api | Collection[Api] | None) -> frozenset[int] | None:
    """The keys of APIs that are given by name or key, one or several."""
    if api is None:
        return None
    if isinstance(api, str | int):
        return frozenset([_api_key(api)])
    return frozenset(_api_key(each) for each in api)


def _api_key(api: Api) -> int:
    if isinstance(api, int):
        if find_api(api) is not None:
            return int(api)
    elif isinstance(api, str):
        wanted = api.replace("_", "").replace("-", "").lower()
        for known in APIS:
            if known.name.lower() == wanted:
                return known.key
    raise ValueError(f"Kafka has no API {api!r}; use a name such as Fetch, or a key such as 1")


def error_code(code: ErrorCode | int | str) -> ErrorCode:
    """An error code that is given by name or number."""
    try:
        return ErrorCode[code] if isinstance(code, str) else ErrorCode(code)
    except (KeyError, ValueError):
        raise ValueError(f"Kafka has no error {code!r}; use a name such as NOT_LEADER_OR_FOLLOWER") from None


def check_seconds(seconds: float) -> float:
    """Refuse what is no length of time."""
    if not isinstance(seconds, int | float) or not 0 <= seconds < LONGEST_SECONDS:
        raise ValueError(f"{seconds!r} is no number of seconds")
    return seconds


def _check_function(function: object) -> None:
    if not callable(function):
        raise ValueError(f"{function!r} is no function")


# What is done to answers


def _then(answer: Answer, change: Callable[[Sequence[Part]], Any]) -> Answer:
    """What `change` makes of an answer, at once or when it comes; None of it means that nothing is sent."""
    if answer is None:
        return None
    if not isinstance(answer, Pending):
        changed: Answer = change(answer)
        return changed
    later: Pending[Sequence[Part]] = Pending(answer.cancel, effect_applied=answer.effect_applied)

    def known(parts: Sequence[Part]) -> None:
        _pass_on(change(parts), later)

    answer.on_complete(known)
    return later


def _pass_on(answer: Answer, to: Pending[Sequence[Part]]) -> None:
    if isinstance(answer, Pending):
        answer.on_complete(to.complete)
    elif not to.settled:
        to.complete(() if answer is None else answer)


def _let_go(parts: Sequence[Part]) -> None:
    for part in parts:
        if not isinstance(part, bytes | bytearray | memoryview):
            part.release()


def _whole(parts: Sequence[Part]) -> bytes:
    """The bytes of an answer, files read."""
    found = []
    for part in parts:
        if isinstance(part, bytes | bytearray | memoryview):
            found.append(bytes(part))
        else:
            found.append(part.read(0, len(part)))
            part.release()
    return b"".join(found)
