"""The test kit for a cluster that `ottla serve --control` runs: the same hold on it, through a port."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.cluster.server_config import server_config
from ottla.testing.control.controlled_cluster import ControlledCluster, Kit
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
    """A cluster that was asked for on a command line."""

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
        self._kit = Kit(self)

    @property
    def recent(self) -> RecentEvents:
        """Where the last events are kept."""
        return self._recent

    async def open(self, running: RunningCluster, events: Events, server: WebServer) -> None:
        """Attach to the running cluster and serve the control API."""
        self.attach(running, events)
        await server.serve(control_routes(self._kit))

    def _node_config(self, number: int, port: int) -> ServerConfig:
        """A node like the first, with the same listeners; the first of them gets the port, the others any."""
        first = self._configs[0]
        hosts = [f"[{each.host}]" if each.host and ":" in each.host else each.host or "" for each in first.listeners]
        listeners = ",".join(
            f"{each.listener}://{host}:{0 if place else port}"
            for place, (each, host) in enumerate(zip(first.listeners, hosts, strict=True))
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
