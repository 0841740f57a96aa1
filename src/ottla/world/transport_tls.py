"""Accepts TLS connections so that many handshakes at once do not delay connected clients.

A handshake takes about a millisecond of the loop. A connection waits until its first bytes have arrived, and one
handshake starts per turn of the loop, so that other requests are served in between. An idle connection costs a socket.
"""

from __future__ import annotations

import asyncio
import logging
import ssl as tls
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 20.0
"""Handshakes time out after this time; the protocol above gets no such connection."""
MAX_SILENT = 2000
"""Connections without a first byte. Beyond this number the oldest is closed: a client sends its first one at once."""
PAUSE_SECONDS = 1.0
"""Pause of accepting when the system has no free file descriptors."""

_EXPLANATIONS: Final = {
    "WRONG_VERSION_NUMBER": "the client does not speak TLS (check its security.protocol)",
    "HTTP_REQUEST": "the client speaks HTTP",
    "UNEXPECTED_MESSAGE": "the client sent no TLS handshake, or no TLS version that ssl.enabled.protocols allows",
    "UNSUPPORTED_PROTOCOL": "the client offers no TLS version that ssl.enabled.protocols allows",
    "NO_SHARED_CIPHER": "the client offers no cipher suite that ssl.cipher.suites allows",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client sent no certificate, which ssl.client.auth=required demands",
    "CERTIFICATE_VERIFY_FAILED": "the client's certificate is not trusted (ssl.truststore)",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept the broker's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept the broker's certificate",
}


def handshake_problem(error: Exception) -> str:
    """Return why a handshake failed: an explanation where there is one, and OpenSSL's reason."""
    if isinstance(error, tls.SSLError):
        reason = error.reason or str(error)
        detail = getattr(error, "verify_message", None)
        explanation = _EXPLANATIONS.get(reason)
        text = reason if explanation is None else f"{explanation}; {reason}"
        return f"{text}, {detail}" if detail else text
    if isinstance(error, TimeoutError) or "timed out" in str(error) or "taking longer" in str(error):
        return f"it took longer than {HANDSHAKE_SECONDS:.0f} s"
    if isinstance(error, ConnectionError) or not str(error):
        return "the client closed the connection"
    return str(error)


class TlsAcceptor:
    """Accepts connections of one listening socket; each begins with a handshake."""

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
        """Stop accepting and close connections whose handshake is not finished. Closing twice does nothing."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._listening)
        for task in self._tasks:
            task.cancel()
        for accepted in list(self._silent):
            self._drop(accepted)
        while self._ready:
            self._ready.popleft().close()
        self._listening.close()

    def pause(self) -> None:
        """Start no handshakes until `resume`; new connections wait."""
        self._paused = True

    def resume(self) -> None:
        """Start handshakes again."""
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._start_next)

    def _watch(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Accept all pending connections."""
        while True:
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError as error:
                log.error("accepting connections is paused for %.0f s: %s", PAUSE_SECONDS, error)
                self._loop.remove_reader(self._listening)
                self._loop.call_later(PAUSE_SECONDS, self._watch)
                return
            if len(self._silent) >= MAX_SILENT:
                self._drop(next(iter(self._silent)))
            accepted.setblocking(False)
            self._silent[accepted] = self._loop.call_later(HANDSHAKE_SECONDS, self._drop_silent, accepted)
            self._loop.add_reader(accepted, self._first_bytes, accepted)

    def _first_bytes(self, accepted: socket.socket) -> None:
        """Queue a connection for its handshake."""
        self._forget(accepted)
        self._ready.append(accepted)
        if len(self._ready) == 1:
            self._loop.call_soon(self._start_next)

    def _start_next(self) -> None:
        if self._paused or not self._ready:
            return
        task = self._loop.create_task(self._handshake(self._ready.popleft()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._ready:
            self._loop.call_soon(self._start_next)

    async def _handshake(self, accepted: socket.socket) -> None:
        peer = _peer(accepted)
        try:
            await self._loop.connect_accepted_socket(
                self._factory, accepted, ssl=self.context, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except (OSError, tls.SSLError) as error:
            log.info("TLS handshake with %s failed: %s", peer, handshake_problem(error))
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise

    def _drop_silent(self, accepted: socket.socket) -> None:
        log.info("TLS handshake with %s failed: no bytes within %.0f s", _peer(accepted), HANDSHAKE_SECONDS)
        self._drop(accepted)

    def _drop(self, accepted: socket.socket) -> None:
        self._forget(accepted)
        accepted.close()

    def _forget(self, accepted: socket.socket) -> None:
        timer = self._silent.pop(accepted, None)
        if timer is not None:
            timer.cancel()
        self._loop.remove_reader(accepted)


def _peer(accepted: socket.socket) -> str:
    try:
        return "{}:{}".format(*accepted.getpeername()[:2])
    except OSError:
        return "an unknown address"
