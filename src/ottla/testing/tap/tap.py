"""`Tap`, the proxy as tests and `ottla tap` use it: rules, received requests and capture files."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.client.auth import security_from_properties
from ottla.protocol.capture import CapturedFrame, header_line, to_line
from ottla.protocol.errors import ProtocolError
from ottla.protocol.inspect.inspector import Inspector
from ottla.testing.control.controlled_cluster import run_on
from ottla.testing.control.matching import api_keys
from ottla.testing.control.rules import RuleBuilder, Rules
from ottla.testing.security import throw_away_authority
from ottla.testing.tap.engine import LENGTH, TapEngine
from ottla.world.clock import LoopClock
from ottla.world.random import SystemRandom
from ottla.world.transport import LoopTransport

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection

    from ottla.security.dev_tls import Authority
    from ottla.testing.control.matching import Api
    from ottla.testing.control.requests import ReceivedRequest
    from ottla.testing.tap.engine import FrameSink

T = TypeVar("T")
START_SECONDS = 120.0


class Tap:
    """A proxy in front of any Kafka cluster, on a thread of its own.

        with Tap("kafka.example:9092") as tap:
            tap.on("Fetch", times=None).delay_response(0.2)
            consumer = Consumer({"bootstrap.servers": tap.bootstrap, ...})

    `target` is `host:port` of one broker; the others are found in its Metadata responses. `listen` is the address for
    clients; port 0 takes a free port. `properties` are Kafka's client properties for connecting to the brokers: only
    TLS is used (`security.protocol`, `ssl.*`), because SASL exchanges of clients are forwarded.

    With `tls` the tap listens with TLS: with a certificate of a throw-away certificate authority (`True`, or an
    `Authority`), or with a broker's `ssl.*` settings. `ca_pem` is the certificate for clients to trust.
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
        self._connect_tls = _broker_tls(properties or {})
        self.authority = None if isinstance(tls, Mapping) else throw_away_authority(tls)
        self._listen_tls = _listener_tls(tls if isinstance(tls, Mapping) else None, self.authority)
        self._listen = parse_address(listen)
        self.sinks = list(sinks)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: TapEngine | None = None
        self._rules: Rules | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._closing = threading.Lock()
        self.bootstrap = ""

    def start(self) -> Tap:
        """Start to listen, and return self."""
        if self._thread is not None:
            return self
        ready = threading.Event()
        self._failure = None
        self._thread = threading.Thread(target=self._main, args=(ready,), name="ottla-tap", daemon=True)
        self._thread.start()
        if not ready.wait(START_SECONDS):
            raise TimeoutError(f"the tap did not start within {START_SECONDS:g} s")
        if self._failure is not None:
            self._thread.join()
            self._thread = None
            raise self._failure
        return self

    def close(self) -> None:
        """Close the listeners and all connections. May be called repeatedly and from any thread."""
        with self._closing:
            thread, self._thread = self._thread, None
            loop, stop = self._loop, self._stop
            if thread is None:
                return
            if loop is not None and stop is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed already
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
        where: Callable[[ReceivedRequest], bool] | None = None,
    ) -> RuleBuilder:
        """Choose requests for a rule; see `Cluster.on`."""
        return self.rules.on(
            api, node=node, topic=topic, partition=partition, client_id=client_id, times=times, where=where
        )

    @property
    def rules(self) -> Rules:
        """The active rules and the received requests."""
        if self._rules is None:
            raise RuntimeError("the tap is not running")
        return self._rules

    def requests(
        self, api: Api | Collection[Api] | None = None, *, node: int | None = None, client_id: str | None = None
    ) -> list[ReceivedRequest]:
        """Return the last requests that were passed to rules, oldest first."""
        keys = api_keys(api)
        return self._on_loop(lambda: self.rules.received.select(keys, node, client_id))

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
        """Listen on the running event loop until `stop` is set; call `ready` when clients can connect."""
        loop = self._loop = asyncio.get_running_loop()
        self._stop = stop or asyncio.Event()
        clock = LoopClock(loop)
        self._rules = Rules(clock, SystemRandom(), self._on_loop)
        engine = TapEngine(
            LoopTransport(loop),
            clock,
            self._target,
            self._rules,
            listen_tls=self._listen_tls,
            connect_tls=self._connect_tls,
        )
        engine.sinks = self.sinks
        self._engine = engine
        self.bootstrap = "{}:{}".format(*await engine.open(*self._listen))
        ready()
        await self._stop.wait()
        self._rules.clear()
        engine.close()
        await asyncio.sleep(0)

    @property
    def ca_pem(self) -> str:
        """With `tls=True`, the CA certificate for clients to trust, as PEM."""
        if self.authority is None:
            raise RuntimeError("the tap has no certificate authority; use Tap(target, tls=True)")
        return self.authority.certificate_pem.decode()

    @property
    def bytes_passed(self) -> int:
        """The number of bytes of forwarded frames, in both directions."""
        return 0 if self._engine is None else self._engine.bytes_passed


class CaptureFile:
    """Writes frames to a file for `ottla decode` and the Spark tables. Passwords and tokens are overwritten."""

    def __init__(self, path: str, target: str, *, max_bytes: int | None = None, show_secrets: bool = False) -> None:
        self._file = open(path, "w", encoding="utf-8", buffering=1 << 16)  # noqa: SIM115 - open as long as the tap
        self._file.write(header_line(target=target))
        self._max_bytes = max_bytes
        self._show_secrets = show_secrets
        self.frames = 0

    def __call__(self, frame: CapturedFrame) -> None:
        """Append a frame."""
        data = frame.frame if self._show_secrets else without_secrets(frame)
        if self._max_bytes is not None:
            data = data[: self._max_bytes]
        self._file.write(to_line(frame._replace(frame=data)))
        self.frames += 1

    def flush(self) -> None:
        """Write buffered frames to the file."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


# APIs whose frames contain passwords, tokens or keys.
SECRET_APIS = frozenset({33, 36, 38, 39, 40, 41, 44, 51})


def without_secrets(frame: CapturedFrame) -> bytes:
    """Return a frame with passwords, tokens and keys overwritten; empty if it cannot be decoded."""
    if frame.api_key not in SECRET_APIS:
        return frame.frame
    whole = LENGTH.pack(len(frame.frame)) + frame.frame
    data = bytearray(whole)
    try:
        inspector = Inspector()
        inspection = (
            inspector.request(whole)
            if frame.direction == "request"
            else inspector.response(whole, frame.api_key, frame.version)
        )
        for line in inspection.lines:
            if line.secret:
                data[line.position : line.end] = b"*" * (line.end - line.position)
        if inspection.error is not None:
            return b""
    except ProtocolError:
        return b""
    return bytes(data[LENGTH.size :])


def _broker_tls(properties: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return the TLS context of client properties; SASL settings are ignored."""
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    security = security_from_properties({**properties, "security.protocol": protocol.removeprefix("SASL_")}, {})
    return None if security is None else security.context()


def _listener_tls(settings: Mapping[str, str] | None, authority: Authority | None) -> ssl.SSLContext | None:
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
    """Return host and port of `host:port` or of a port on 127.0.0.1; ValueError for anything else."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r}: write host:port, such as 127.0.0.1:9092")
    return host.strip("[]") or "127.0.0.1", int(port)
