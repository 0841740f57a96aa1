"""The HTTP server and its access policy, tested against real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from ottla.server.web import Limits, WebServer
from ottla.server.web_options import WebOptions, is_loopback, parse_web_options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

PATIENCE = 120
SMALL = Limits(head_bytes=4096, body_bytes=1000, read_seconds=0.2, linger_seconds=0.5)


class Http:
    """A server with a few routes, and the requests that it answered."""

    def __init__(self, options: WebOptions, limits: Limits) -> None:
        self.server = WebServer(options, limits)
        self.bodies: list[bytes] = []
        self.waiting = asyncio.Event()

    async def start(self) -> None:
        self.server.bind()
        await self.server.serve(
            [
                Route("/", self.echo, methods=["GET", "POST", "DELETE"]),
                Route("/wait", self.wait),
                Route("/stream", self.stream),
                Route("/broken", self.broken),
            ]
        )

    async def echo(self, request: Request) -> PlainTextResponse:
        self.bodies.append(await request.body())
        return PlainTextResponse("ok")

    async def wait(self, _: Request) -> PlainTextResponse:
        self.waiting.set()
        await asyncio.Event().wait()
        return PlainTextResponse("never")

    async def stream(self, _: Request) -> StreamingResponse:
        async def forever() -> AsyncIterator[bytes]:
            yield b"first\n"
            self.waiting.set()
            await asyncio.Event().wait()

        return StreamingResponse(forever())

    async def broken(self, _: Request) -> PlainTextResponse:
        raise RuntimeError("broken")

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", int(self.server.url.rpartition(":")[2]))

    async def exchange(self, data: bytes) -> bytes:
        """Send bytes and return the first piece of the response, empty if the connection is closed without one."""
        reader, writer = await self.connect()
        async with asyncio.timeout(PATIENCE):
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            received = await reader.read(65536)
        writer.close()
        return received

    async def status(self, method: str = "GET", path: str = "/", body: bytes = b"", **headers: str) -> int:
        """Send a request and return the status; header names have underscores, and `host` defaults to the server's."""
        fields = {"host": self.server.url.removeprefix("http://"), **headers}
        if body or method == "POST":
            fields.setdefault("content_length", str(len(body)))
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(
            f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items()
        )
        response = await self.exchange(head.encode("latin-1") + b"\r\n" + body)
        return int(response.split(b" ", 2)[1])


@contextlib.asynccontextmanager
async def serving(options: WebOptions | None = None, limits: Limits | None = None) -> AsyncIterator[Http]:
    http = Http(options or WebOptions(), limits or Limits())
    await http.start()
    try:
        yield http
    finally:
        await http.server.stop()


# Host


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", 200),
        ("LOCALHOST:80", 200),
        ("app.localhost", 200),
        ("127.0.0.1", 200),
        ("127.8.8.8:1", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("evil.example:9092", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("10.0.0.1", 403),
        ("evil.example@127.0.0.1", 403),
        ("127.0.0.1/evil.example", 403),
        ("[::1", 403),
        ("[", 403),
        ("", 403),
    ],
)
async def test_host_header_must_name_this_server(host: str, expected: int) -> None:
    async with serving() as http:
        assert await http.status(host=host) == expected


async def test_dns_rebinding_post_is_refused_and_has_no_effect() -> None:
    async with serving() as http:
        host = "rebound.example:" + http.server.url.rpartition(":")[2]
        status = await http.status(
            "POST", body=b"{}", host=host, origin=f"http://{host}", content_type="application/json"
        )
        assert (status, http.bodies) == (403, [])


async def test_allowed_host_is_served() -> None:
    async with serving(WebOptions(allowed_hosts=("Kafka.test",))) as http:
        assert await http.status(host="kafka.test:80") == 200
        assert await http.status(host="other.test") == 403


async def test_server_on_all_interfaces_accepts_addresses_but_not_names() -> None:
    options = WebOptions("0.0.0.0")
    assert options.serves_host("10.1.2.3:80")
    assert options.serves_host("[fe80::1]:80")
    assert options.serves_host(socket.gethostname())
    assert not options.serves_host("evil.example")


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
    ],
)
async def test_missing_or_repeated_host_header_is_refused(head: bytes) -> None:
    async with serving() as http:
        assert (await http.exchange(head)).startswith(b"HTTP/1.1 400")
        assert http.bodies == []


# Origin


@pytest.mark.parametrize("method", ["POST", "DELETE", "GET"])
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://127.0.0.1", "null", "http://localhost:1", "file://", ""]
)
async def test_request_from_another_origin_is_refused(method: str, origin: str) -> None:
    async with serving() as http:
        assert await http.status(method, origin=origin, content_type="application/json") == 403
        assert http.bodies == []


