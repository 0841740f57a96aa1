"""The start page: brokers, controller, features, quorum and log directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from ottla.client.configs import Resource
from ottla.console.data.cluster import api_versions, describe_cluster, ping
from ottla.console.data.configs import describe_resource
from ottla.console.page import Page, parse_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from ottla.console.page import Call

page = Page("cluster", "Cluster", section="Cluster", path="/", key="c")


@page.get("/")
async def show(call: Call) -> Response:
    """Show the cluster."""
    cluster = await call.console.access.cached("cluster", 1.5, describe_cluster)
    return call.render("cluster.html", cluster=cluster, live="/cluster/live")


@page.get("/cluster/live")
async def live(call: Call) -> Response:
    """Stream the parts of the page that move."""

    async def regions() -> Mapping[str, str]:
        cluster = await call.console.access.cached("cluster", 1.5, describe_cluster)
        return {name: call.block("cluster.html", name, cluster=cluster) for name in ("summary", "brokers")}

    return call.live(regions)


@page.get("/brokers/{node}")
async def broker(call: Call) -> Response:
    """Show one broker: configs, log directories, API versions."""
    node = parse_number("node", call.path["node"], most=2**31 - 1)
    cluster = await call.console.access.cached("cluster", 1.5, describe_cluster)
    info = next((entry for entry in cluster.brokers if entry.node == node), None)
    if info is None:
        raise HTTPException(404, f"The cluster has no broker {node}.")
    configs = await call.run(describe_resource, Resource.BROKER, str(node))
    apis = await call.run(api_versions, node)
    return call.render("broker.html", broker=info, configs=configs, apis=apis)


@page.get("/live")
async def state(call: Call) -> Response:
    """Stream whether the cluster answers, for pages without parts that move."""

    async def regions() -> Mapping[str, str]:
        await call.run(ping)
        return {}

    return call.live(regions, seconds=5)
