"""`Cluster`, the entry point of the test kit: brokers in this process, on a thread of their own.

All access to the broker runs on its event loop; tests receive snapshots, which are safe on any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ottla.broker.broker import RACK_AWARE_SELECTOR
from ottla.cluster.server_config import server_config
from ottla.events import EventFile, Events
from ottla.protocol.releases import find_release
from ottla.registry.options import REGISTRY_PRINCIPAL, registry_options
from ottla.server.run import RunningCluster
from ottla.server.web_options import parse_web_options
from ottla.testing.control.controlled_cluster import ControlledCluster
from ottla.testing.control.faults import config_texts
from ottla.testing.security import ClusterSecurity, throw_away_authority
from ottla.world.disk_memory import DEFAULT_CAP_BYTES, MemoryDisk
from ottla.world.disk_real import RealDisk
from ottla.world.random import SeededRandom
from ottla.world.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ottla.client.connection import Dial
    from ottla.cluster.security.acls import Acl
    from ottla.cluster.server_config import ServerConfig
    from ottla.console.options import ConsoleOptions
    from ottla.console.server import ConsoleServer
    from ottla.registry.access import RegistryAccess, SubjectAcl
    from ottla.registry.server import RegistryServer
    from ottla.schemas.registry_client import RegistryClient
    from ottla.security.dev_tls import Authority
    from ottla.security.tls import TlsSettings
    from ottla.server.web import WebServer
    from ottla.server.web_options import WebOptions
    from ottla.testing.security import Users
    from ottla.world.clock import VirtualClock

START_SECONDS = 120.0
CLOSING_TURNS = 3
# Defaults that make tests fast: no initial rebalance delay, frequent heartbeats, few coordinator partitions.
TEST_CONFIGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.heartbeat.interval.ms": "100",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
TOPIC_FIELDS = frozenset({"partitions", "replication_factor", "configs"})
# Clients set record timestamps from the real clock, which is ahead of a virtual one.
VIRTUAL_CONFIGS = {"log.message.timestamp.after.max.ms": str(2**63 - 1)}
RACK_CONFIGS = {"replica.selector.class": RACK_AWARE_SELECTOR}


class Cluster(ControlledCluster):
    """One or more brokers in this process, for a test.

        with Cluster(topics=["orders:3"]) as cluster:
            producer = Producer({"bootstrap.servers": cluster.bootstrap})

    Use it with `with`, with `async with`, or as a decorator: each call of the function then receives a new cluster as
    the keyword argument `cluster`. The methods read the cluster's state (`StateReader`), inject faults
    (`FaultInjector`) and add rules for requests (`on`).

    - `brokers` is the number of nodes; `ports` gives each one a fixed port instead of a free one.
    - `racks` has one rack per broker; consumers with a `client.rack` fetch from the in-sync replica in their rack
      (KIP-392).
    - `topics` are names, `name:partitions`, or a dict from name to partitions or to `partitions`,
      `replication_factor` and `configs`.
    - `configs` are broker configs.
    - `data_dir` keeps the data on disk, in Apache Kafka's format; without it the data is in memory. With `sync`
      records are fsynced before they are acknowledged.
    - `clock` is a `VirtualClock`: time moves only by `advance`.
    - `seed` makes ids and random choices the same in every run.
    - `as_version` advertises the API versions of that Kafka release, such as "3.5".
    - `events` appends the event log to this file.
    - `users` maps names to passwords for SASL (PLAIN and SCRAM), or lists `User`s with a mechanism and ACLs.
      `superusers` are further users, or names of `users`. With `superusers` or `acls` requests are authorized
      (`ottla.testing.security`). `allow_unsigned_tokens` accepts OAUTHBEARER tokens without a signature.
    - `tls=True` listens with TLS. Clients trust `ca_pem`; `authority.client(name)` creates client certificates.
    - `control` and `metrics` serve the control API and the metrics page on this port (0: a free one); see
      `control_url` and `metrics_url`.
    - `registry` serves a schema registry: True or a port; see `registry_url`. With `users` it requires their names and
      passwords (basic authentication), with `acls` or `superusers` rights such as `allow("alice", "read",
      subject="orders-value")`, and with `tls` it serves https.
    - `console` serves a web page that shows the cluster: True or a port; see `console_url`. It acts as the first
      superuser, else as the first user.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        ports: Iterable[int] | None = None,
        racks: Iterable[str] | None = None,
        topics: Iterable[str] | Mapping[str, int | Mapping[str, Any]] = (),
        configs: Mapping[str, str | int | bool] | None = None,
        data_dir: str | None = None,
        sync: bool = False,
        cluster_id: str | None = None,
        clock: VirtualClock | None = None,
        seed: int | str | None = None,
        as_version: str | None = None,
        events: str | None = None,
        users: Users | None = None,
        superusers: Users | Iterable[str] | None = None,
        acls: Iterable[Acl | SubjectAcl] | None = None,
        tls: bool | Authority = False,
        allow_unsigned_tokens: bool = False,
        control: int | str | None = None,
        control_token: str | None = None,
        metrics: int | str | None = None,
        registry: bool | int | str | None = None,
        console: bool | int | str | None = None,
    ) -> None:
        self._arguments = {key: value for key, value in locals().items() if key not in ("self", "__class__")}
        super().__init__(parse_topics(topics), sync=sync, virtual=clock)
        self._ports = list(ports) if ports is not None else [0] * brokers
        if not self._ports:
            raise ValueError("a cluster needs at least one broker")
        self._racks = None if racks is None else list(racks)
        if self._racks is not None and len(self._racks) != len(self._ports):
            raise ValueError(f"racks= names {len(self._racks)} racks for {len(self._ports)} brokers")
        self._security = ClusterSecurity(users, superusers, acls)
        self._allow_unsigned_tokens = allow_unsigned_tokens
        self.authority = throw_away_authority(tls)
        self._configs = {
            **TEST_CONFIGS,
            **(VIRTUAL_CONFIGS if clock is not None else {}),
            **(RACK_CONFIGS if racks is not None else {}),
            **self._security.configs(self.authority),
            **config_texts(configs or {}),
        }
        self._data_dir = data_dir
        self._cluster_id = cluster_id
        self._release = None if as_version is None else find_release(as_version)
        self._seed = seed
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._closing = threading.Lock()
        self._bootstrap = ""
        self._events_file = events
        self._web: dict[str, WebOptions] = {}
        self._urls: dict[str, str] = {}
        if control is not None:
            self._web["control"] = parse_web_options(
                "control=", str(control), token=control_token, token_option="control_token="
            )
        if metrics is not None:
            self._web["metrics"] = parse_web_options("metrics=", str(metrics))
        self._registry_options: WebOptions | None = None
        self._registry: RegistryServer | None = None
        self._registry_access: RegistryAccess | None = None
        self._registry_dial: Dial | None = None
        if registry is not None and registry is not False:
            self._registry_options = registry_options(
                "registry=", "0" if registry is True else str(registry), tls=self._registry_tls()
            )
            self._registry_access = self._security.registry_access()
        self._console_options: ConsoleOptions | None = None
        self._console: ConsoleServer | None = None
        if console is not None and console is not False:
            from ottla.console.options import parse_console_options

            self._console_options = parse_console_options("console=", "0" if console is True else str(console))

    # Start and stop

    def start(self) -> Cluster:
        """Start the brokers, and return self when clients can connect and the topics exist."""
        if self._thread is not None:
            return self
        ready = threading.Event()
        self._failure = None
        self._thread = threading.Thread(target=self._main, args=(ready,), name="ottla-cluster", daemon=True)
        self._thread.start()
        if not ready.wait(START_SECONDS):
            raise TimeoutError(f"the cluster did not start within {START_SECONDS:g} s")
        if self._failure is not None:
            self._thread.join()
            self._thread = None
            raise self._failure
        self._start_registry()
        self._start_console()
        return self

    def close(self) -> None:
        """Stop the brokers cleanly. May be called repeatedly, from any thread and with clients connected."""
        with self._closing:
            self._stop_console()
            self._stop_registry()
            thread, self._thread = self._thread, None
            if thread is None:
                return
            loop, stop = self._loop, self._stop
            if loop is not None and stop is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed already
                    loop.call_soon_threadsafe(stop.set)
            if thread is not threading.current_thread():
                thread.join()

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Cluster:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function or coroutine function: each call receives a new cluster with these arguments."""
        signature = inspect.signature(function)
        if "cluster" not in signature.parameters:
            raise TypeError(f"{function.__name__} has no parameter `cluster`")

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def with_cluster(*args: Any, **kwargs: Any) -> Any:
                async with Cluster(**self._arguments) as cluster:
                    return await function(*args, cluster=cluster, **kwargs)
        else:

            @functools.wraps(function)
            def with_cluster(*args: Any, **kwargs: Any) -> Any:
                with Cluster(**self._arguments) as cluster:
                    return function(*args, cluster=cluster, **kwargs)

        others = [parameter for name, parameter in signature.parameters.items() if name != "cluster"]
        with_cluster.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return with_cluster

    @property
    def ca_pem(self) -> str:
        """With `tls`, the CA certificate for clients to trust, as PEM."""
        if self.authority is None:
            raise RuntimeError("the cluster has no certificate; use Cluster(tls=True)")
        return self.authority.certificate_pem.decode()

    @property
    def bootstrap(self) -> str:
        """The value for a client's `bootstrap.servers`."""
        return self._bootstrap

    @property
    def control_url(self) -> str:
        """With `control`, the URL of the control API."""
        return self._url("control")

    @property
    def metrics_url(self) -> str:
        """With `metrics`, the URL of the page with metrics in Prometheus' text format."""
        return self._url("metrics")

    @property
    def registry_url(self) -> str:
        """With `registry`, the URL of the schema registry."""
        return self._url("registry")

    @property
    def console_url(self) -> str:
        """With `console`, the URL of the web page, with its access token."""
        return self._url("console")

    def reset(self) -> None:
        """Return to the state after the start; a schema registry starts again at the same URL, empty."""
        self._stop_registry()
        super().reset()
        self._start_registry()

    def _start_registry(self) -> None:
        if self._registry_options is None:
            return
        from ottla.client import Client
        from ottla.registry.server import RegistryServer

        connect = functools.partial(Client, self.bootstrap, client_id="ottla-registry", dial=self._registry_dial)
        self._registry = RegistryServer(connect, self._registry_options, self._registry_access).start()
        self._urls["registry"] = self._registry.url
        self._registry_options = replace(self._registry_options, port=int(self._registry.url.rpartition(":")[2]))

    def _schema_client(self, decode: bool | str) -> RegistryClient:
        if self._registry is not None and not isinstance(decode, str):
            return self._registry.client()
        return super()._schema_client(decode)

    def _registry_tls(self) -> TlsSettings | None:
        if self.authority is None:
            return None
        from ottla.security.tls import TlsSettings

        server = self.authority.server()
        return TlsSettings(
            keystore_type="PEM",
            keystore_key=server.key_pem.decode(),
            keystore_chain=server.certificate_pem.decode(),
        )

    def _stop_registry(self) -> None:
        registry, self._registry = self._registry, None
        if registry is not None:
            registry.close()

    def _start_console(self) -> None:
        if self._console_options is None:
            return
        from ottla.client import Client
        from ottla.client.auth import security_from_properties
        from ottla.console.server import ConsoleServer

        login = self._security.console_login()
        properties = self._security.client_properties(self.authority, login)
        security = security_from_properties(properties, {})
        connect = functools.partial(Client, self.bootstrap, client_id="ottla-console", timeout=10, security=security)
        options = replace(self._console_options, registry=self._urls.get("registry"))
        self._console = ConsoleServer(
            connect,
            options,
            bootstrap=self.bootstrap,
            principal="" if login is None else f"User:{login.name}",
            kit=self,
        ).start()
        self._urls["console"] = self._console.url

    def _stop_console(self) -> None:
        console, self._console = self._console, None
        if console is not None:
            console.close()

    def _url(self, name: str) -> str:
        if name not in self._urls:
            raise RuntimeError(f"the cluster serves no {name}; start it with Cluster({name}=0)")
        return self._urls[name]

    # The cluster's thread

    def _main(self, ready: threading.Event) -> None:
        try:
            loop = new_loop()
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._serve(loop, ready))
        except BaseException as error:
            self._failure = error
        finally:
            self._loop = self._loop_thread = None
            ready.set()

    async def _serve(self, loop: asyncio.AbstractEventLoop, ready: threading.Event) -> None:
        world = World.real(loop, RealDisk(loop) if self._data_dir else MemoryDisk(None, limit_bytes=DEFAULT_CAP_BYTES))
        if self._virtual is not None:
            from ottla.testing.control.manual_clock import ManualClock

            world.clock = ManualClock(loop, self._virtual)
        if self._seed is not None:
            world.random = SeededRandom(self._seed)
        self.prepare(world)
        configs = [self._node_config(number, port) for number, port in enumerate(self._ports, 1)]
        self._stop = asyncio.Event()
        with contextlib.ExitStack() as files:
            file = None if self._events_file is None else files.enter_context(EventFile(self._events_file))
            await self._run_cluster(world, configs, file, ready)

    async def _run_cluster(
        self, world: World, configs: list[ServerConfig], file: EventFile | None, ready: threading.Event
    ) -> None:
        assert self._stop is not None
        events = Events(world.clock.now_ms, [self._recent] if file is None else [self._recent, file])
        running = RunningCluster(
            world,
            configs,
            sync=self._sync,
            cluster_id=self._cluster_id,
            events=events,
            release=self._release,
            allow_unsigned_tokens=self._allow_unsigned_tokens,
        )
        async with contextlib.AsyncExitStack() as stack:
            web = {name: options.server() for name, options in self._web.items()}
            for server in web.values():
                server.bind()
                stack.push_async_callback(server.stop)
            runtime = await running.start()
            stack.push_async_callback(running.stop, drain_seconds=0)
            self._security.write(runtime)
            self.attach(running, events)
            await self._serve_http(running, web)
            self._bootstrap = running.bootstrap
            self._registry_dial = running.dialer(REGISTRY_PRINCIPAL)
            ready.set()
            await self._stop.wait()
            self.rules.clear()
            for server in web.values():
                await server.stop()
        for _ in range(CLOSING_TURNS):  # aborted connections emit their last event before the event file is closed
            await asyncio.sleep(0)

    async def _serve_http(self, running: RunningCluster, web: Mapping[str, WebServer]) -> None:
        """Serve the HTTP applications that were requested; nothing of them is imported otherwise."""
        if "control" in web:
            from ottla.testing.http.api import control_routes

            await web["control"].serve(control_routes(self))
            self._urls["control"] = web["control"].url
        if "metrics" in web:
            from ottla.server.metrics import ClusterMetrics
            from ottla.server.web import METRICS_PATH, metrics_routes

            await web["metrics"].serve(metrics_routes(ClusterMetrics(running).text))
            self._urls["metrics"] = web["metrics"].url + METRICS_PATH

    def _node_config(self, number: int, port: int) -> ServerConfig:
        root = self._data_dir or "/ottla"
        several = len(self._ports) > 1 or number > 1
        return server_config(
            {
                "node.id": str(number),
                "listeners": f"{self._security.listener(self.authority)}://127.0.0.1:{port}",
                "log.dirs": f"{root}/node-{number}" if several else root,
                **({"broker.rack": self._racks[number - 1]} if self._racks and number <= len(self._racks) else {}),
                **self._configs,
            }
        )


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def parse_topics(topics: Iterable[str] | Mapping[str, int | Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return topics as tests write them as a dict from name to `partitions`, `replication_factor` and `configs`."""
    if isinstance(topics, str):
        raise ValueError(f"topics: write a list, such as [{topics!r}]")
    parsed: dict[str, Mapping[str, Any]] = {}
    for word in topics:
        name, colon, partitions = word.rpartition(":")
        options: Mapping[str, Any] = {}
        if isinstance(topics, Mapping):
            name, options = word, _check_topic(word, topics[word])
        elif colon:
            if not partitions.isdigit():
                raise ValueError(f"topic {word!r}: write name:partitions, such as orders:3")
            options = {"partitions": int(partitions)}
        else:
            name = word
        if name in parsed:
            raise ValueError(f"topics: {name} occurs twice")
        parsed[name] = options
    return parsed


def _check_topic(name: str, options: Any) -> Mapping[str, Any]:
    if isinstance(options, int):
        return {"partitions": options}
    if not isinstance(options, Mapping) or set(options) - TOPIC_FIELDS:
        raise ValueError(f"topic {name}: write a dict with {', '.join(sorted(TOPIC_FIELDS))}, not {options!r}")
    return {**options, "configs": config_texts(options.get("configs") or {})}
