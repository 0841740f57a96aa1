"""Decodes frames, calls handlers and encodes responses; Kafka's KafkaApis. Counts and reports requests."""

from __future__ import annotations

import logging
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.metadata.topic_cache import EncodedMetadata
from ottla.broker.session import LARGE_FRAME, Call, Disconnect
from ottla.broker.throttle import throttle
from ottla.handlers.registry import Api, apis, kafka_error
from ottla.handlers.splitting import DIVIDED_BYTES, dispose, join
from ottla.pending import Pending
from ottla.pieces import PIECE, run_in_pieces
from ottla.protocol.api import find_api, request_class
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.messages.k18_api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.schema import Message, owned
from ottla.security.sasl.conversation import Event, IllegalStepError, State
from ottla.security.sasl.mechanism import SaslError
from ottla.server.connection import BadFrameError, Part
from ottla.server.produce_skim import has_few_partitions
from ottla.server.request_events import RequestEvents

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.broker.broker import Broker
    from ottla.broker.session import Session
    from ottla.handlers.splitting import Split
    from ottla.security.sasl.conversation import Conversation
    from ottla.server.metrics import RequestMetrics

log = logging.getLogger(__name__)

HEADER = Struct(">hhih")  # API key, version, correlation id, length of the client id
ANSWER = Struct(">ii")
FLEXIBLE_ANSWER = Struct(">iib")
API_VERSIONS = 18
FLEXIBLE_API_VERSIONS = 3
SASL_APIS = frozenset({17, 36})
BARE_LENGTH = Struct(">i")
PRODUCE = 0
INLINE_DECODED_BYTES = 64 * 1024  # a larger request may have thousands of elements and is decoded in a worker


class Route:
    """Facts about one API at one version, computed once."""

    __slots__ = ("api", "check", "decode", "flexible_request", "flexible_response", "split", "version")

    def __init__(self, api: Api, version: int) -> None:
        request = request_class(api.key)
        self.api = api
        self.check = api.acl.check
        self.split = api.split
        self.version = version
        self.decode = request.view_decoder(version)
        self.flexible_request = version in request.__schema__.flexible
        # KIP-511: a client must be able to read this header before it has the broker's versions.
        self.flexible_response = self.flexible_request and api.key != API_VERSIONS


class RequestInterceptor(Protocol):
    """Intercepts requests before their handler; the test kit implements it."""

    def handle(
        self, call: Call, request: Any, frame: memoryview, started: float
    ) -> Sequence[Part] | Pending[Sequence[Part]] | None:
        """Respond in place of the broker, or call `Dispatch.respond` and change its response."""
        ...


