"""Control functions in front of ottla's own broker: what an exchange is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.protocol.api_table import ApiKey
from ottla.server.dispatch import find_api_name
from ottla.testing.control.requests import SeenRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.broker.session import Call
    from ottla.protocol.error_codes import ErrorCode
    from ottla.protocol.schema import Message
    from ottla.server.connection import Part
    from ottla.server.dispatch import Dispatch
    from ottla.server.server import NodeServer
    from ottla.testing.control.rules import Answer, Controls, Edit


class NodeControl:
    """Brings the requests of one node before the control functions."""

    def __init__(self, controls: Controls, server: NodeServer) -> None:
        self._controls = controls
        self._server = server

    def handle(self, call: Call, request: Any, frame: memoryview, started: float) -> Answer:
        """What the control functions make of a request."""
        return self._controls.handle(BrokerExchange(self._controls, self._server, call, request, frame, started))


class BrokerExchange:
    """One request to ottla's broker."""

    def __init__(
        self, controls: Controls, server: NodeServer, call: Call, request: Any, frame: memoryview, started: float
    ) -> None:
        session = call.session
        self.request = request
        self.seen = SeenRequest(
            controls.clock.now_ms(),
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
        """Copy what is borrowed."""
        self.request = self.seen.request

    def serve(self, request: Any, edit: Edit | None = None) -> Answer:
        """Let the broker answer."""
        return self._dispatch.answer(self._call, request, self._started, edit)

    def encode(self, response: Message) -> Sequence[Part]:
        """The frame of a response."""
        return self._dispatch.encode(self._call, self.request, response, self._started)

    def refusal(self, request: Any, code: ErrorCode) -> Any:
        """The response that carries an error of the whole request."""
        return self._dispatch.refusal(self._call, request, code)

    def close(self, *, at_once: bool) -> None:
        """End the connection."""
        for connection in self._server.connections:
            if connection.session is self._call.session:
                connection.reason = "a control function"
                if at_once:
                    connection.abort()
                else:
                    connection.drain()
                return

    def topic_name(self, topic_id: Any) -> str | None:
        """The name of a topic."""
        topic = self._call.broker.cluster.image.topics.get(topic_id)
        return None if topic is None else topic.name

    def topic_id(self, name: str) -> Any:
        """The id of a topic."""
        topic = self._call.broker.cluster.image.topic(name)
        return None if topic is None else topic.id

    def fetched(self) -> list[tuple[str, int]]:
        """The partitions of the request's fetch session."""
        if self._call.api_key != ApiKey.FETCH:
            return []
        return [
            (self.topic_name(each.topic_id) or each.topic, each.partition)
            for each in self._call.broker.fetch_sessions.partitions_of(self.request.session_id)
        ]
