"""`ottla serve`: run a cluster of one or more brokers in this process until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import json
import logging
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ottla import __version__
from ottla.broker.broker import RACK_AWARE_SELECTOR
from ottla.broker.start import StartError
from ottla.cli.options.commands import add_command
from ottla.cli.options.http import ControlPort, ControlToken, HttpHosts, control_options
from ottla.cli.serving.dev_tls import DevTls, make_dev_tls
from ottla.cli.terminal.output import fail, pairs, usage
from ottla.cluster.configs.effective import listener_value
from ottla.cluster.server_config import ServerConfig, ServerConfigError, load_server_properties, server_config
from ottla.events import EventFile, Events, log_event
from ottla.printable import PrintableFormatter
from ottla.protocol.errors import KafkaError
from ottla.protocol.inspect.secrets import is_secret_config
from ottla.protocol.releases import find_release
from ottla.quantities import parse_size
from ottla.registry.access import read_access
from ottla.registry.options import REGISTRY_PRINCIPAL, registry_options
from ottla.security.tls import TlsError, TlsSettings
from ottla.server.run import RunningCluster, address
from ottla.server.tls import TLS_PROTOCOLS
from ottla.server.web_options import parse_web_options
from ottla.world.disk_memory import MemoryDisk
from ottla.world.disk_real import RealDisk
from ottla.world.machine import memory_bytes
from ottla.world.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.broker.runtime import BrokerRuntime
    from ottla.client.auth import Security
    from ottla.console.options import ConsoleOptions
    from ottla.console.server import ConsoleServer
    from ottla.events import Sink
    from ottla.protocol.releases import Release
    from ottla.registry.access import RegistryAccess
    from ottla.registry.server import RegistryServer
    from ottla.server.web import WebServer
    from ottla.server.web_options import WebOptions
    from ottla.testing.http.served_cluster import ServedCluster

LEVELS = {"none": logging.CRITICAL + 1, "error": 40, "warn": 30, "info": 20, "debug": 10}
FREEZE_SECONDS = 1.0  # after the start, when the first clients have been served
MEMORY_DIR = "/ottla"
SMALLEST_MEMORY_LIMIT = 16 << 20


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(
        app,
        "serve",
        serve,
        "ottla serve                        in memory, on localhost:9092",
        "ottla serve -d ./data --sync       durable, in Kafka's directory format",
        "ottla serve -p 9092,9093,9094      three nodes in one process",
        "ottla serve server.properties      configured as Kafka would be",
    )


def serve(
    properties: Annotated[
        str | None,
        typer.Argument(metavar="[SERVER.PROPERTIES]", help="Read a broker's properties file.", show_default=False),
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option(
            "--data-dir", "-d", metavar="DIR", help="Store the logs here.", show_default="memory, lost at the end"
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="Refuse records when logs in memory reach this size, such as 2g.",
            show_default="half of the memory",
        ),
    ] = None,
    sync: Annotated[
        bool, typer.Option("--sync", help="fsync before acknowledging, so that a power failure loses nothing.")
    ] = False,
    ports: Annotated[
        str | None,
        typer.Option(
            "--ports",
            "-p",
            metavar="PORT,...",
            help="Listen on these ports of 127.0.0.1, one per node; 0 picks a free port.",
            show_default="9092",
        ),
    ] = None,
    racks: Annotated[
        str | None,
        typer.Option(
            "--racks",
            metavar="RACK,...",
            help="Put each node into a rack; consumers with a client.rack then fetch from their rack (KIP-392).",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", "-c", metavar="KEY=VALUE", help="Set a broker config; repeatable.", show_default=False
        ),
    ] = None,
    log_level: Annotated[
        str, typer.Option("--log-level", "-l", metavar="LEVEL", help="Log none, error, warn, info or debug.")
    ] = "info",
    seed_topic: Annotated[
        list[str] | None,
        typer.Option(
            "--seed-topic", metavar="NAME[:N]", help="Create a topic with N partitions; repeatable.", show_default=False
        ),
    ] = None,
    cluster_id: Annotated[
        str | None, typer.Option("--cluster-id", metavar="ID", help="Use this cluster id.", show_default="random")
    ] = None,
    as_version: Annotated[
        str | None,
        typer.Option(
            "--as-version",
            metavar="RELEASE",
            help="Serve no newer API versions and features than this Kafka release, such as 3.5; oldest versions, "
            "records and config defaults stay those of 4.3.",
            show_default=False,
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="[HOST:]PORT",
            help="Serve metrics for Prometheus over HTTP; 0 picks a free port.",
            show_default=False,
        ),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            metavar="[HOST:]PORT",
            help="Serve a schema registry over HTTP; 0 picks a free port.",
            show_default=False,
        ),
    ] = None,
    registry_users: Annotated[
        str | None,
        typer.Option(
            "--registry-users",
            metavar="FILE",
            help="Admit only the users of this TOML file to the schema registry, with their rights by subject.",
            show_default=False,
        ),
    ] = None,
    console: Annotated[
        str | None,
        typer.Option(
            "--console",
            metavar="[HOST:]PORT",
            help="Serve a web page that shows the cluster; 0 picks a free port. The printed address has its token.",
            show_default=False,
        ),
    ] = None,
    dev_tls: Annotated[
        bool, typer.Option("--dev-tls", help="Listen with TLS and a certificate of a temporary CA.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as one JSON object.")] = False,
    events: Annotated[
        str | None,
        typer.Option(
            "--events",
            metavar="FILE",
            help="Append the event log to this file, one JSON object per line.",
            show_default=False,
        ),
    ] = None,
    control: ControlPort = None,
    control_token: ControlToken = None,
    http_host: HttpHosts = None,
    virtual_time: Annotated[
        bool, typer.Option("--virtual-time", help="Stop the clock, which tests advance; requires --control.")
    ] = False,
) -> None:
    """Run a Kafka-compatible broker.

    Ctrl-C or SIGTERM stops it cleanly: it finishes requests in progress and closes the logs.
    """
    level = LEVELS.get(log_level)
    if level is None:
        raise usage(f"--log-level {log_level}: use one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=level, handlers=[handler])
    tls = None
    try:
        if dev_tls and properties is not None:
            raise ValueError("--dev-tls and a properties file cannot be used together: the file has listeners")
        config_overrides = _configs(config or [])
        tls = make_dev_tls() if dev_tls else None
        overrides = {**(tls.configs if tls is not None else {}), **config_overrides}
        configs = node_configs(properties, data_dir, ports, overrides, "SSL" if dev_tls else "PLAINTEXT", racks)
        topics = [_seed_topic(word) for word in seed_topic or []]
        release = None if as_version is None else find_release(as_version)
        names = http_host or []
        page = None if metrics is None else _metrics_options(metrics, names)
        kit = control_options(control, control_token, names)
        schemas = None if registry is None else _registry_options(registry, names, configs, registry_users)
        if registry_users is not None and registry is None:
            raise ValueError("--registry-users requires --registry")
        access = None if registry_users is None else read_access(registry_users)
        page_options = None if console is None else _console_options(console, names, configs)
        if virtual_time and kit is None:
            raise ValueError("--virtual-time requires --control, which advances the time")
        in_memory = data_dir is None and properties is None and not {"log.dir", "log.dirs"} & set(overrides)
        limit = _memory_limit(memory_limit, in_memory)
        if sync and in_memory:
            raise ValueError("--sync requires --data-dir: memory does not survive the process")
        if http_host and page is None and kit is None and schemas is None and page_options is None:
            raise ValueError("--http-host requires --console, --control, --metrics or --registry")
    except (ServerConfigError, ValueError) as error:
        if tls is not None:
            tls.remove()
        raise usage(str(error)) from error
    for node_config in configs:
        for warning in node_config.warnings:
            logging.getLogger(__name__).warning("%s", warning)
    try:
        options = _ServeOptions(
            configs,
            topics,
            in_memory,
            sync,
            cluster_id,
            as_json,
            _event_sinks(events, level),
            release,
            page,
            kit,
            virtual_time,
            tls,
            limit,
            schemas,
            page_options,
            access,
        )
        _run(_serve(options))
    except KafkaError as error:
        raise usage(f"--seed-topic: {error}") from error
    except (StartError, TlsError, OSError) as error:
        raise fail(str(error)) from error
    finally:
        if tls is not None:
            tls.remove()


def _memory_limit(text: str | None, in_memory: bool) -> int:
    """Return the bytes that logs in memory may take: half of the machine's memory unless the option is given."""
    if text is None:
        return memory_bytes() // 2
    if not in_memory:
        raise ValueError("--memory-limit and a data directory cannot be used together: the data is on disk")
    try:
        limit = parse_size(text)
    except ValueError as error:
        raise ValueError(f"--memory-limit: {error}") from None
    if limit < SMALLEST_MEMORY_LIMIT:
        raise ValueError(f"--memory-limit {text}: at least {SMALLEST_MEMORY_LIMIT >> 20}m are needed")
    return limit