async def test_request_from_own_origin_is_served() -> None:
    async with serving() as http:
        form = "application/x-www-form-urlencoded"
        assert await http.status("POST", body=b"a=b", origin=http.server.url, content_type=form) == 200
        assert http.bodies == [b"a=b"]


async def test_one_foreign_origin_among_several_is_refused() -> None:
    async with serving() as http:
        own = http.server.url
        head = f"POST / HTTP/1.1\r\nHost: {own[7:]}\r\nOrigin: {own}\r\nOrigin: http://evil.example\r\n\r\n"
        assert (await http.exchange(head.encode())).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_fetch_metadata_of_other_sites_is_refused(site: str) -> None:
    async with serving() as http:
        assert await http.status("POST", sec_fetch_site=site, content_type="application/json") == 403
        assert await http.status("GET", sec_fetch_site=site, sec_fetch_mode="no-cors") == 403
        assert await http.status("GET", sec_fetch_site=site, sec_fetch_mode="navigate") == 200
        assert await http.status("POST", sec_fetch_site=site, sec_fetch_mode="navigate") == 403
        assert await http.status("POST", sec_fetch_site="same-origin") == 200


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "Multipart/Form-Data"],
)
async def test_form_content_type_without_origin_is_refused(content_type: str) -> None:
    async with serving() as http:
        assert await http.status("POST", body=b'{"a": 1}', content_type=content_type) == 415
        assert await http.status("POST", content_type=content_type) == 415
        assert http.bodies == []


# Token


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        ("Bearer s3cret", 200),
        ("bearer s3cret", 200),
        ("Bearer S3cret", 401),
        ("Bearer s3cret2", 401),
        ("Bearer \xe9", 401),
        ("Basic s3cret", 401),
        ("s3cret", 401),
        ("", 401),
    ],
)
async def test_token_is_required(authorization: str, expected: int) -> None:
    async with serving(WebOptions(token="s3cret")) as http:
        assert await http.status("GET", authorization=authorization) == expected
        assert await http.status("GET") == 401


async def test_token_does_not_replace_the_host_check() -> None:
    async with serving(WebOptions(token="s3cret")) as http:
        assert await http.status(host="evil.example", authorization="Bearer s3cret") == 403


# Sizes and deadlines


async def test_huge_header_is_refused() -> None:
    async with serving(limits=SMALL) as http:
        assert await http.status("GET", x="a" * 5000) in (400, 431)
        assert await http.status("GET", **{f"x{number}": "a" * 500 for number in range(20)}) in (400, 431)
        assert await http.status("GET", path="/?" + "a" * 500_000) in (400, 431)


async def test_huge_body_is_refused_before_it_is_sent() -> None:
    async with serving(limits=SMALL) as http:
        assert await http.status("POST", content_type="application/json", content_length="99999999999") == 413


async def test_response_to_huge_body_reaches_a_client_that_sends_on() -> None:
    async with serving(limits=SMALL) as http:
        length = 4 * 1024 * 1024
        assert await http.status("POST", body=b"a" * length, content_type="application/json") == 413


async def test_huge_chunked_body_is_refused() -> None:
    async with serving(limits=SMALL) as http:
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        response = await http.exchange(head + b"400\r\n" + b"a" * 0x400 + b"\r\n")
        assert response.startswith(b"HTTP/1.1 413")


async def test_slow_body_times_out() -> None:
    async with serving(limits=SMALL) as http:
        assert await http.status("POST", content_type="application/json", content_length="10") == 408


