"""A running console: serves HTTP on a separate loop and thread, beside a broker or alone."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.client.client import Client
    from ottla.console.options import ConsoleOptions
    from ottla.console.page import Page

START_SECONDS: Final = 60.0


class ConsoleServer:
    """The console of one cluster.

        options = parse_console_options("--listen", "9080")
        with ConsoleServer(lambda: Client("localhost:9092"), options, bootstrap="localhost:9092") as console:
            print(console.url)

    `connect` makes a client; the console uses one per thread. It starts also while the cluster is away. `kit` is the
    test kit's cluster, if the console runs in its process; `pages` are pages beside the console's own.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        options: ConsoleOptions,
        *,
        bootstrap: str,
        principal: str = "",
        kit: Any = None,
        pages: Sequence[Page] = (),
    ) -> None:
        self._connect = connect
        self._options = options
        self._bootstrap = bootstrap
        self._principal = principal
        self._kit = kit
        self._pages = tuple(pages)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self.address = ""
        """The address without the token."""

    @property
    def url(self) -> str:
        """The address to open, with the access token if one is required."""
        token = self._options.token
        return self.address + ("/" if token is None else f"/?token={quote(token, safe='')}")

    def start(self) -> ConsoleServer:
        """Serve; return when requests are answered. OSError if the port cannot be bound."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._main, args=(ready,), name="ottla-console-http", daemon=True)
        self._thread.start()
        if not ready.wait(START_SECONDS):
            raise TimeoutError("the console did not start")
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def close(self) -> None:
        """Stop serving and disconnect."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and self._stop is not None and thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        thread.join()

    def __enter__(self) -> ConsoleServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _main(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:
            self._failure = error
        finally:
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        from ottla.console.app import Console
        from ottla.console.pages import PAGES

        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        web = self._options.web.server()
        console = Console(
            self._connect,
            self._options,
            [*PAGES, *self._pages],
            bootstrap=self._bootstrap,
            principal=self._principal,
            kit=self._kit,
        )
        try:
            self.address = web.bind()
            await web.serve(console.routes())
            ready.set()
            await self._stop.wait()
        finally:
            await web.stop()
            console.close()