def node_configs(
    properties: str | None,
    data_dir: str | None,
    ports: str | None,
    overrides: Mapping[str, str],
    protocol: str = "PLAINTEXT",
    racks: str | None = None,
) -> list[ServerConfig]:
    """Return the configuration of each node that the command line describes."""
    if properties is not None:
        if racks is not None:
            raise ValueError("--racks and a properties file cannot be used together: the file has broker.rack")
        values = dict(overrides)
        if data_dir is not None:
            values["log.dirs"] = data_dir
        if ports is not None:
            raise ValueError("--ports and a properties file cannot be used together: the file has listeners")
        config = load_server_properties(RealDisk(), properties, values)
        if config.node_id is None:
            config = load_server_properties(RealDisk(), properties, {**values, "node.id": "1"})
        return [config]
    node_ports = _ports(ports or "9092")
    names = None if racks is None else [name.strip() for name in racks.split(",")]
    if names is not None and (len(names) != len(node_ports) or not all(names)):
        raise ValueError(
            f"--racks {racks}: write one rack for each of the {len(node_ports)} nodes, separated by commas"
        )
    root = data_dir or MEMORY_DIR
    configs = []
    for number, port in enumerate(node_ports, 1):
        values = {
            "node.id": str(number),
            "listeners": f"{protocol}://127.0.0.1:{port}",
            "log.dirs": root if len(node_ports) == 1 else f"{root}/node-{number}",
        }
        if names is not None:
            values |= {"broker.rack": names[number - 1], "replica.selector.class": RACK_AWARE_SELECTOR}
        configs.append(server_config({**values, **overrides}))
    return configs


