"""The page that Prometheus reads: the smallest HTTP server that can show it, on the cluster's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

PATH: Final = "/metrics"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LONGEST_REQUEST: Final = 16 * 1024
SECONDS: Final = 60.0


class MetricsPage:
    """Serves what `text` returns at `/metrics`."""

    def __init__(self, text: Callable[[], bytes]) -> None:
        self._text = text
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one, `url` tells which."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=LONGEST_REQUEST)
        bound = self._server.sockets[0].getsockname()[1]
        self.url = f"http://{host}:{bound}{PATH}"

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("a request for metrics came to nothing: %s", error)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        if method not in (b"GET", b"HEAD"):
            return _page("405 Method Not Allowed", b"only GET is answered here\n")
        if path not in (PATH, "/"):
            return _page("404 Not Found", f"the metrics are at {PATH}\n".encode())
        page = _page("200 OK", self._text())
        return page if method == b"GET" else page.split(b"\r\n\r\n", 1)[0] + b"\r\n\r\n"


def _page(status: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body
