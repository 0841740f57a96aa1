"""`ottla serve`: run a broker, or several, until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import json
import logging
import os
import signal
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ottla import __version__
from ottla.broker.broker import RACK_AWARE_SELECTOR
from ottla.broker.start import StartError
from ottla.cli.dev_tls import DevTls, make_dev_tls
from ottla.cli.output import examples
from ottla.cluster.server_config import ServerConfig, ServerConfigError, load_server_properties, server_config
from ottla.events import EventFile, Events, log_event
from ottla.printable import PrintableFormatter
from ottla.protocol.errors import KafkaError
from ottla.protocol.releases import find_release
from ottla.protocol.secrets import is_secret_config
from ottla.security.tls import TlsError
from ottla.server.run import RunningCluster, address
from ottla.server.web_options import CONTROL_TOKEN_VARIABLE, parse_web_options
from ottla.world.disk_memory import MemoryDisk
from ottla.world.disk_real import RealDisk
from ottla.world.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.events import Sink
    from ottla.protocol.releases import Release
    from ottla.server.web import WebServer
    from ottla.server.web_options import WebOptions
    from ottla.testing.http.served_cluster import ServedCluster

LEVELS = {"none": logging.CRITICAL + 1, "error": 40, "warn": 30, "info": 20, "debug": 10}
FAILED = 1
BAD_USAGE = 2
SETTLED_SECONDS = 1.0  # after the start, when first clients have been answered
MEMORY_DIR = "/ottla"
EXAMPLES = examples(
    "ottla serve                         in memory, on localhost:9092",
    "ottla serve -d ./data --sync        durable, in Apache Kafka's own directory format",
    "ottla serve -p 9092,9093,9094       three nodes in one process",
    "ottla serve server.properties       what Apache Kafka would do with that file",
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve", epilog=EXAMPLES)(serve)


def serve(
    properties: Annotated[
        str | None,
        typer.Argument(metavar="[SERVER.PROPERTIES]", help="A Kafka server.properties to read.", show_default=False),
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option("--data-dir", "-d", help="Keep the data here, else in memory.", show_default=False),
    ] = None,
    sync: Annotated[
        bool, typer.Option("--sync", help="fsync before acknowledging: a power loss loses nothing either.")
    ] = False,
    ports: Annotated[
        str | None,
        typer.Option("--ports", "-p", help="One port per node, with commas; 0 takes a free one.", show_default=False),
    ] = None,
    racks: Annotated[
        str | None,
        typer.Option(
            "--racks",
            help="One rack per node, with commas; consumers with a client.rack then fetch from their rack (KIP-392).",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", help="A broker config, key=value; may be repeated.")
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", "-l", help="none, error, warn, info or debug.")] = "info",
    seed_topic: Annotated[
        list[str] | None,
        typer.Option("--seed-topic", help="A topic to create, name:partitions; may be repeated."),
    ] = None,
    cluster_id: Annotated[str | None, typer.Option("--cluster-id", help="The cluster's id, else a random one.")] = None,
    as_version: Annotated[
        str | None,
        typer.Option(
            "--as-version",
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
            help="Show metrics to Prometheus there; 0 is a free port.",
            show_default=False,
        ),
    ] = None,
    dev_tls: Annotated[
        bool, typer.Option("--dev-tls", help="Listen with TLS, with a throw-away CA that is gone when it stops.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Say where it listens as one JSON object.")] = False,
    events: Annotated[
        str | None,
        typer.Option("--events", help="Append the event log to this file, a JSON object per line.", show_default=False),
    ] = None,
    control: Annotated[
        str | None,
        typer.Option(
            "--control",
            metavar="[HOST:]PORT",
            help="Let tests in any language control it over HTTP there (/openapi.json); 0 is a free port.",
            show_default=False,
        ),
    ] = None,
    control_token: Annotated[
        str | None,
        typer.Option(
            "--control-token",
            envvar=CONTROL_TOKEN_VARIABLE,
            metavar="TOKEN",
            help="Require this bearer token of control requests. Other users of this machine can read command lines: "
            "prefer the environment variable.",
            show_default=False,
        ),
    ] = None,
    http_host: Annotated[
        list[str] | None,
        typer.Option(
            "--http-host",
            metavar="NAME",
            help="Accept HTTP requests for this host name, besides loopback names and the bound host; may be repeated.",
        ),
    ] = None,
    virtual_time: Annotated[
        bool, typer.Option("--virtual-time", help="With --control: time stands still until a test moves it.")
    ] = False,
) -> None:
    """Run a Kafka-compatible broker.

    Stop it with Ctrl-C or SIGTERM: requests in progress are finished and the data is closed cleanly.
    """
    level = LEVELS.get(log_level)
    if level is None:
        raise _usage(f"--log-level {log_level}: use one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=level, handlers=[handler])
    tls = None
    try:
        if dev_tls and properties is not None:
            raise ValueError("--dev-tls and a properties file cannot be used together: the file has listeners")
        tls = make_dev_tls() if dev_tls else None
        overrides = {**(tls.configs if tls is not None else {}), **_pairs(config or [])}
        configs = node_configs(properties, data_dir, ports, overrides, "SSL" if dev_tls else "PLAINTEXT", racks)
        topics = [_topic(each) for each in seed_topic or []]
        release = None if as_version is None else find_release(as_version)
        names = http_host or []
        page = None if metrics is None else _metrics_options(metrics, names)
        kit = None if control is None else _control_options(control, control_token, names)
        if virtual_time and kit is None:
            raise ValueError("--virtual-time needs --control: nobody else could move time")
    except (ServerConfigError, ValueError) as error:
        raise _usage(str(error)) from error
    for each in configs:
        for warning in each.warnings:
            logging.getLogger(__name__).warning("%s", warning)
    in_memory = data_dir is None and properties is None and not {"log.dir", "log.dirs"} & set(overrides)
    try:
        wanted = _Wanted(
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
        )
        _run(_serve(wanted))
    except KafkaError as error:
        raise _usage(f"--seed-topic: {error}") from error
    except (StartError, TlsError, OSError) as error:
        typer.echo(f"ottla serve: {error}", err=True)
        raise typer.Exit(FAILED) from error
    finally:
        if tls is not None:
            tls.remove()


def node_configs(
    properties: str | None,
    data_dir: str | None,
    ports: str | None,
    overrides: Mapping[str, str],
    protocol: str = "PLAINTEXT",
    racks: str | None = None,
) -> list[ServerConfig]:
    """Return the configuration of each node that a command line asks for."""
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
    wanted = _ports(ports or "9092")
    names = None if racks is None else [name.strip() for name in racks.split(",")]
    if names is not None and (len(names) != len(wanted) or not all(names)):
        raise ValueError(f"--racks {racks}: write one rack for each of the {len(wanted)} nodes, with commas between")
    root = data_dir or MEMORY_DIR
    found = []
    for number, port in enumerate(wanted, 1):
        values = {
            "node.id": str(number),
            "listeners": f"{protocol}://127.0.0.1:{port}",
            "log.dirs": root if len(wanted) == 1 else f"{root}/node-{number}",
        }
        if names is not None:
            values |= {"broker.rack": names[number - 1], "replica.selector.class": RACK_AWARE_SELECTOR}
        found.append(server_config({**values, **overrides}))
    return found


def _ports(text: str) -> list[int]:
    found = []
    for part in text.split(","):
        if not part.strip().isdigit() or int(part) > 65535:
            raise ValueError(f"--ports {text}: write port numbers with commas between, such as 9092,9093,9094")
        found.append(int(part))
    fixed = [port for port in found if port]
    if len(set(fixed)) != len(fixed):
        raise ValueError(f"--ports {text}: a port is there twice")
    return found


def _pairs(words: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ValueError(f"--config {word}: write key=value")
        if is_secret_config(key):
            raise ValueError(
                f"--config {key}: a command line can be read by every user of this machine; put it into a properties "
                "file that only you can read"
            )
        pairs[key] = value
    return pairs


def _topic(word: str) -> tuple[str, int]:
    name, colon, count = word.rpartition(":")
    if not colon:
        return word, 1
    if not count.isdigit() or int(count) < 1:
        raise ValueError(f"--seed-topic {word}: write name:partitions, such as orders:3")
    return name, int(count)


def _event_sinks(path: str | None, level: int) -> list[Sink]:
    sinks: list[Sink] = []
    if path is not None:
        sinks.append(EventFile(path))
    if level <= logging.DEBUG:
        sinks.append(log_event)
    return sinks


def _usage(problem: str) -> typer.Exit:
    typer.echo(f"ottla serve: {problem}", err=True)
    return typer.Exit(BAD_USAGE)


def _run(main: object) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)  # type: ignore[arg-type]
    else:
        uvloop.run(main)  # type: ignore[arg-type]


class _Wanted(NamedTuple):
    """What the command line asks for."""

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

    @property
    def place(self) -> str:
        """Where the data is."""
        return "memory" if self.in_memory else ", ".join(path for each in self.configs for path in each.log_dirs)


async def _serve(wanted: _Wanted) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(each, stop.set)
    # HTTP ports are bound first: a client that can reach the broker can reach them too.
    web = {
        name: _bind(options)
        for name, options in (("metrics", wanted.metrics), ("control", wanted.control))
        if options is not None
    }
    try:
        await _serve_cluster(wanted, stop, web)
    finally:
        for server in web.values():
            await server.stop()


async def _serve_cluster(wanted: _Wanted, stop: asyncio.Event, web: Mapping[str, WebServer]) -> None:
    loop = asyncio.get_running_loop()
    world = World.real(loop, MemoryDisk() if wanted.in_memory else None)
    kit = None if wanted.control is None else _control(world, wanted)
    sinks: list[Sink] = wanted.sinks if kit is None else [*wanted.sinks, kit.recent]
    events = Events(world.clock.now_ms, sinks) if sinks else None
    running = RunningCluster(
        world,
        wanted.configs,
        sync=wanted.sync,
        cluster_id=wanted.cluster_id,
        events=events,
        release=wanted.release,
    )
    cluster = await running.start()
    try:
        for name, partitions in wanted.topics:
            cluster.create_topic(name, partitions)
        if kit is not None and events is not None:
            await kit.open(running, events, web["control"])
        if "metrics" in web:
            await _show_metrics(running, web["metrics"])
    except BaseException:
        await running.stop(drain_seconds=0)
        raise
    loop.call_later(SETTLED_SECONDS, _settle)
    _announce(running, wanted, {name: server.url for name, server in web.items()})
    cluster.storage_lost.then = lambda: loop.call_soon_threadsafe(stop.set)
    if not cluster.storage_lost.is_set:
        await stop.wait()
    logging.getLogger(__name__).info("stopping")
    for server in web.values():
        await server.stop()
    if kit is not None:
        kit.controls.clear()
    await running.stop()
    if cluster.storage_lost.is_set:
        raise OSError("no log directory is left that it could go on with")


def _bind(options: WebOptions) -> WebServer:
    server = options.server()
    server.bind()
    return server


def _settle() -> None:
    """The objects of start-up live as long as the process: the collector need not look at them again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def _control(world: World, wanted: _Wanted) -> ServedCluster:
    from ottla.testing.http.served_cluster import ServedCluster

    return ServedCluster(world, wanted.configs, wanted.topics, sync=wanted.sync, virtual_time=wanted.virtual_time)


