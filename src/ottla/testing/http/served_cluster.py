"""The cluster of `ottla serve --control`: controlled like a test's `Cluster`, over HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.cluster.server_config import server_config
from ottla.testing.control.controlled_cluster import ControlledCluster
from ottla.testing.control.manual_clock import ManualClock
from ottla.testing.http.api import control_routes
from ottla.world.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.cluster.server_config import ServerConfig
    from ottla.events import Events, RecentEvents
    from ottla.server.run import RunningCluster
    from ottla.server.web import WebServer
    from ottla.world.world import World


class ServedCluster(ControlledCluster):
    """A cluster whose configuration comes from a command line."""

    def __init__(
        self,
        world: World,
        configs: Sequence[ServerConfig],
        topics: Sequence[tuple[str, int]],
        *,
        sync: bool,
        virtual_time: bool,
    ) -> None:
        virtual = VirtualClock(world.clock.now_ms()) if virtual_time else None
        super().__init__({name: {"partitions": count} for name, count in topics}, sync=sync, virtual=virtual)
        self._configs = list(configs)
        if virtual is not None:
            world.clock = ManualClock(asyncio.get_running_loop(), virtual)
        self.prepare(world)

    @property
    def recent(self) -> RecentEvents:
        """The sink that keeps the last events."""
        return self._recent

    async def open(self, running: RunningCluster, events: Events, server: WebServer) -> None:
        """Attach to the running cluster and serve the control API."""
        self.attach(running, events)
        await server.serve(control_routes(self))

    def _node_config(self, number: int, port: int) -> ServerConfig:
        """Return the configuration of a node with the listeners of the first one; the first listener gets the port."""
        first = self._configs[0]
        hosts = [
            f"[{endpoint.host}]" if endpoint.host and ":" in endpoint.host else endpoint.host or ""
            for endpoint in first.listeners
        ]
        listeners = ",".join(
            f"{endpoint.listener}://{host}:{0 if position else port}"
            for position, (endpoint, host) in enumerate(zip(first.listeners, hosts, strict=True))
        )
        values = {
            **first.values,
            "node.id": str(number),
            "listeners": listeners,
            "log.dirs": f"{first.log_dirs[0].rstrip('/')}-node-{number}",
        }
        for name in ("advertised.listeners", "broker.id"):
            values.pop(name, None)
        return server_config(values)
