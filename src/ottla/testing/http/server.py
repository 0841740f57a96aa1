"""A small HTTP/1.1 server for the control API: requests with a length, answers in JSON, connections that stay open."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.testing.http.api import respond

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.testing.control.controlled_cluster import Kit
    from ottla.testing.tap.tap import TapKit

T = TypeVar("T")
LARGEST_BODY = 16 * 1024 * 1024
LARGEST_HEAD = 64 * 1024
LINGER_SECONDS = 60
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    500: "Internal Server Error",
}


class BadRequest(Exception):  # noqa: N818 - it is an answer
    """What came is not HTTP as it is spoken here."""


class ControlServer:
    """Serves the control API; each operation runs in a thread of its own, because some of them wait."""

    def __init__(self, kit: Kit | TapKit) -> None:
        self._kit = kit
        self._server: asyncio.Server | None = None

    async def start(self, port: int, host: str = "127.0.0.1") -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=LARGEST_HEAD)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def stop(self) -> None:
        """Take no more requests."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            stays = True
            while stays:
                try:
                    method, target, body, stays = await self._read(reader)
                except BadRequest as problem:
                    status, answer, stays = 400, {"error": str(problem)}, False
                else:
                    status, answer = await _in_thread(respond, self._kit, method, target, body)
                data = json.dumps(answer).encode()
                head = (
                    f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(data)}\r\nConnection: {'keep-alive' if stays else 'close'}\r\n\r\n"
                )
                writer.write(head.encode() + data)
                await writer.drain()
                if status == 400 and not stays:
                    await _linger(reader, writer)
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> tuple[str, str, bytes, bool]:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.LimitOverrunError as error:
            raise BadRequest("the head of the request is too long") from error
        first, *lines = head.split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise BadRequest(f"not a request of HTTP/1.1: {first[:60]!r}")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        if "transfer-encoding" in headers:
            raise BadRequest("send the body with Content-Length, not in chunks")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > LARGEST_BODY:
            raise BadRequest(f"Content-Length: {length}")
        body = await reader.readexactly(int(length))
        stays = headers.get("connection", "").lower() != "close" and words[2] != "HTTP/1.0"
        return words[0], words[1], body, stays


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let a client finish what it is saying: if its end is closed meanwhile, the answer may be lost on its way."""
    with contextlib.suppress(TimeoutError, RuntimeError):  # the latter from a transport that is closed already
        writer.write_eof()
        async with asyncio.timeout(LINGER_SECONDS):
            while await reader.read(LARGEST_HEAD):
                pass


async def _in_thread(function: Callable[..., T], *args: Any) -> T:
    """What a function returns that may wait for long: it keeps neither others waiting nor the process alive."""
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
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="ottla-control", daemon=True).start()
    return await future
