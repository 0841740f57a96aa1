"""A running cluster with its sockets: bind, open the data, serve, and stop cleanly."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.broker.nodes.membership import remove_node, start_node, stop_node
from ottla.broker.start import add_node, close_cluster, open_cluster
from ottla.server.server import NodeServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.broker.broker import Broker
    from ottla.broker.runtime import BrokerRuntime
    from ottla.cluster.server_config import Endpoint, ServerConfig
    from ottla.events import Events
    from ottla.protocol.releases import Release
    from ottla.world.world import World

log = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0


class RunningCluster:
    """The nodes of one process with their listeners; `start`, then `stop`."""

    def __init__(
        self,
        world: World,
        configs: Sequence[ServerConfig],
        *,
        sync: bool = False,
        cluster_id: str | None = None,
        events: Events | None = None,
        release: Release | None = None,
        allow_unsigned_tokens: bool = False,
    ) -> None:
        self._world = world
        self._configs = list(configs)
        self._sync = sync
        self._cluster_id = cluster_id
        self._events = events
        self._release = release
        self._allow_unsigned_tokens = allow_unsigned_tokens
        self.servers: dict[int, NodeServer] = {}
        self.runtime: BrokerRuntime | None = None
        self._removed: list[Broker] = []

    @property
    def bootstrap(self) -> str:
        """Return host:port of the first listener of every node, for `bootstrap.servers`."""
        assert self.runtime is not None
        return ",".join(address(next(iter(node.endpoints.values()))) for node in self.runtime.nodes.values())

    @property
    def listeners(self) -> list[tuple[int, Endpoint]]:
        """Return node id and advertised endpoint of every listener of every node."""
        assert self.runtime is not None
        return [
            (node.node_id, endpoint) for node in self.runtime.nodes.values() for endpoint in node.endpoints.values()
        ]

    def dialer(self, principal: str) -> Callable[[str, int, float], socket.socket]:
        """Return a `dial` for a `Client` of this process: an authorized principal without TLS and login.

        Call this on the event loop, and the returned function on other threads.
        """
        loop = asyncio.get_running_loop()

        async def attach(connected: socket.socket, host: str, port: int) -> None:
            for node_id, endpoint in self.listeners if self.runtime is not None else ():
                if (endpoint.host or "localhost", endpoint.port) == (host, port):
                    await self.servers[node_id].attach(connected, endpoint.listener, principal)
                    return
            raise ConnectionRefusedError(f"no node of this process listens on {host}:{port}")

        def dial(host: str, port: int, timeout: float) -> socket.socket:
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            try:
                asyncio.run_coroutine_threadsafe(attach(theirs, host, port), loop).result(timeout)
            except BaseException as error:
                ours.close()
                theirs.close()
                if isinstance(error, RuntimeError | concurrent.futures.TimeoutError):
                    raise ConnectionRefusedError("the broker's event loop does not answer") from error
                raise
            return ours

        return dial

    async def start(self) -> BrokerRuntime:
        """Bind all listeners, open the data and accept clients."""
        try:
            advertised = {}
            for config in self._configs:
                assert config.node_id is not None
                server = NodeServer(self._world.transport, self._world.clock)
                self.servers[config.node_id] = server
                ports = await server.bind(config.listeners, config.layers())
                advertised[config.node_id] = _advertised(config, ports)
            self.runtime = open_cluster(
                self._world,
                self._configs,
                advertised,
                sync=self._sync,
                cluster_id=self._cluster_id,
                events=self._events,
                allow_unsigned_tokens=self._allow_unsigned_tokens,
            )
        except BaseException:
            for server in self.servers.values():
                server.stop_listening()
            raise
        self.runtime.release = self._release
        for node_id, server in self.servers.items():
            server.serve(self.runtime.nodes[node_id])
        return self.runtime

    # Single nodes, while the others run

    async def stop_node(self, node_id: int) -> None:
        """Stop a node: break its connections and move its leadership."""
        server = self.servers[node_id]
        server.stop_listening()
        await server.drain(0)
        stop_node(self._serving, node_id)

    async def start_node(self, node_id: int) -> None:
        """Start a stopped node at the same address."""
        if self._serving.image.broker_is_active(node_id):
            return
        server, broker = self.servers[node_id], self._serving.nodes[node_id]
        bound = [
            replace(listener, port=broker.endpoints[listener.listener].port)
            for listener in broker.server_config.listeners
        ]
        await server.bind(bound, broker.layers)
        start_node(self._serving, node_id)
        server.serve(broker)

    async def add_node(self, config: ServerConfig) -> Broker:
        """Add a node."""
        assert config.node_id is not None
        server = NodeServer(self._world.transport, self._world.clock)
        advertised = _advertised(config, await server.bind(config.listeners, config.layers()))
        try:
            broker = add_node(self._serving, config, advertised)
        except BaseException:
            server.stop_listening()
            raise
        self.servers[config.node_id] = server
        server.serve(broker)
        return broker

    async def remove_node(self, node_id: int) -> None:
        """Remove a node for good."""
        broker = remove_node(self._serving, node_id)
        await self.servers.pop(node_id).drain(0)
        broker.transactions.stop()
        broker.share_coordinator.stop()
        self._removed.append(broker)

    @property
    def _serving(self) -> BrokerRuntime:
        assert self.runtime is not None
        return self.runtime

    async def stop(self, drain_seconds: float = DRAIN_SECONDS) -> None:
        """Finish requests in progress, close all connections, and stop the cluster cleanly."""
        runtime, self.runtime = self.runtime, None
        if runtime is None:
            return
        for server in self.servers.values():
            server.stop_listening()
        runtime.stop_waiting()
        for server in self.servers.values():
            await server.drain(drain_seconds)
        close_cluster(runtime)
        for broker in self._removed:
            for directory in broker.directories:
                directory.close(broker.epoch)
        for node in runtime.nodes.values():
            node.events.emit("node.stopped", reason="stopped")


def address(endpoint: Endpoint) -> str:
    """Return host:port, with an IPv6 address in brackets."""
    host = endpoint.host or "localhost"
    return f"[{host}]:{endpoint.port}" if ":" in host else f"{host}:{endpoint.port}"


def _advertised(config: ServerConfig, ports: dict[str, int]) -> list[Endpoint]:
    """Return the advertised endpoints, with the bound port where none is configured."""
    endpoints = []
    for endpoint in config.advertised_listeners:
        port = endpoint.port if endpoint.port > 0 else ports[endpoint.listener]
        host = endpoint.host if endpoint.host not in (None, "", "0.0.0.0", "::") else "localhost"
        endpoints.append(replace(endpoint, host=host, port=port))
    return endpoints
