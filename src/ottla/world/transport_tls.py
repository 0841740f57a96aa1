"""Accepting over TLS so that a crowd of handshakes holds up nobody who is already connected.

A handshake costs the loop about a millisecond, and a loop that is told of a hundred first messages at once would answer
them all before it turns to anything else. Here a connection waits until its first bytes are there, and one handshake
begins per turn of the loop: between two of them everybody else's requests are served. Who sends nothing costs no more
than a socket, and is cut off in the end.
"""

from __future__ import annotations

import asyncio
import logging
import ssl as tls
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 20.0
"""Who does not finish a handshake in this time is cut off; until then nobody above knows of the connection."""
MOST_SILENT = 2000
"""Those who connect and send nothing; if there are more, the oldest goes. A client sends its first message at once."""
PAUSE_SECONDS = 1.0
"""How long nobody is accepted when the system has no more descriptors."""


class TlsDoor:
    """One listening socket whose connections begin with a handshake."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        context: tls.SSLContext,
    ) -> None:
        self.context = context
        self._loop = loop
        self._listening = listening
        self._factory = factory
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._ready: deque[socket.socket] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._paused = False
        self._watch()

    def close(self) -> None:
        """Accept no more, and let go of those whose handshake is not over. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._listening)
        for task in self._tasks:
            task.cancel()
        for made in list(self._silent):
            self._drop(made)
        while self._ready:
            self._ready.popleft().close()
        self._listening.close()

    def pause(self) -> None:
        """Begin no handshakes: who connects waits."""
        self._paused = True

    def resume(self) -> None:
        """Begin handshakes again."""
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._next)

    def _watch(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Take all that have connected."""
        while True:
            try:
                made, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError as error:
                log.error("no connection can be accepted for now: %s", error)
                self._loop.remove_reader(self._listening)
                self._loop.call_later(PAUSE_SECONDS, self._watch)
                return
            if len(self._silent) >= MOST_SILENT:
                self._drop(next(iter(self._silent)))
            made.setblocking(False)
            self._silent[made] = self._loop.call_later(HANDSHAKE_SECONDS, self._drop, made)
            self._loop.add_reader(made, self._speaks, made)

    def _speaks(self, made: socket.socket) -> None:
        """A client's first bytes are there: its handshake comes when it is its turn."""
        self._forget(made)
        self._ready.append(made)
        if len(self._ready) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        if self._paused or not self._ready:
            return
        task = self._loop.create_task(self._shake_hands(self._ready.popleft()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._ready:
            self._loop.call_soon(self._next)

    async def _shake_hands(self, made: socket.socket) -> None:
        peer = "somebody"
        try:
            peer = "{}:{}".format(*made.getpeername()[:2])
            await self._loop.connect_accepted_socket(
                self._factory, made, ssl=self.context, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except (OSError, tls.SSLError) as error:
            log.info("the TLS handshake of %s failed: %s", peer, getattr(error, "reason", None) or error)
            made.close()
        except asyncio.CancelledError:
            made.close()
            raise

    def _drop(self, made: socket.socket) -> None:
        self._forget(made)
        made.close()

    def _forget(self, made: socket.socket) -> None:
        timer = self._silent.pop(made, None)
        if timer is not None:
            timer.cancel()
        self._loop.remove_reader(made)