class Dispatch:
    """Handles the frames of one node."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._apis = apis(broker.runtime.release)
        self._routes: dict[tuple[int, int], Route] = {}
        self.interceptor: RequestInterceptor | None = None
        self.metrics: RequestMetrics | None = None
        self._clock = broker.runtime.world.clock
        self._workers = broker.runtime.world.workers
        self._quotas = broker.quotas
        self._events = None
        if broker.events.enabled:
            self._events = RequestEvents(broker, broker.events, broker.runtime.world.clock)

    def handle(self, session: Session, frame: memoryview) -> Sequence[Part] | Pending[Sequence[Part]] | None:
        """Handle one frame, which is valid only during the call."""
        conversation = session.conversation
        if conversation is not None and conversation.state is State.BARE_TOKENS:
            return self._bare_token(session, conversation, bytes(frame))
        if len(frame) < HEADER.size:
            raise BadFrameError(f"a request of {len(frame)} bytes is shorter than its header")
        key, version, correlation_id, client_id_length = HEADER.unpack_from(frame)
        route = self._routes.get((key, version)) or self._route(key, version)
        if route is None:
            _client_id(frame, client_id_length, version >= FLEXIBLE_API_VERSIONS)
            return _unsupported_api_versions(self._apis[API_VERSIONS], correlation_id)
        if conversation is not None:
            _admit(conversation, key)
        if len(frame) > INLINE_DECODED_BYTES and not (key == PRODUCE and self._is_quick(frame, route)):
            return self._decode_in_worker(session, route, frame)
        client_id, request = _decode(frame, route)
        return self._handle_request(session, route, frame, correlation_id, client_id, request)

    def _is_quick(self, frame: memoryview, route: Route) -> bool:
        """Return whether a large Produce request is large because of its records, and so quick to decode."""
        _, position = _client_id(frame, HEADER.unpack_from(frame)[3], False)
        return has_few_partitions(frame, position, route.version, route.flexible_request)

    def _decode_in_worker(self, session: Session, route: Route, frame: memoryview) -> Pending[Sequence[Part]]:
        """Decode a large request in a worker; the connection's next request waits for its response."""
        correlation_id = HEADER.unpack_from(frame)[2]
        if len(frame) <= LARGE_FRAME:
            frame = memoryview(bytearray(frame))  # a larger frame has its own buffer
        inner: list[Pending[Sequence[Part]]] = []
        pending: Pending[Sequence[Part]] = Pending(lambda: inner[0].cancel() if inner else None)

        def decoded(result: tuple[str | None, Any] | None, error: Exception | None) -> None:
            if pending.settled:
                return
            try:
                if error is not None:
                    raise error
                assert result is not None
                response = self._handle_request(session, route, frame, correlation_id, *result)
            except BadFrameError as problem:
                session.close(str(problem))
                return
            if isinstance(response, Pending):
                inner.append(response)
                response.on_complete(pending.complete)
            else:
                pending.complete(response or [])

        self._workers.submit_request(lambda: _decode(frame, route), decoded)
        return pending

    def _handle_request(
        self,
        session: Session,
        route: Route,
        frame: memoryview,
        correlation_id: int,
        client_id: str | None,
        request: Any,
    ) -> Sequence[Part] | Pending[Sequence[Part]] | None:
        session.client_id = client_id
        key, version = route.api.key, route.version
        call = Call(self._broker, session, key, version, correlation_id, client_id, len(frame), route)
        if self._quotas.active:
            call.began = self._clock.monotonic()
        started = 0.0
        if self.metrics is not None:
            self.metrics.received(key, len(frame))
            started = self._clock.monotonic()
        if self._events is not None:
            started = self._events.request(call, find_api_name(key), request, len(frame))
        if self.interceptor is not None:
            return self.interceptor.handle(call, request, frame, started)
        return self.respond(call, request, started)

    def respond(
        self, call: Call, request: Any, started: float, edit: Callable[[Any], Any] | None = None
    ) -> Sequence[Part] | Pending[Sequence[Part]] | None:
        """Call the handler and return the encoded response, after `edit` has changed it."""
        route: Route = call.route
        try:
            if route.check is not None:
                route.check(call, request)
            if route.split is not None and call.size > DIVIDED_BYTES and route.split.is_large(request):
                response = self._handle_parts(call, request, route.split)
            else:
                response = route.api.handler(call, request)
        except Disconnect as reason:
            raise BadFrameError(str(reason)) from reason
        except Exception as error:
            response = self._failed(route, request, error)
        if isinstance(response, Pending) and response.done:
            response = response.response
        if self._quotas.active:
            if response is None:
                throttle(call, None)
            elif not isinstance(response, Pending):
                response = throttle(call, response)
            else:
                handled = self._clock.monotonic() - call.began
                response = response.map(lambda response: throttle(call, response, handled))
        if response is None:
            return None
        if isinstance(response, Pending):
            encoded: Pending[Sequence[Part]] = Pending(response.cancel, effect_applied=response.effect_applied)

            def completed(response: Any) -> None:
                if response is None:  # acks=0
                    encoded.complete([])
                    return
                parts = self._encode(call, request, response, started, edit)
                if isinstance(parts, Pending):
                    parts.on_complete(encoded.complete)
                else:
                    encoded.complete(parts)

            response.on_complete(completed)
            return encoded
        return self._encode(call, request, response, started, edit)

    def _handle_parts(self, call: Call, request: Any, split: Split) -> Pending[Any]:
        """Handle a large request in parts, each on its own turn of the loop, and join their responses."""
        refused: KafkaError | None = None
        try:
            if split.check is not None:
                split.check(call, request)
        except KafkaError as error:
            refused = error
        parts = split.parts(request)
        joined: Any = None
        waiting: Pending[Any] | None = None
        continued = False
        call.large_response = True

        def cancel() -> None:
            if waiting is not None:
                waiting.cancel()

        pending: Pending[Any] = Pending(cancel)

        def handle_next() -> None:
            nonlocal waiting, continued
            work = 0
            while work < PIECE and not pending.settled:
                part = next(parts, None)
                if part is None:
                    pending.complete(joined)
                    return
                if isinstance(part, int):
                    work += part
                    continue
                try:
                    continued = part.continued
                    response = self._handle_part(call, part.request, refused)
                except Disconnect as reason:
                    pending.cancel()
                    call.session.close(str(reason))
                    return
                work = PIECE
                if isinstance(response, Pending) and not response.done:
                    waiting = response
                    response.on_complete(handled_part)
                    return
                if take(response.response if isinstance(response, Pending) else response):
                    return
            if not pending.settled:
                self._clock.call_soon(handle_next)

        def handled_part(response: Any) -> None:
            if not take(response):
                self._clock.call_soon(handle_next)

        def take(response: Any) -> bool:
            """Join a part's response; return whether it is an error of the whole request, which ends it."""
            nonlocal joined
            if getattr(response, "error_code", ErrorCode.NONE) != ErrorCode.NONE:
                pending.complete(response)
                return True
            joined = join(joined, response, continued)
            return False

        self._clock.call_soon(handle_next)
        return pending

    def _handle_part(self, call: Call, part: Any, refused: KafkaError | None) -> Any:
        route: Route = call.route
        try:
            if refused is not None:
                raise refused
            return route.api.handler(call, part)
        except Disconnect:
            raise
        except Exception as error:
            return self._failed(route, part, error)

    def _encode(
        self, call: Call, request: Any, response: Any, started: float, edit: Callable[[Any], Any] | None
    ) -> Sequence[Part] | Pending[Sequence[Part]]:
        """Encode a response after `edit` has changed it; a large one in a worker."""
        if edit is not None:
            response = edit(owned(_message(call, response)))
        if not call.large_response:
            return self.encode(call, request, response, started)
        encoded: Pending[Sequence[Part]] = Pending()

        def done(parts: list[Part] | None, error: Exception | None) -> None:
            if parts is None:
                assert error is not None
                failed = self._failed(call.route, request, error)
                encoded.complete(self.encode(call, request, failed, started))
            else:
                encoded.complete(self._framed(call, response, parts, started))
                if isinstance(response, Message):
                    run_in_pieces(self._clock, dispose(response), lambda error: None)

        self._workers.submit_request(lambda: response.encode_parts(call.version), done)
        return encoded

    def refusal(self, call: Call, request: Any, code: ErrorCode) -> Any:
        """Return the response that carries an error of the whole request."""
        return call.route.api.on_error(request, call.version, code, None)

    def _bare_token(
        self, session: Session, conversation: Conversation, token: bytes
    ) -> Sequence[Part] | Pending[Sequence[Part]]:
        """Handle a SASL token without a header, after SaslHandshake v0; a failure gets no response."""
        try:
            response, _ = conversation.token(token, bare=True)
        except SaslError as error:
            log.info("%s:%d failed to authenticate: %s", session.host, session.port, error)
            nothing: Sequence[Part] = []
            return self._broker.after_failed_authentication(session, nothing)
        if conversation.authenticated:
            session.authenticated_by(conversation)
        return [BARE_LENGTH.pack(len(response)), response]

    def _route(self, key: int, version: int) -> Route | None:
        """Return the route of a request's first occurrence; None for an unknown version of ApiVersions."""
        api = self._apis.get(key)
        if api is None:
            raise BadFrameError(f"unknown API {key} (version {version})")
        if version not in api.versions:
            if key == API_VERSIONS:
                return None
            raise BadFrameError(
                f"{api.name} (API {key}) in version {version}, served are {api.versions[0]} to {api.versions[-1]}"
            )
        route = self._routes[key, version] = Route(api, version)
        return route

    def _failed(self, route: Route, request: Any, error: Exception) -> Any:
        code, message = kafka_error(error)
        if code == ErrorCode.UNKNOWN_SERVER_ERROR:
            log.exception("%s v%d failed on %r", route.api.name, route.version, request)
        try:
            return route.api.on_error(request, route.version, code, message)
        except Disconnect as reason:
            raise BadFrameError(str(reason)) from reason

    def encode(self, call: Call, request: Any, response: Any, started: float) -> Sequence[Part]:
        """Return the frame of a response."""
        route: Route = call.route
        try:
            parts: list[Part] = response.encode_parts(route.version)
        except ProtocolError as error:
            response = self._failed(route, request, error)
            parts = response.encode_parts(route.version)
        return self._framed(call, response, parts, started)

    def _framed(self, call: Call, response: Any, parts: list[Part], started: float) -> Sequence[Part]:
        """Put length and header before an encoded response, and count it."""
        route: Route = call.route
        size = len(parts[0]) if len(parts) == 1 else sum([len(part) for part in parts])
        if self.metrics is not None:
            self.metrics.responded(call.api_key, size, self._clock.monotonic() - started)
        if self._events is not None:
            self._events.response(call, find_api_name(call.api_key), _message(call, response), size, started)
        if route.flexible_response:
            parts.insert(0, FLEXIBLE_ANSWER.pack(5 + size, call.correlation_id, 0))
        else:
            parts.insert(0, ANSWER.pack(4 + size, call.correlation_id))
        return parts


