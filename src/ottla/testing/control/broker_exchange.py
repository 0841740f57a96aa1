"""Rules in front of ottla's own broker: the `Exchange` of one request to one node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.protocol.api_table import ApiKey
from ottla.server.dispatch import find_api_name
from ottla.testing.control.requests import ReceivedRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.broker.session import Call
    from ottla.protocol.error_codes import ErrorCode
    from ottla.protocol.schema import Message
    from ottla.server.connection import Part
    from ottla.server.dispatch import Dispatch
    from ottla.server.server import NodeServer
    from ottla.testing.control.exchange import Answer, Edit
    from ottla.testing.control.rules import Rules


class NodeInterceptor:
    """Passes the requests of one node to the rules (`Dispatch.interceptor`)."""

    def __init__(self, rules: Rules, server: NodeServer) -> None:
        self._rules = rules
        self._server = server

    def handle(self, call: Call, request: Any, frame: memoryview, started: float) -> Answer:
        """Return the answer that the rules, or the broker if no rule acts, give to a request."""
        return self._rules.handle(BrokerExchange(self._rules, self._server, call, request, frame, started))


class BrokerExchange:
    """One request to ottla's broker; implements `Exchange`."""

    def __init__(
        self, rules: Rules, server: NodeServer, call: Call, request: Any, frame: memoryview, started: float
    ) -> None:
        session = call.session
        self.request = request
        self.received = ReceivedRequest(
            rules.clock.now_ms(),
            call.broker.node_id,
            session.id,
            f"{session.host}:{session.port}",
            call.client_id,
            session.principal,
            call.api_key,
            find_api_name(call.api_key),
            call.version,
            call.correlation_id,
            bytes(frame),
        )
        self._server = server
        self._call = call
        self._started = started

    @property
    def _dispatch(self) -> Dispatch:
        assert self._server.dispatch is not None
        return self._server.dispatch

    def keep(self) -> None:
        """Replace the request, which borrows the read buffer, by one that owns its bytes."""
        self.request = self.received.request

    def serve(self, request: Any, edit: Edit | None = None) -> Answer:
        """Let the broker handle the request."""
        return self._dispatch.respond(self._call, request, self._started, edit)

    def encode(self, response: Message) -> Sequence[Part]:
        """Return the frame of a response."""
        return self._dispatch.encode(self._call, self.request, response, self._started)

    def error_response(self, request: Any, code: ErrorCode) -> Any:
        """Return the response that reports an error for the whole request."""
        return self._dispatch.refusal(self._call, request, code)

    def close(self, *, abort: bool) -> None:
        """Close the client's connection."""
        for connection in self._server.connections:
            if connection.session is self._call.session:
                connection.reason = "a rule of a test"
                if abort:
                    connection.abort()
                else:
                    connection.drain()
                return

    def topic_name(self, topic_id: Any) -> str | None:
        """Return the name of the topic with this id, or None."""
        topic = self._call.broker.runtime.image.topics.get(topic_id)
        return None if topic is None else topic.name

    def topic_id(self, name: str) -> Any:
        """Return the id of the topic with this name, or None."""
        topic = self._call.broker.runtime.image.topic(name)
        return None if topic is None else topic.id

    def session_partitions(self) -> list[tuple[str, int]]:
        """Return the partitions of the request's fetch session (KIP-227)."""
        if self._call.api_key != ApiKey.FETCH:
            return []
        return [
            (self.topic_name(partition.topic_id) or partition.topic, partition.partition)
            for partition in self._call.broker.fetch_sessions.partitions_of(self.request.session_id)
        ]
