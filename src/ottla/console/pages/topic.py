"""One topic: partitions, consumers and configs; adding partitions, trimming, moving leaders, deleting."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ottla.client.configs import Resource
from ottla.client.topics import create_partitions, delete_records, delete_topic
from ottla.console.data.configs import describe_resource, set_config
from ottla.console.data.history import history
from ottla.console.data.topics import consumers_of, describe_topic, elect_all, move_leader, trim_offsets
from ottla.console.forms import Form
from ottla.console.page import FieldError, parse_number
from ottla.console.pages.topics import page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from ottla.console.data.topics import TopicDetails
    from ottla.console.page import Call

PARTITIONS_SHOWN = 200


@page.get("/topics/{name}")
async def show(call: Call) -> Response:
    """Show the partitions of a topic."""
    values = await _details(call)
    start = call.number("start", 0)
    return call.render("topic.html", live=f"/topics/{call.path['name']}/live?start={start}", **values)


@page.get("/topics/{name}/live")
async def live(call: Call) -> Response:
    """Stream the partitions and the rate of a topic."""

    async def regions() -> Mapping[str, str]:
        values = await _details(call)
        name = call.path["name"]
        samples = history(call.console.shared).rates(("in", name))
        series = {"name": "records in per second", "values": [rate for _, rate in samples]}
        chart = {"times": [when for when, _ in samples], "series": [series]}
        return {
            "topic-summary": call.block("topic.html", "summary", **values),
            "partitions": call.block("topic.html", "partitions", **values),
            "rate-chart": json.dumps(chart),
        }

    return call.live(regions)


async def _details(call: Call) -> dict[str, Any]:
    name = call.path["name"]
    details = await call.run(describe_topic, name)
    if all(row.end is not None for row in details.partitions):
        history(call.console.shared).add(("in", name), sum(row.end or 0 for row in details.partitions))
    start = call.number("start", 0)
    return {
        "topic": details,
        "tab": "partitions",
        "rows": details.partitions[start : start + PARTITIONS_SHOWN],
        "start": start,
        "size": PARTITIONS_SHOWN,
        "rate_in": history(call.console.shared).rate(("in", name)),
    }


@page.get("/topics/{name}/consumers")
async def consumers(call: Call) -> Response:
    """Show the groups with offsets in a topic."""
    details = await call.run(describe_topic, call.path["name"])
    groups = await call.run(consumers_of, call.path["name"])
    return call.render("topic_consumers.html", topic=details, tab="consumers", groups=groups)


@page.get("/topics/{name}/configs")
async def configs(call: Call) -> Response:
    """Show the configs of a topic."""
    details = await call.run(describe_topic, call.path["name"])
    listed = await call.run(describe_resource, Resource.TOPIC, call.path["name"])
    return call.render("topic_configs.html", topic=details, tab="configs", configs=listed)


@page.get("/topics/{name}/configs/edit")
async def edit_config(call: Call) -> Response:
    """Show the form of one config."""
    listed = await call.run(describe_resource, Resource.TOPIC, call.path["name"])
    config = next((entry for entry in listed if entry.name == call.query.get("key", "")), None)
    if config is None:
        raise FieldError("key", "The topic has no such config.")
    return call.fragment(
        "topic_forms.html", "config", name=call.path["name"], config=config, form={"value": config.value or ""}
    )


@page.post("/topics/{name}/configs/edit")
async def change_config(call: Call) -> Response:
    """Set a config, or remove the topic's own value."""
    name, form = call.path["name"], Form(await call.form())
    key = form.values.get("key", "")
    remove = form.values.get("remove") == "1"
    with form.checked("value"):
        await call.run(set_config, Resource.TOPIC, name, key, None if remove else form.values.get("value", ""))
        return call.done(f"/topics/{name}/configs", f"{key} was {'reset to its default' if remove else 'changed'}.")
    listed = await call.run(describe_resource, Resource.TOPIC, name)
    config = next((entry for entry in listed if entry.name == key), None)
    return form.again(call, "topic_forms.html", "config", name=name, config=config)


@page.get("/topics/{name}/{action:str}/form")
async def form_of(call: Call) -> Response:
    """Show the form of an action on a topic."""
    action = call.path["action"]
    if action not in ("partitions", "trim", "leaders", "delete"):
        raise FieldError("action", "There is no such action.")
    details = await call.run(describe_topic, call.path["name"])
    return call.fragment("topic_forms.html", action, topic=details, form=_defaults(action, details))


def _defaults(action: str, details: TopicDetails) -> dict[str, str]:
    return {"count": str(len(details.partitions) + 1)} if action == "partitions" else {}


@page.post("/topics/{name}/partitions")
async def add_partitions(call: Call) -> Response:
    """Raise the number of partitions."""
    name, form = call.path["name"], Form(await call.form())
    with form.checked("count"):
        count = parse_number("count", form.values.get("count", ""), least=1, most=100_000)
        await call.run(create_partitions, name, count)
        return call.done(f"/topics/{name}", f"{name} has {count} partitions.")
    return form.again(call, "topic_forms.html", "partitions", topic=await call.run(describe_topic, name))


@page.post("/topics/{name}/trim")
async def trim(call: Call) -> Response:
    """Delete the records before an offset."""
    name, form = call.path["name"], Form(await call.form())
    details = await call.run(describe_topic, name)
    with form.checked("offset"):
        chosen = form.values.get("partition", "")
        partition = None if chosen == "" else parse_number("partition", chosen, most=2**31 - 1)
        if partition is not None and partition >= len(details.partitions):
            raise FieldError("partition", f"{name} has partitions 0 to {len(details.partitions) - 1}")
        text = form.values.get("offset", "").strip()
        offset = -1 if text.lower() in ("end", "-1") else parse_number("offset", text)
        await call.run(delete_records, name, trim_offsets(details, partition, offset))
        return call.done(f"/topics/{name}", f"Records of {name} were deleted.")
    return form.again(call, "topic_forms.html", "trim", topic=details)


@page.post("/topics/{name}/leaders")
async def move_leaders(call: Call) -> Response:
    """Elect preferred leaders, or make a chosen replica the leader of a partition."""
    name, form = call.path["name"], Form(await call.form())
    with form.checked("node"):
        chosen = form.values.get("partition", "")
        if chosen == "":
            changed = await call.run(elect_all, name)
            notice = f"{len(changed)} partitions of {name} have a new leader."
        else:
            partition = parse_number("partition", chosen, most=2**31 - 1)
            node = parse_number("node", form.values.get("node", ""), most=2**31 - 1)
            await call.run(move_leader, name, partition, node)
            notice = f"Broker {node} leads {name}-{partition}."
        return call.done(f"/topics/{name}", notice)
    return form.again(call, "topic_forms.html", "leaders", topic=await call.run(describe_topic, name))


@page.post("/topics/{name}/delete")
async def delete(call: Call) -> Response:
    """Delete a topic whose name was typed."""
    name, form = call.path["name"], Form(await call.form())
    with form.checked():
        if form.values.get("confirm", "").strip() != name:
            raise FieldError("confirm", "type the topic's name to confirm")
        await call.run(delete_topic, name)
        return call.done("/topics", f"Topic {name} was deleted.")
    return form.again(call, "topic_forms.html", "delete", topic=await call.run(describe_topic, name))