@pytest.mark.parametrize("data", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
async def test_incomplete_head_times_out(data: bytes) -> None:
    async with serving(limits=SMALL) as http:
        assert await http.exchange(data) == b""


async def test_incomplete_second_head_times_out() -> None:
    async with serving(limits=SMALL) as http:
        reader, writer = await http.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            assert b"200" in await reader.readline()
            writer.write(b"GET / HT")
            await reader.read()
        writer.close()


async def test_connection_that_sends_junk_does_not_affect_others() -> None:
    async with serving(limits=SMALL) as http:
        for junk in (b"\0\r\n\r\n", b"x" * 100_000, b"GET / HTTP/2\r\n\r\n", b"\x16\x03\x01" * 50):
            assert (await http.exchange(junk)).startswith(b"HTTP/1.1 400")
        assert await http.status() == 200


async def test_random_bytes_and_mutated_requests_do_not_stop_the_server() -> None:
    random = Random(7)
    request = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    async with serving(limits=SMALL) as http:
        for number in range(300):
            data = bytearray(random.randbytes(random.randrange(1, 200)) if number % 3 == 0 else request)
            for _ in range(random.randrange(1, 4)):
                data[random.randrange(len(data))] = random.randrange(256)
            reader, writer = await http.connect()
            writer.write(bytes(data))
            writer.write_eof()
            async with asyncio.timeout(PATIENCE):
                with contextlib.suppress(ConnectionError):
                    received = await reader.read(12)
                    assert received == b"" or received[:7] == b"HTTP/1."
            writer.close()
        assert await http.status() == 200


async def test_failing_route_is_answered_with_500(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as http:
        assert await http.status(path="/broken") == 500
        assert await http.status() == 200


async def test_unknown_path_and_method_are_answered_in_json() -> None:
    async with serving() as http:
        response = await http.exchange(b"GET /none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert response.startswith(b"HTTP/1.1 404")
        assert "error" in json.loads(response.partition(b"\r\n\r\n")[2])
        assert await http.status("PUT") == 405


# Start and stop


async def test_clients_can_connect_between_bind_and_serve() -> None:
    http = Http(WebOptions(), Limits())
    http.server.bind()
    reader, writer = await http.connect()
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await http.server.serve([Route("/", http.echo)])
    async with asyncio.timeout(PATIENCE):
        assert b"200" in await reader.readline()
    writer.close()
    await http.server.stop()


async def test_stop_closes_idle_waiting_and_streaming_connections(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as http:
        connections = []
        for path in (b"/", b"/wait", b"/stream"):
            reader, writer = await http.connect()
            http.waiting.clear()
            writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(PATIENCE):
                await (reader.readuntil(b"ok") if path == b"/" else http.waiting.wait())
            connections.append((reader, writer))
        silent = await http.connect()
        connections.append(silent)
        await http.server.stop()
        received = []
        async with asyncio.timeout(PATIENCE):
            for reader, writer in connections:
                with contextlib.suppress(ConnectionError):
                    received.append(await reader.read())
                writer.close()
        assert received[1].startswith(b"HTTP/1.1 503")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_stop_without_serve_closes_the_socket() -> None:
    server = WebServer(WebOptions())
    port = int(server.bind().rpartition(":")[2])
    await server.stop()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()


async def test_port_in_use_is_reported_with_its_address() -> None:
    first = WebServer(WebOptions())
    port = int(first.bind().rpartition(":")[2])
    with pytest.raises(OSError, match=f"cannot listen on http://127.0.0.1:{port}"):
        WebServer(WebOptions(port=port)).bind()
    await first.stop()


async def test_bind_beyond_loopback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = WebServer(WebOptions("0.0.0.0", token="x"))
    server.bind()
    await server.stop()
    assert "reachable from other machines" in caplog.text


# Options


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("a.localhost.", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("example.com", False),
    ],
)
def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_options_beyond_loopback_require_a_token() -> None:
    options: dict[str, Any] = {"token_option": "--control-token"}
    for text in ("0.0.0.0:80", "[::]:80", "example.com:80", "10.0.0.1:80"):
        with pytest.raises(ValueError, match="OTTLA_CONTROL_TOKEN or --control-token"):
            parse_web_options("--control", text, **options)
        assert parse_web_options("--control", text, token="x", **options).token == "x"
    assert parse_web_options("--control", "[::1]:80", **options) == WebOptions("::1", 80)
    assert parse_web_options("--control", "80", **options) == WebOptions("127.0.0.1", 80)


@pytest.mark.parametrize("text", ["", "x", "localhost", "1:2:x", "70000", "-1", "²"])
def test_options_without_port_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write a port, or host:port"):
        parse_web_options("--metrics", text)


@pytest.mark.parametrize("token", ["", " ", "a\nb", "\xe9"])
def test_tokens_that_cannot_be_sent_are_refused(token: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        parse_web_options("--control", "80", token=token, token_option="--control-token")


def test_serve_without_http_loads_no_http_stack() -> None:
    script = (
        "import sys, ottla.cli.serving.serve, ottla.testing.cluster, ottla.server.run\n"
        "loaded = {'starlette', 'uvicorn', 'h11', 'anyio', 'prometheus_client'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_missing_packages_are_named_in_one_sentence() -> None:
    script = (
        "import importlib.util as util, sys\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name in ('starlette', 'uvicorn') else find(name, *more)\n"
        "from ottla.cli import main\n"
        "sys.argv = ['ottla', 'serve', '--control', '0']\n"
        "main()"
    )
    result = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.strip() == ("ottla: --control requires starlette and uvicorn: pip install 'ottla[web]'")


def test_connections_send_small_responses_at_once() -> None:
    server = WebServer(WebOptions())
    server.bind()
    assert server._socket is not None
    assert server._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    asyncio.run(server.stop())