def _ports(text: str) -> list[int]:
    ports = []
    for part in text.split(","):
        if not part.strip().isdigit() or int(part) > 65535:
            raise ValueError(f"--ports {text}: write port numbers separated by commas, such as 9092,9093,9094")
        ports.append(int(part))
    fixed = [port for port in ports if port]
    if len(set(fixed)) != len(fixed):
        raise ValueError(f"--ports {text}: a port is given twice")
    return ports


def _configs(words: Sequence[str]) -> dict[str, str]:
    configs = pairs("--config", words)
    for key in configs:
        if is_secret_config(key):
            raise ValueError(
                f"--config {key}: every user of this machine can read a command line; put it into a properties file "
                "that only you can read"
            )
    return configs


def _seed_topic(word: str) -> tuple[str, int]:
    name, colon, count = word.rpartition(":")
    if not colon:
        return word, 1
    if not count.isdigit() or int(count) < 1:
        raise ValueError(f"--seed-topic {word}: write name:partitions, such as orders:3")
    return name, int(count)


def _create_seed_topic(runtime: BrokerRuntime, name: str, partitions: int) -> None:
    """Create a topic of --seed-topic; if it exists, keep it and log whether its partition count differs."""
    existing = runtime.image.topic(name)
    if existing is None:
        runtime.create_topic(name, partitions)
        return
    count = len(existing.partitions)
    if count == partitions:
        logging.getLogger(__name__).info("--seed-topic %s: the topic exists already, with %d partitions", name, count)
    else:
        logging.getLogger(__name__).warning(
            "--seed-topic %s:%d: the topic exists already, with %d partitions; left as it is",
            name,
            partitions,
            count,
        )


def _event_sinks(path: str | None, level: int) -> list[Sink]:
    sinks: list[Sink] = []
    if path is not None:
        sinks.append(EventFile(path))
    if level <= logging.DEBUG:
        sinks.append(log_event)
    return sinks


def _run(main: object) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)  # type: ignore[arg-type]
    else:
        uvloop.run(main)  # type: ignore[arg-type]


