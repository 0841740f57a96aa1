"""A tap for tests and for the command line: on a thread of its own, with control functions, captures and what was seen.

with Tap("kafka.example:9092") as tap:
    tap.on("Fetch", times=None).delay_response(0.2)
    consumer = Consumer({"bootstrap.servers": tap.bootstrap, ...})

`properties` are Kafka's client properties for the way to the Kafka, of which TLS counts (`security.protocol=SASL_SSL`,
`ssl.*`); who clients are they say themselves, and that passes through. `tls` is how the tap listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.client.auth import security_from_properties
from ottla.protocol.capture import CapturedFrame, header_line, to_line
from ottla.protocol.errors import ProtocolError
from ottla.protocol.inspector import Inspector
from ottla.testing.control.controlled_cluster import run_on
from ottla.testing.control.rules import Control, Controls, Rule, api_keys
from ottla.testing.security import throw_away_authority
from ottla.testing.tap.engine import LENGTH, TapEngine
from ottla.world.clock import LoopClock
from ottla.world.random import SystemRandom
from ottla.world.transport import LoopTransport

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection

    from ottla.security.dev_tls import Authority
    from ottla.testing.control.requests import SeenRequest
    from ottla.testing.control.rules import Api
    from ottla.testing.tap.engine import FrameSink

T = TypeVar("T")
START_SECONDS = 120.0


class Tap:
    """A proxy in front of a Kafka. `target` is `host:port` of one of its brokers; others are found by themselves.

    With `tls` it listens with TLS: with a certificate of a throw-away authority (`True`, or an `Authority`), or with a
    broker's `ssl.*` settings. `ca_pem` is what clients then have to trust.
    """

    def __init__(
        self,
        target: str,
        listen: str = "127.0.0.1:0",
        *,
        sinks: Collection[FrameSink] = (),
        properties: Mapping[str, str] | None = None,
        tls: bool | Authority | Mapping[str, str] = False,
    ) -> None:
        self._target = parse_address(target)
        self._connect_tls = _towards_kafka(properties or {})
        self.authority = None if isinstance(tls, Mapping) else throw_away_authority(tls)
        self._listen_tls = _towards_clients(tls if isinstance(tls, Mapping) else None, self.authority)
        self._listen = parse_address(listen)
        self.sinks = list(sinks)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: TapEngine | None = None
        self._controls: Controls | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._closing = threading.Lock()
        self.bootstrap = ""

    def start(self) -> Tap:
        """Listen."""
        if self._thread is not None:
            return self
        ready = threading.Event()
        self._failure = None
        self._thread = threading.Thread(target=self._main, args=(ready,), name="ottla-tap", daemon=True)
        self._thread.start()
        if not ready.wait(START_SECONDS):
            raise TimeoutError("the tap did not come up")
        if self._failure is not None:
            self._thread.join()
            self._thread = None
            raise self._failure
        return self

    def close(self) -> None:
        """Listen no more; closing twice, or from another thread, is fine."""
        with self._closing:
            thread, self._thread = self._thread, None
            loop, stop = self._loop, self._stop
            if thread is None:
                return
            if loop is not None and stop is not None:
                with contextlib.suppress(RuntimeError):  # it has ended by itself
                    loop.call_soon_threadsafe(stop.set)
            if thread is not threading.current_thread():
                thread.join()

    def __enter__(self) -> Tap:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def on(
        self,
        api: Api | Collection[Api] | None = None,
        *,
        node: int | None = None,
        topic: str | None = None,
        partition: int | Collection[int] | None = None,
        client_id: str | None = None,
        times: int | None = 1,
        where: Callable[[SeenRequest], bool] | None = None,
    ) -> Rule:
        """Choose requests for a control function, as `Cluster.on` does."""
        return self.controls.on(
            api, node=node, topic=topic, partition=partition, client_id=client_id, times=times, where=where
        )

    @property
    def controls(self) -> Controls:
        """The control functions in force."""
        if self._controls is None:
            raise RuntimeError("the tap is not running")
        return self._controls

    def requests(
        self, api: Api | Collection[Api] | None = None, *, node: int | None = None, client_id: str | None = None
    ) -> list[SeenRequest]:
        """The last requests that control functions had a look at."""
        keys = api_keys(api)
        return [
            seen
            for seen in self._on_loop(lambda: list(self.controls.seen))
            if (keys is None or seen.api_key in keys)
            and (node is None or seen.node == node)
            and (client_id is None or seen.client_id == client_id)
        ]

    def _on_loop(self, action: Callable[[], T]) -> T:
        if threading.current_thread() is self._thread:
            return action()

        async def run() -> T:
            return action()

        return run_on(self._loop, run(), "the tap is not running")

    def _main(self, ready: threading.Event) -> None:
        from ottla.testing.cluster import new_loop

        try:
            loop = new_loop()
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self.run(ready.set))
        except BaseException as error:
            self._failure = error
        finally:
            self._loop = None
            ready.set()

    async def run(self, ready: Callable[[], Any], stop: asyncio.Event | None = None) -> None:
        """Listen on the running loop until `stop` is set."""
        loop = self._loop = asyncio.get_running_loop()
        self._stop = stop or asyncio.Event()
        clock = LoopClock(loop)
        self._controls = Controls(clock, SystemRandom(), self._on_loop)
        engine = TapEngine(
            LoopTransport(loop),
            clock,
            self._target,
            self._controls,
            listen_tls=self._listen_tls,
            connect_tls=self._connect_tls,
        )
        engine.sinks = self.sinks
        self._engine = engine
        self.bootstrap = "{}:{}".format(*await engine.open(*self._listen))
        ready()
        await self._stop.wait()
        self._controls.clear()
        engine.close()
        await asyncio.sleep(0)

    @property
    def ca_pem(self) -> str:
        """With `tls=True`, the certificate that clients have to trust."""
        if self.authority is None:
            raise RuntimeError("the tap has no authority of its own; use Tap(target, tls=True)")
        return self.authority.certificate_pem.decode()

    @property
    def bytes_passed(self) -> int:
        """How many bytes of frames have passed, both ways."""
        return 0 if self._engine is None else self._engine.bytes_passed


class TapKit:
    """A tap as the control API over HTTP sees it: it has control functions and requests, and no cluster."""

    operations = frozenset({"/controls", "/requests"})

    def __init__(self, tap: Tap) -> None:
        self.cluster = tap
        self.controls: dict[int, Control] = {}


class CaptureFile:
    """Writes frames to a file that `ottla decode` and the Spark tables read; secrets are overwritten."""

    def __init__(self, path: str, target: str, *, max_bytes: int | None = None, show_secrets: bool = False) -> None:
        self._file = open(path, "w", encoding="utf-8", buffering=1 << 16)  # noqa: SIM115 - open as long as the tap
        self._file.write(header_line(target=target))
        self._max_bytes = max_bytes
        self._show_secrets = show_secrets
        self.frames = 0

    def __call__(self, frame: CapturedFrame) -> None:
        """Write a frame down."""
        data = frame.frame if self._show_secrets else without_secrets(frame)
        if self._max_bytes is not None:
            data = data[: self._max_bytes]
        self._file.write(to_line(frame._replace(frame=data)))
        self.frames += 1

    def flush(self) -> None:
        """Let readers see what was written."""
        self._file.flush()

    def close(self) -> None:
        """Nothing more will come."""
        self._file.close()


# APIs whose frames hold passwords, tokens or keys.
SECRET_APIS = frozenset({33, 36, 38, 39, 40, 41, 44, 51})


def without_secrets(frame: CapturedFrame) -> bytes:
    """A frame with its secrets overwritten."""
    if frame.api_key not in SECRET_APIS:
        return frame.frame
    whole = LENGTH.pack(len(frame.frame)) + frame.frame
    data = bytearray(whole)
    try:
        inspector = Inspector()
        found = (
            inspector.request(whole)
            if frame.direction == "request"
            else inspector.response(whole, frame.api_key, frame.version)
        )
        for line in found.lines:
            if line.secret:
                data[line.position : line.end] = b"*" * (line.end - line.position)
        if found.error is not None:
            return b""
    except ProtocolError:
        return b""
    return bytes(data[LENGTH.size :])


def _towards_kafka(properties: Mapping[str, str]) -> ssl.SSLContext | None:
    """The TLS of client properties; a login is the clients' own."""
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    security = security_from_properties({**properties, "security.protocol": protocol.removeprefix("SASL_")}, {})
    return None if security is None else security.context()


def _towards_clients(settings: Mapping[str, str] | None, authority: Authority | None) -> ssl.SSLContext | None:
    if authority is not None:
        server = authority.server()
        settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": server.key_pem.decode(),
            "ssl.keystore.certificate.chain": server.certificate_pem.decode(),
        }
    if settings is None:
        return None
    from ottla.security.tls import TlsSettings, server_context

    return server_context(TlsSettings.read(settings.get))


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`, or a port on this machine; ValueError for anything else."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r}: write host:port, such as 127.0.0.1:9092")
    return host.strip("[]") or "127.0.0.1", int(port)
