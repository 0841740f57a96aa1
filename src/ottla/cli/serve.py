"""`ottla serve`: run a broker, or several, until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.broker.start import StartError
from ottla.cluster.server_config import ServerConfig, ServerConfigError, load_server_properties, server_config
from ottla.events import EventFile, Events, log_event
from ottla.server.run import RunningCluster
from ottla.world.disk_memory import MemoryDisk
from ottla.world.disk_real import RealDisk
from ottla.world.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.events import Sink

LEVELS = {"none": logging.CRITICAL + 1, "error": 40, "warn": 30, "info": 20, "debug": 10}
FAILED = 1
BAD_USAGE = 2
MEMORY_DIR = "/ottla"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(serve)


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
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", help="A broker config, key=value; may be repeated.")
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", "-l", help="none, error, warn, info or debug.")] = "info",
    seed_topic: Annotated[
        list[str] | None,
        typer.Option("--seed-topic", help="A topic to create, name:partitions; may be repeated."),
    ] = None,
    cluster_id: Annotated[str | None, typer.Option("--cluster-id", help="The cluster's id, else a random one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say where it listens as one JSON object.")] = False,
    events: Annotated[
        str | None,
        typer.Option("--events", help="Append the event log to this file, a JSON object per line.", show_default=False),
    ] = None,
) -> None:
    """Run a Kafka-compatible broker.

      ottla serve                         in memory, on localhost:9092

      ottla serve -d ./data --sync        durable, in Apache Kafka's own directory format

      ottla serve -p 9092,9093,9094       three nodes in one process

      ottla serve server.properties       what Apache Kafka would do with that file

    Stop it with Ctrl-C or SIGTERM: requests in progress are finished and the data is closed cleanly.
    """
    level = LEVELS.get(log_level)
    if level is None:
        raise _usage(f"--log-level {log_level}: use one of {', '.join(LEVELS)}")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")
    try:
        configs = node_configs(properties, data_dir, ports, _pairs(config or []))
        topics = [_topic(each) for each in seed_topic or []]
    except (ServerConfigError, ValueError) as error:
        raise _usage(str(error)) from error
    for each in configs:
        for warning in each.warnings:
            logging.getLogger(__name__).warning("%s", warning)
    in_memory = data_dir is None and properties is None
    try:
        sinks = _event_sinks(events, level)
        _run(
            _serve(configs, topics, in_memory=in_memory, sync=sync, cluster_id=cluster_id, as_json=as_json, sinks=sinks)
        )
    except (StartError, OSError) as error:
        typer.echo(f"ottla serve: {error}", err=True)
        raise typer.Exit(FAILED) from error


def node_configs(
    properties: str | None, data_dir: str | None, ports: str | None, overrides: Mapping[str, str]
) -> list[ServerConfig]:
    """The configuration of each node that a command line asks for."""
    if properties is not None:
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
    root = data_dir or MEMORY_DIR
    found = []
    for number, port in enumerate(wanted, 1):
        values = {
            "node.id": str(number),
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": root if len(wanted) == 1 else f"{root}/node-{number}",
        }
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


async def _serve(
    configs: list[ServerConfig],
    topics: list[tuple[str, int]],
    *,
    in_memory: bool,
    sync: bool,
    cluster_id: str | None,
    as_json: bool,
    sinks: list[Sink],
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(each, stop.set)
    world = World.real(loop, MemoryDisk() if in_memory else None)
    events = Events(world.clock.now_ms, sinks) if sinks else None
    running = RunningCluster(world, configs, sync=sync, cluster_id=cluster_id, events=events)
    cluster = await running.start()
    for name, partitions in topics:
        cluster.create_topic(name, partitions)
    # The objects of start-up live as long as the process: the collector need not look at them again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    _announce(running, configs, in_memory, as_json)
    await stop.wait()
    logging.getLogger(__name__).info("stopping")
    await running.stop()


def _announce(running: RunningCluster, configs: list[ServerConfig], in_memory: bool, as_json: bool) -> None:
    assert running.cluster is not None
    place = "memory" if in_memory else ", ".join(path for each in configs for path in each.log_dirs)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "bootstrap": running.bootstrap,
                    "cluster_id": running.cluster.cluster_id,
                    "data": place,
                    "pid": os.getpid(),
                }
            )
        )
        return
    typer.echo(f"ottla serves {running.bootstrap} (data in {place})")
    typer.echo(f"connect any Kafka client with bootstrap.servers={running.bootstrap}; stop with Ctrl-C")
