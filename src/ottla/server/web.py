"""The HTTP server of a broker process: one ASGI stack and one access policy for everything that is served over HTTP.

Importing this module loads Starlette and uvicorn (about 0.1 s of processor time), so callers import it only when an
HTTP port is requested. The applications themselves (control API, metrics) are lists of Starlette routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import h11
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import Server

from ottla.security.tls import TlsError, load_key, server_context
from ottla.server.web_options import host_name, is_loopback

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Sequence

    from starlette.requests import Request
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ottla.security.tls import TlsSettings
    from ottla.server.web_options import WebOptions

T = TypeVar("T")
log = logging.getLogger(__name__)

METRICS_PATH: Final = "/metrics"
METRICS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
RENEWAL_SECONDS: Final = 5.0
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
FORM_CONTENT_TYPES: Final = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
"""The content types that a page of another site may send without a CORS preflight ("simple" requests)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one HTTP client may use."""

    head_bytes: int = 64 * 1024
    body_bytes: int = 16 * 1024 * 1024
    read_seconds: float = 60.0
    """Time to send a request head, and then time to send the body."""
    idle_seconds: int = 60
    """Seconds that a keep-alive connection may stay idle."""
    linger_seconds: float = 5.0
    """Seconds for which input is discarded after a response that was sent before the request was read completely."""
    connections: int = 1000


DEFAULT_LIMITS: Final = Limits()


class WebServer:
    """An HTTP server on the running event loop: `bind`, then `serve` routes, then `stop`.

    Between `bind` and `serve` clients can connect and wait for their responses. `AccessGate` decides which requests
    reach the routes.

        server = WebServer(WebOptions("127.0.0.1", 0))
        url = server.bind()
        await server.serve([Route("/hello", hello)])
        ...
        await server.stop()
    """

    def __init__(self, options: WebOptions, limits: Limits = DEFAULT_LIMITS) -> None:
        self._options = options
        self._limits = limits
        self._socket: socket.socket | None = None
        self._server: Server | None = None
        self._gate: AccessGate | None = None
        self._context: ssl.SSLContext | None = None
        self._renewal: asyncio.TimerHandle | None = None
        self.url = ""

    def bind(self) -> str:
        """Open the listening socket and return the URL; port 0 takes a free port. OSError if it cannot be bound."""
        host, port = self._options.host, self._options.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        tls = self._options.tls
        if tls is not None:
            self._context = server_context(tls)
        scheme = "http" if tls is None else "https"
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=512)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {_url(scheme, host, port)}: {error.strerror}") from error
        # Connections inherit it. asyncio would set it only on sockets that name their protocol, and without it each
        # response waits for the client's delayed acknowledgement of its head: 40 ms.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.url = _url(scheme, host, self._socket.getsockname()[1])
        if not is_loopback(host) and tls is None:
            log.warning("%s is reachable from other machines, unencrypted", self.url)
        return self.url

    async def serve(
        self, routes: Sequence[BaseRoute], refuse: Callable[[HTTPException], Response] | None = None
    ) -> None:
        """Start to answer requests with these routes; `refuse` makes the responses of refused requests."""
        if self._socket is None:
            self.bind()
        assert self._socket is not None
        refuse = refuse or _json_response
        app = Starlette(routes=routes, exception_handlers={HTTPException: lambda _, problem: refuse(problem)})
        self._gate = AccessGate(app, self._options, self._limits, refuse)
        limits = self._limits

        class Protocol(_HttpProtocol):
            read_seconds = limits.read_seconds
            linger_seconds = limits.linger_seconds

        config = Config(
            self._gate,
            http=Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            limit_concurrency=limits.connections,
            timeout_keep_alive=limits.idle_seconds,
            h11_max_incomplete_event_size=limits.head_bytes,
        )
        config.load()
        config.ssl = self._context
        if self._options.tls is not None:
            self._watch_certificate(self._options.tls, self._options.tls.stamps())
        self._server = Server(config)
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self._socket])

    def _watch_certificate(self, tls: TlsSettings, loaded: list[tuple[str, int, int]]) -> None:
        """Load the certificate again if its file has changed; new connections use it."""
        stamps = tls.stamps()
        if stamps != loaded:
            try:
                server_context(tls)  # a file that is half written leaves the old certificate in use
                assert self._context is not None
                load_key(self._context, tls)
                log.info("%s has a new certificate", self.url)
            except TlsError as error:
                log.error("%s keeps its old certificate: %s", self.url, error)
        loop = asyncio.get_running_loop()
        self._renewal = loop.call_later(RENEWAL_SECONDS, self._watch_certificate, tls, stamps)

    async def stop(self) -> None:
        """Close the listener and all connections; requests in progress are answered 503."""
        server, self._server = self._server, None
        if self._renewal is not None:
            self._renewal.cancel()
        for listener in server.servers if server is not None else ():
            listener.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if server is None or self._gate is None:
            return
        self._gate.stopping = True
        state = server.server_state
        for connection in state.connections:
            cycle = getattr(connection, "cycle", None)
            if cycle is not None and cycle.response_started and not cycle.response_complete:
                cycle.disconnected = True  # a stream ends here; uvicorn would report it as incomplete
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections = [connection.transport for connection in state.connections]
        for transport in connections:
            transport.close()
        for _ in range(2):  # uvloop writes at the end of a turn
            await asyncio.sleep(0)
        for transport in connections:
            transport.abort()
        await asyncio.sleep(0)


class AccessGate:
    """ASGI middleware in front of all routes: checks Host, Origin, content type, token and sizes.

    DNS rebinding is refused by the Host check: a rebound name is not one of this server's names. Requests that
    a page of another site causes are refused by Origin, Sec-Fetch-Site and, for browsers that send neither, by the
    content types that such a page can use.
    """

    def __init__(
        self, app: ASGIApp, options: WebOptions, limits: Limits, refuse: Callable[[HTTPException], Response]
    ) -> None:
        self._app = app
        self._refuse = refuse
        self._options = options
        self._limits = limits
        self.stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is refused, else pass it to the application."""
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message["headers"], (b"x-content-type-options", b"nosniff")]}
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, self._bounded(receive), send_with_headers)
        except HTTPException as problem:
            await self._refuse(problem)(scope, receive, send_with_headers)
        except asyncio.CancelledError:
            if not self.stopping:
                raise
            if not started:
                await self._refuse(HTTPException(503, "the server is stopping"))(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Raise HTTPException if the request is refused."""
        headers = _Headers(scope["headers"])
        if sum(len(name) + len(value) for name, value in scope["headers"]) > self._limits.head_bytes:
            raise HTTPException(431, f"the request head is longer than {self._limits.head_bytes} bytes")
        host = headers.one("host")
        if host is None:
            raise HTTPException(400, "the request needs exactly one Host header")
        if not self._options.serves_host(host):
            raise HTTPException(
                403,
                f"Host {host[:100]!r} is not a name of this server; allow it with --http-host {host_name(host)[:100]}",
            )
        self._check_origin(scope["method"], host, headers)
        self._check_token(headers)
        length = headers.one("content-length")
        if length is not None and length.isdigit() and int(length) > self._limits.body_bytes:
            raise HTTPException(413, f"the body is longer than {self._limits.body_bytes} bytes", CLOSE)

    def _check_origin(self, method: str, host: str, headers: _Headers) -> None:
        origins = headers.all("origin")
        if any(urlsplit(origin).netloc.lower() != host.lower() for origin in origins):
            raise HTTPException(403, f"requests from pages of {origins[0][:100]!r} are refused")
        site = headers.one("sec-fetch-site")
        navigates = method in SAFE_METHODS and headers.one("sec-fetch-mode") == "navigate"
        if site in ("cross-site", "same-site") and not navigates:
            raise HTTPException(403, "requests from pages of other sites are refused")
        kinds = [value.partition(";")[0].strip().lower() for value in headers.all("content-type")]
        if method not in SAFE_METHODS and not origins and FORM_CONTENT_TYPES.intersection(kinds):
            raise HTTPException(415, f"send Content-Type: application/json, not {kinds[0]}", CLOSE)

    def _check_token(self, headers: _Headers) -> None:
        if self._options.token is None:
            return
        scheme, _, presented = (headers.one("authorization") or "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            presented.strip().encode(), self._options.token.encode()
        ):
            raise HTTPException(401, "send Authorization: Bearer TOKEN", {**CLOSE, "WWW-Authenticate": "Bearer"})

    def _bounded(self, receive: Receive) -> Receive:
        """Return a `receive` that refuses bodies that are too long or take too long."""
        size, complete = 0, False
        deadline = asyncio.get_running_loop().time() + self._limits.read_seconds

        async def bounded() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                seconds = self._limits.read_seconds
                raise HTTPException(408, f"the body was not complete after {seconds:g} s", CLOSE) from None
            size += len(message.get("body", b""))
            if size > self._limits.body_bytes:
                raise HTTPException(413, f"the body is longer than {self._limits.body_bytes} bytes", CLOSE)
            complete = not message.get("more_body", False)
            return message

        return bounded


CLOSE: Final = {"Connection": "close"}


class _Headers:
    """The headers of an ASGI scope by lower-case name."""

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._headers if key == name]

    def one(self, name: str) -> str | None:
        """Return the value of a header that occurs exactly once, else None."""
        values = self.all(name)
        return values[0] if len(values) == 1 else None


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _json_response(problem: HTTPException) -> Response:
    content = json.dumps({"error": problem.detail}).encode()
    return Response(content, problem.status_code, problem.headers, "application/json")


# HTTP/1.1


class _HttpProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol, with a deadline for request heads and a close that does not lose the response."""

    read_seconds = DEFAULT_LIMITS.read_seconds
    linger_seconds = DEFAULT_LIMITS.linger_seconds
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_LingeringTransport(transport, self))  # type: ignore[arg-type]
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        """Start the head's timer while a request head is incomplete, and cancel it when the head is complete."""
        incomplete = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if incomplete and self._head_timer is None:
            self._head_timer = self.loop.call_later(self.read_seconds, self.transport.close)
        elif not incomplete and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _LingeringTransport:
    """A transport whose `close` sends FIN and discards input for a while if the request is not completely read.

    Closing a socket with unread input makes the kernel send RST, and the client can lose the response.
    """

    def __init__(self, transport: asyncio.Transport, protocol: _HttpProtocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self._lingers = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._lingers or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        if self._protocol.conn.their_state not in (h11.SEND_BODY, h11.ERROR):
            self._transport.close()
            return
        self._lingers = True
        with contextlib.suppress(OSError, RuntimeError, NotImplementedError):
            self._transport.write_eof()
            self._transport.resume_reading()
        self._protocol.loop.call_later(self._protocol.linger_seconds, self._transport.abort)


# Shared by applications


def metrics_routes(read_metrics: Callable[[], bytes]) -> list[BaseRoute]:
    """Return the routes of the page that Prometheus scrapes; `read_metrics` returns it in the text format."""

    async def metrics(_: Request) -> Response:
        return Response(read_metrics(), headers={"Content-Type": METRICS_CONTENT_TYPE})

    return [Route("/", metrics), Route(METRICS_PATH, metrics)]


async def run_in_thread(function: Callable[..., T], *args: Any) -> T:
    """Run a function that may block for long on a new daemon thread, and return its result.

    A thread pool would let calls that wait hold up others, and its threads would keep the process from exiting.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = function(*args)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="ottla-http", daemon=True).start()
    return await future