class _ServeOptions(NamedTuple):
    """The parsed command line."""

    configs: list[ServerConfig]
    topics: list[tuple[str, int]]
    in_memory: bool
    sync: bool
    cluster_id: str | None
    as_json: bool
    sinks: list[Sink]
    release: Release | None
    metrics: WebOptions | None
    control: WebOptions | None
    virtual_time: bool
    tls: DevTls | None
    memory_limit: int
    registry: WebOptions | None
    console: ConsoleOptions | None
    registry_access: RegistryAccess | None

    @property
    def data(self) -> str:
        """The log directories, or `memory`."""
        return "memory" if self.in_memory else ", ".join(path for node in self.configs for path in node.log_dirs)


async def _serve(options: _ServeOptions) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop.set)
    # HTTP ports are bound first: a client that can reach the broker can reach them too.
    web = {
        name: _bind(web_options)
        for name, web_options in (("metrics", options.metrics), ("control", options.control))
        if web_options is not None
    }
    try:
        await _serve_cluster(options, stop, web)
    finally:
        for server in web.values():
            await server.stop()


async def _serve_cluster(options: _ServeOptions, stop: asyncio.Event, web: Mapping[str, WebServer]) -> None:
    loop = asyncio.get_running_loop()
    world = World.real(loop, MemoryDisk(None, limit_bytes=options.memory_limit) if options.in_memory else None)
    kit = None if options.control is None else _control(world, options)
    sinks: list[Sink] = options.sinks if kit is None else [*options.sinks, kit.recent]
    events = Events(world.clock.now_ms, sinks) if sinks else None
    running = RunningCluster(
        world,
        options.configs,
        sync=options.sync,
        cluster_id=options.cluster_id,
        events=events,
        release=options.release,
    )
    runtime = await running.start()
    try:
        for name, partitions in options.topics:
            _create_seed_topic(runtime, name, partitions)
        if kit is not None and events is not None:
            await kit.open(running, events, web["control"])
        if "metrics" in web:
            await _show_metrics(running, web["metrics"])
        registry = None if options.registry is None else await _start_registry(running, options)
        console = None if options.console is None else await _start_console(running, options, registry, kit)
    except BaseException:
        await running.stop(drain_seconds=0)
        raise
    loop.call_later(FREEZE_SECONDS, _freeze_objects)
    urls: dict[str, str | None] = {name: server.url for name, server in web.items()}
    if registry is not None:
        urls["registry"] = registry.url
    if console is not None:
        urls["console"] = console.url
    _announce(running, options, urls)
    runtime.storage_lost.then = lambda: loop.call_soon_threadsafe(stop.set)
    if not runtime.storage_lost.is_set:
        await stop.wait()
    logging.getLogger(__name__).info("stopping")
    for server in web.values():
        await server.stop()
    if kit is not None:
        kit.rules.clear()
    if console is not None:
        await asyncio.to_thread(console.close)
    if registry is not None:
        await asyncio.to_thread(registry.close)
    await running.stop()
    if runtime.storage_lost.is_set:
        raise OSError("every log directory is offline")


def _bind(options: WebOptions) -> WebServer:
    server = options.server()
    server.bind()
    return server


