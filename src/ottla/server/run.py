"""A whole cluster with its sockets: bind, open, serve, and a stop that loses nothing."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.broker.start import close_cluster, open_cluster
from ottla.server.server import NodeServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.broker.cluster import Cluster
    from ottla.cluster.server_config import Endpoint, ServerConfig
    from ottla.events import Events
    from ottla.protocol.releases import Release
    from ottla.world.world import World

log = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0


class RunningCluster:
    """The nodes of one process with their listeners. `start` it, then `stop` it."""

    def __init__(
        self,
        world: World,
        configs: Sequence[ServerConfig],
        *,
        sync: bool = False,
        cluster_id: str | None = None,
        events: Events | None = None,
        release: Release | None = None,
    ) -> None:
        self._world = world
        self._configs = list(configs)
        self._sync = sync
        self._cluster_id = cluster_id
        self._events = events
        self._release = release
        self.servers: dict[int, NodeServer] = {}
        self.cluster: Cluster | None = None

    @property
    def bootstrap(self) -> str:
        """host:port of the first listener of every node, as clients want it."""
        assert self.cluster is not None
        firsts = [next(iter(node.endpoints.values())) for node in self.cluster.nodes.values()]
        return ",".join(f"{each.host or 'localhost'}:{each.port}" for each in firsts)

    async def start(self) -> Cluster:
        """Bind every listener, open the data, let clients in."""
        try:
            advertised = {}
            for config in self._configs:
                assert config.node_id is not None
                server = NodeServer(self._world.transport, self._world.clock)
                self.servers[config.node_id] = server
                ports = await server.bind(config.listeners, config.layers())
                advertised[config.node_id] = _advertised(config, ports)
            self.cluster = open_cluster(
                self._world,
                self._configs,
                advertised,
                sync=self._sync,
                cluster_id=self._cluster_id,
                events=self._events,
            )
        except BaseException:
            for server in self.servers.values():
                server.stop_listening()
            raise
        self.cluster.release = self._release
        for node_id, server in self.servers.items():
            server.serve(self.cluster.nodes[node_id])
        return self.cluster

    async def stop(self, drain_seconds: float = DRAIN_SECONDS) -> None:
        """Finish what is in progress, close every connection, and stop the cluster cleanly."""
        cluster, self.cluster = self.cluster, None
        if cluster is None:
            return
        for server in self.servers.values():
            server.stop_listening()
        cluster.stop_waiting()
        for server in self.servers.values():
            await server.drain(drain_seconds)
        close_cluster(cluster)
        if self._events is not None:
            for node_id in cluster.nodes:
                self._events.of_node(node_id).emit("node.stopped", reason="stopped")


def _advertised(config: ServerConfig, ports: dict[str, int]) -> list[Endpoint]:
    """What clients are told: the configured addresses, with the port that was bound where none was given."""
    found = []
    for endpoint in config.advertised_listeners:
        port = endpoint.port if endpoint.port > 0 else ports[endpoint.listener]
        host = endpoint.host if endpoint.host not in (None, "", "0.0.0.0", "::") else "localhost"
        found.append(replace(endpoint, host=host, port=port))
    return found