async def _show_metrics(running: RunningCluster, server: WebServer) -> None:
    from ottla.server.metrics import ClusterMetrics
    from ottla.server.web import METRICS_PATH, metrics_routes

    await server.serve(metrics_routes(ClusterMetrics(running, process=True).text))
    server.url += METRICS_PATH


def _metrics_options(word: str, names: Sequence[str]) -> WebOptions:
    options = parse_web_options("--metrics", word, allowed_hosts=names)
    if importlib.util.find_spec("prometheus_client") is None:
        raise ValueError("--metrics requires prometheus-client: pip install 'ottla[metrics]'")
    return options


def _control_options(word: str, token: str | None, names: Sequence[str]) -> WebOptions:
    return parse_web_options("--control", word, token=token, allowed_hosts=names, token_option="--control-token")


def _announce(running: RunningCluster, wanted: _Wanted, pages: Mapping[str, str | None]) -> None:
    assert running.cluster is not None
    if wanted.as_json:
        told = {
            "bootstrap": running.bootstrap,
            "cluster_id": running.cluster.cluster_id,
            "data": wanted.place,
            "pid": os.getpid(),
            "listeners": [
                {"node": node, "listener": each.listener, "protocol": each.security_protocol, "address": address(each)}
                for node, each in running.listeners
            ],
        }
        if wanted.tls is not None:
            told |= {"ca": wanted.tls.authority, "client_properties": wanted.tls.client_properties}
        typer.echo(json.dumps(told | {name: url for name, url in pages.items() if url is not None}))
        return
    played = f", as Kafka {wanted.release.name}" if wanted.release is not None else ""
    kept = "in memory, gone when it stops" if wanted.in_memory else f"in {wanted.place}"
    typer.echo(f"ottla {__version__} serves {running.bootstrap}{played}; its data is {kept}")
    for name, url in pages.items():
        if url is not None:
            typer.echo(f"  {name:<9} {url}")
    if len(running.listeners) > len(running.cluster.nodes):
        for node, each in running.listeners:
            typer.echo(f"  listener  {each.listener} ({each.security_protocol}) of node {node}: {address(each)}")
    typer.echo(f"  connect   bootstrap.servers={running.bootstrap} in any Kafka client")
    login = ""
    if wanted.tls is not None:
        typer.echo(f"  TLS       security.protocol=SSL, trust {wanted.tls.authority}")
        login = f" --command-config {wanted.tls.client_properties}"
    typer.echo(f"  look      ottla topic list -b {running.bootstrap}{login}")
    typer.echo("  stop      Ctrl-C")