def _freeze_objects() -> None:
    """Exempt the objects of start-up from garbage collection: they live as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def _control(world: World, options: _ServeOptions) -> ServedCluster:
    from ottla.testing.http.served_cluster import ServedCluster

    return ServedCluster(world, options.configs, options.topics, sync=options.sync, virtual_time=options.virtual_time)


async def _show_metrics(running: RunningCluster, server: WebServer) -> None:
    from ottla.server.metrics import ClusterMetrics
    from ottla.server.web import METRICS_PATH, metrics_routes

    await server.serve(metrics_routes(ClusterMetrics(running, process=True).text))
    server.url += METRICS_PATH


async def _start_registry(running: RunningCluster, options: _ServeOptions) -> RegistryServer:
    from ottla.client import Client
    from ottla.registry.server import RegistryServer

    assert options.registry is not None
    bootstrap, dial = running.bootstrap, running.dialer(REGISTRY_PRINCIPAL)
    server = RegistryServer(
        lambda: Client(bootstrap, client_id="ottla-registry", dial=dial), options.registry, options.registry_access
    )
    return await asyncio.to_thread(server.start)


async def _start_console(
    running: RunningCluster, options: _ServeOptions, registry: RegistryServer | None, kit: ServedCluster | None
) -> ConsoleServer:
    from ottla.client import Client
    from ottla.console.server import ConsoleServer

    security = _client_security(options)
    assert options.console is not None
    console = options.console if registry is None else replace(options.console, registry=registry.url)
    server = ConsoleServer(
        lambda: Client(running.bootstrap, client_id="ottla-console", timeout=10, security=security),
        console,
        bootstrap=running.bootstrap,
        kit=kit,
    )
    return await asyncio.to_thread(server.start)


def _client_security(options: _ServeOptions) -> Security | None:
    """Return how clients in this process connect to its listeners."""
    from ottla.client.auth import security_from_properties

    tls = {"security.protocol": "SSL", "ssl.truststore.type": "PEM"}
    return security_from_properties(
        {} if options.tls is None else {**tls, "ssl.truststore.location": options.tls.authority}
    )


def _registry_options(
    word: str, names: Sequence[str], configs: Sequence[ServerConfig], users: str | None
) -> WebOptions:
    """Return the registry's options; it serves https if every listener of the broker has TLS."""
    endpoints = [(endpoint, config) for config in configs for endpoint in config.listeners]
    if users is None and any(endpoint.security_protocol.startswith("SASL") for endpoint, _ in endpoints):
        raise ValueError("--registry requires --registry-users FILE beside SASL listeners, whose users have to log in")
    tls = None
    if all(endpoint.security_protocol in TLS_PROTOCOLS for endpoint, _ in endpoints):
        endpoint, config = endpoints[0]
        layers = config.layers()
        tls = TlsSettings.read(lambda name: listener_value(layers, endpoint.listener, name))
    return registry_options("--registry", word, names, tls=tls)


def _console_options(word: str, names: Sequence[str], configs: Sequence[ServerConfig]) -> ConsoleOptions:
    from ottla.console.options import parse_console_options

    if _has_sasl(configs):
        raise ValueError("--console requires listeners without SASL; start `ottla console` with credentials instead")
    return parse_console_options("--console", word, allowed_hosts=names)


def _has_sasl(configs: Sequence[ServerConfig]) -> bool:
    return any(endpoint.security_protocol.startswith("SASL") for config in configs for endpoint in config.listeners)


def _metrics_options(word: str, names: Sequence[str]) -> WebOptions:
    options = parse_web_options("--metrics", word, allowed_hosts=names)
    if importlib.util.find_spec("prometheus_client") is None:
        raise ValueError("--metrics requires prometheus-client: pip install 'ottla[metrics]'")
    return options


def _announce(running: RunningCluster, options: _ServeOptions, pages: Mapping[str, str | None]) -> None:
    assert running.runtime is not None
    if options.as_json:
        row = {
            "bootstrap": running.bootstrap,
            "cluster_id": running.runtime.cluster_id,
            "data": options.data,
            "pid": os.getpid(),
            "listeners": [
                {
                    "node": node,
                    "listener": endpoint.listener,
                    "protocol": endpoint.security_protocol,
                    "address": address(endpoint),
                }
                for node, endpoint in running.listeners
            ],
        }
        if options.tls is not None:
            row |= {"ca": options.tls.authority, "client_properties": options.tls.client_properties}
        typer.echo(json.dumps(row | {name: url for name, url in pages.items() if url is not None}))
        return
    release = f" as Kafka {options.release.name}" if options.release is not None else ""
    data = "memory, lost at the end" if options.in_memory else options.data
    typer.echo(f"ottla {__version__} listens on {running.bootstrap}{release}; data: {data}")
    for name, url in pages.items():
        if url is not None:
            typer.echo(f"  {name:<9} {url}")
    if len(running.listeners) > len(running.runtime.nodes):
        for node, endpoint in running.listeners:
            protocol = endpoint.security_protocol
            typer.echo(f"  listener  {endpoint.listener} ({protocol}) of node {node}: {address(endpoint)}")
    typer.echo(f"  connect   bootstrap.servers={running.bootstrap} in any Kafka client")
    login = ""
    if options.tls is not None:
        typer.echo(f"  TLS       security.protocol=SSL, trust {options.tls.authority}")
        login = f" --command-config {options.tls.client_properties}"
    typer.echo(f"  topics    ottla topic list -b {running.bootstrap}{login}")
    typer.echo("  stop      Ctrl-C")