def _message(call: Call, response: Any) -> Any:
    """Return a response as a message, also where it was encoded ahead."""
    return response.decoded(call.version) if isinstance(response, EncodedMetadata) else response


def find_api_name(key: int) -> str:
    """Return the name of an API as Kafka writes it."""
    api = find_api(key)
    return str(key) if api is None else api.name


def _admit(conversation: Conversation, key: int) -> None:
    """Raise BadFrameError for a request that the authentication state forbids; SASL handlers check themselves."""
    if key in SASL_APIS:
        return
    if conversation.expired:
        raise BadFrameError(
            "the session has expired and the client did not re-authenticate (connections.max.reauth.ms)"
        )
    try:
        conversation.step(Event.API_VERSIONS if key == API_VERSIONS else Event.OTHER)
    except IllegalStepError as error:
        raise BadFrameError(f"API {key} before authentication: {error}") from error


def _decode(frame: memoryview, route: Route) -> tuple[str | None, Any]:
    """Return the client id and the request of a frame."""
    client_id, position = _client_id(frame, HEADER.unpack_from(frame)[3], route.flexible_request)
    try:
        # Ignore trailing bytes, as Kafka does: librdkafka's request for all topics has some.
        request, _ = route.decode(frame, position, False)
    except ProtocolError as error:
        raise BadFrameError(str(error)) from error
    return client_id, request


def _client_id(frame: memoryview, length: int, flexible: bool) -> tuple[str | None, int]:
    """Return the client id and the position after the request header, with its tagged fields in flexible versions."""
    position = HEADER.size
    client_id = None
    if length >= 0:
        position += length
        if position > len(frame):
            raise BadFrameError(f"a client id of {length} bytes in a request of {len(frame)}")
        client_id = str(frame[HEADER.size : position], "utf-8", "replace")
    if flexible:
        if position < len(frame) and frame[position] == 0:
            return client_id, position + 1
        position = _skip_tags(frame, position)
    return client_id, position


def _skip_tags(frame: memoryview, position: int) -> int:
    from ottla.protocol.messages.header import RequestHeader

    try:
        return int(RequestHeader.decode_from(frame, 0, 2)[1])
    except ProtocolError as error:
        raise BadFrameError(str(error)) from error


def _unsupported_api_versions(api: Api, correlation_id: int) -> Sequence[Part]:
    """Return the supported versions in the format of version 0, which any client can read (KIP-511)."""
    versions = ApiVersion(api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[-1])
    body = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[versions]).encode(0)
    return [ANSWER.pack(4 + len(body), correlation_id), body]
