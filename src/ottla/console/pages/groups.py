"""Groups: the list, one group with assignment, lag, rebalances, and the reset of its offsets."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from ottla.client.connection import ConnectionFailedError
from ottla.client.groups import delete_group
from ottla.console.data.group_history import lag_over_time, read_group_history
from ottla.console.data.groups import TARGETS, all_groups, apply_reset, group_details, lags_of_groups, preview_reset
from ottla.console.data.history import history
from ottla.console.forms import Form
from ottla.console.page import FieldError, Page, parse_number
from ottla.protocol.errors import KafkaError
from ottla.quantities import parse_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from ottla.client.client import Client
    from ottla.console.data.group_history import GroupHistory
    from ottla.console.data.groups import GroupDetails
    from ottla.console.page import Call

page = Page("groups", "Groups", section="Clients", key="r")
PAGE_SIZE: Final = 50
LAGS_SHOWN: Final = 300
TYPES: Final = ("classic", "consumer", "share", "streams")
COLOURS: Final = 8


@page.get("/groups")
async def show(call: Call) -> Response:
    """Show a page of the list."""
    values = await _list(call)
    return call.render("groups.html", live=f"/groups/live?{urlencode(dict(call.query))}", **values)


@page.get("/groups/live")
async def live(call: Call) -> Response:
    """Stream the list."""

    async def regions() -> Mapping[str, str]:
        return {"groups": call.block("groups.html", "rows", **await _list(call))}

    return call.live(regions, seconds=3)


async def _list(call: Call) -> dict[str, Any]:
    words = call.query.get("q", "").lower().split()
    kind, state = call.query.get("type", ""), call.query.get("state", "")
    start = call.number("start", 0)
    listed = await call.console.access.cached("groups", 2.5, all_groups)
    matching = [
        group
        for group in listed
        if all(word in group.group.lower() for word in words)
        and kind in ("", group.type or "classic")
        and state in ("", group.state)
    ]
    shown = matching[start : start + PAGE_SIZE]
    note = ""
    try:
        lags = await call.run(lags_of_groups, shown)
    except KafkaError as error:
        lags, note = {}, f"Lags are not known: {error}"
    base = urlencode({"q": call.query.get("q", ""), "type": kind, "state": state})
    return {
        "rows": shown,
        "lags": lags,
        "total": len(matching),
        "all": len(listed),
        "start": start,
        "size": PAGE_SIZE,
        "url": f"/groups?{base}",
        "types": TYPES,
        "states": sorted({group.state for group in listed}),
        "note": note,
    }


@page.get("/groups/show")
async def one(call: Call) -> Response:
    """Show one group."""
    name = call.query.get("id", "")
    details = await call.run(group_details, name)
    past, problem = await _past(call, name)
    live_url = f"/groups/show/live?id={quote(name, safe='')}"
    return call.render("group.html", live=live_url, **_values(call, details), past=past, past_problem=problem)


async def _past(call: Call, name: str) -> tuple[dict[str, Any] | None, str]:
    """Return rebalances of the past as a picture, and put past lags into the history; or why they are not known."""
    try:
        return await call.console.access.cached(("past", name), 10, lambda client: _read_past(client, call, name)), ""
    except (KafkaError, ConnectionFailedError) as error:
        return None, str(error)


def _read_past(client: Client, call: Call, name: str) -> dict[str, Any]:
    past = read_group_history(client, name)
    samples = history(call.console.shared)
    if not samples.samples(("lag", name)):
        for when, lag in lag_over_time(client, past, int(time.time() * 1000)):
            samples.add(("lag", name), lag, when / 1000)
    return _lanes(past)


def _lanes(past: GroupHistory) -> dict[str, Any]:
    """Return the swimlanes of members as percentages of the time that is shown."""
    now = int(time.time() * 1000)
    times = [span.start for lane in past.lanes for span in lane.spans]
    first = max(min(times, default=now), now - 24 * 3_600_000)
    length = max(1, now - first)

    def at(when: int) -> float:
        return round(100 * (min(max(when, first), now) - first) / length, 3)

    lanes = [
        {
            "client": lane.client or lane.member,
            "member": lane.member,
            "alive": lane.spans[-1].end is None,
            "spans": [
                {
                    "x": at(span.start),
                    "width": max(0.15, at(span.end or now) - at(span.start)),
                    "colour": span.epoch % COLOURS + 1,
                    "title": f"generation {span.epoch}: {span.partitions} partitions",
                    "idle": span.partitions == 0,
                }
                for span in lane.spans
                if (span.end or now) >= first
            ],
        }
        for lane in past.lanes
        if any((span.end or now) >= first for span in lane.spans)
    ]
    return {
        "lanes": lanes,
        "first": first,
        "now": now,
        "marks": [{"x": at(when), "epoch": epoch} for when, epoch in past.rebalances if when >= first],
        "complete": past.complete,
    }


@page.get("/groups/show/live")
async def one_live(call: Call) -> Response:
    """Stream the state, the lags and the lag chart of a group."""
    name = call.query.get("id", "")

    async def regions() -> Mapping[str, str]:
        details = await call.run(group_details, name)
        values = _values(call, details)
        past, _ = await _past(call, name)
        samples = history(call.console.shared).samples(("lag", name))
        series = {"name": "lag", "values": [lag for _, lag in samples]}
        return {
            "group-summary": call.block("group.html", "summary", **values),
            "assignment": call.block("group.html", "assignment", **values),
            "lags": call.block("group.html", "lags", **values),
            "lanes": call.block("group.html", "lanes", past=past, past_problem="", **values),
            "lag-chart": json.dumps({"times": [when for when, _ in samples], "series": [series]}),
        }

    return call.live(regions)


def _values(call: Call, details: GroupDetails) -> dict[str, Any]:
    if details.lag is not None:
        history(call.console.shared).add(("lag", details.group.group), details.lag)
    members = sorted(details.group.members, key=lambda member: (member.client_id, member.member))
    colours = {member.member: number % COLOURS + 1 for number, member in enumerate(members)}
    strips: dict[str, list[Any]] = {}
    for row in details.lags[:2000]:
        colour = 0 if row.member is None else colours[row.member.member]
        strips.setdefault(row.topic, []).append((row.partition, row.member, colour))
    start = call.number("start", 0)
    return {
        "details": details,
        "group": details.group,
        "members": members,
        "colours": colours,
        "strips": strips,
        "rows": details.lags[start : start + LAGS_SHOWN],
        "start": start,
        "size": LAGS_SHOWN,
        "most": max((row.lag or 0 for row in details.lags), default=0),
    }


# Changes


@page.get("/groups/reset")
async def reset_form(call: Call) -> Response:
    """Show the form of a reset."""
    details = await call.run(group_details, call.query.get("id", ""))
    form = {"target": "earliest", "topics": " ".join(details.topics)}
    return call.fragment("group_forms.html", "reset", details=details, form=form, targets=TARGETS, changes=None)


@page.post("/groups/reset")
async def reset(call: Call) -> Response:
    """Preview a reset; with `apply`, move the offsets that were previewed."""
    form = Form(await call.form())
    values, name = form.values, form.values.get("id", "")
    changes = None
    with form.checked():
        target, value = _target(values)
        partitions = [
            parse_number("partitions", word, most=2**31 - 1)
            for word in values.get("partitions", "").replace(",", " ").split()
        ]
        with form.checked("topics"):
            topics = values.get("topics", "").split()
            changes = await call.run(preview_reset, name, topics, target, value, partitions)
            if not changes:
                raise FieldError("topics", "the group has no offsets; name a topic")
            if values.get("apply") == "1":
                offsets = {(change.topic, change.partition): change.new for change in changes}
                await call.run(apply_reset, name, offsets)
                return call.done(
                    f"/groups/show?id={quote(name, safe='')}", f"Offsets of {len(offsets)} partitions were reset."
                )
    details = await call.run(group_details, name)
    status = 422 if form.errors else 200
    return call.fragment(
        "group_forms.html",
        "reset",
        status,
        details=details,
        form=values,
        errors=form.errors,
        targets=TARGETS,
        changes=changes,
    )


def _target(values: Mapping[str, str]) -> tuple[str, int]:
    """Return where a reset goes, with its offset, time or distance."""
    target, text = values.get("target", ""), values.get("value", "").strip()
    if target not in dict(TARGETS):
        raise FieldError("target", "there is no such target")
    if target in ("earliest", "latest"):
        return target, 0
    if target == "time":
        try:
            return target, parse_time(text)
        except (ValueError, OverflowError) as error:
            raise FieldError("value", str(error)) from error
    return target, parse_number("value", text, least=-(2**62) if target == "shift" else 0, most=2**62)


@page.get("/groups/delete")
async def delete_form(call: Call) -> Response:
    """Ask before a group is deleted."""
    return call.fragment("group_forms.html", "delete", name=call.query.get("id", ""), form={})


@page.post("/groups/delete")
async def delete(call: Call) -> Response:
    """Delete a group without members."""
    form = Form(await call.form())
    name = form.values.get("id", "")
    with form.checked():
        await call.run(delete_group, name)
        return call.done("/groups", f"Group {name} was deleted.")
    return form.again(call, "group_forms.html", "delete", name=name)
