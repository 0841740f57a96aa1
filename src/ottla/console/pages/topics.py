"""The list of topics: search, sort, sizes, records, rates; creating one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from ottla.client.topics import create_topic
from ottla.console.data.history import history
from ottla.console.data.topics import add_counts, list_topics
from ottla.console.forms import Form
from ottla.console.page import FieldError, Page, parse_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from ottla.console.data.topics import TopicRow
    from ottla.console.page import Call

page = Page("topics", "Topics", section="Data", key="t")
PAGE_SIZE: Final = 50
COUNTED_TO_SORT: Final = 20_000
"""Partitions up to which all topics are counted, to sort by records or rates."""


@page.get("/topics")
async def show(call: Call) -> Response:
    """Show a page of the list."""
    values = await _list(call)
    return call.render("topics.html", live=f"/live-topics?{urlencode(dict(call.query))}", **values)


@page.get("/live-topics")
async def live(call: Call) -> Response:
    """Stream the list while it is open; a large list less often."""
    took = 0.0

    async def regions() -> Mapping[str, str]:
        nonlocal took
        before = time.monotonic()
        values = await _list(call)
        took = time.monotonic() - before
        return {"topics": call.block("topics.html", "rows", **values)}

    return call.live(regions, seconds=3)


async def _list(call: Call) -> dict[str, Any]:
    """Return the topics to show: those that match, sorted, one page of them with counts and rates."""
    words = call.query.get("q", "").lower().split()
    internal = bool(call.query.get("internal"))
    sort = call.query.get("sort", "name")
    down = bool(call.query.get("down"))
    start = call.number("start", 0)
    listed = await call.console.access.cached("topics", 2.5, list_topics)
    rows = [
        row
        for row in listed.rows
        if (internal or not (row.info.internal or row.name.startswith("__")))
        and all(word in row.name.lower() for word in words)
    ]
    hidden = sum(row.info.internal or row.name.startswith("__") for row in listed.rows) if not internal else 0
    notes = list(listed.notes)
    samples = history(call.console.shared)
    counted_all = sort in ("records", "in", "out")
    if counted_all and sum(len(row.info.partitions) for row in rows) > COUNTED_TO_SORT:
        notes.append(f"More than {COUNTED_TO_SORT:,} partitions match: not sorted by {sort}. Search by name first.")
        counted_all, sort = False, "name"
    if counted_all:
        await _count(call, rows)
    rows.sort(key=lambda row: _sort_key(row, sort, samples), reverse=down)
    shown = rows[start : start + PAGE_SIZE]
    if not counted_all:
        await _count(call, shown)
    base = urlencode({"q": call.query.get("q", ""), **({"internal": "1"} if internal else {})})
    return {
        "rows": shown,
        "total": len(rows),
        "all": len(listed.rows),
        "hidden": hidden,
        "start": start,
        "size": PAGE_SIZE,
        "sort": sort,
        "down": down,
        "internal": internal,
        "url": f"/topics?{base}",
        "page_url": f"/topics?{base}&sort={sort}" + ("&down=1" if down else ""),
        "rates": {row.name: (samples.rate(("in", row.name)), samples.rate(("out", row.name))) for row in shown},
        "notes": notes,
    }


async def _count(call: Call, rows: list[TopicRow]) -> None:
    await call.run(add_counts, rows)
    samples = history(call.console.shared)
    for row in rows:
        if row.written is not None:
            samples.add(("in", row.name), row.written)
        if row.consumed is not None:
            samples.add(("out", row.name), row.consumed)


def _sort_key(row: TopicRow, sort: str, samples: Any) -> tuple[float, str]:
    keys: dict[str, float] = {
        "partitions": len(row.info.partitions),
        "replication": row.replication,
        "size": row.bytes or 0,
        "records": row.records or 0,
    }
    if sort in ("in", "out"):
        return samples.rate((sort, row.name)) or 0.0, row.name
    return keys.get(sort, 0.0), row.name


@page.get("/new-topic")
async def new(call: Call) -> Response:
    """Show the form of a new topic."""
    return call.fragment("topic_forms.html", "create", form={"name": call.query.get("name", "")})


@page.post("/new-topic")
async def create(call: Call) -> Response:
    """Create a topic."""
    form = Form(await call.form())
    values = form.values
    with form.checked():
        name = values.get("name", "").strip()
        if not name:
            raise FieldError("name", "write a name")
        partitions = parse_number("partitions", values.get("partitions") or "-1", least=-1, most=100_000)
        replication = parse_number("replication", values.get("replication") or "-1", least=-1, most=1000)
        configs = _configs(values.get("configs", ""))
        with form.checked("name"):
            await call.run(create_topic, name, partitions=partitions, replication_factor=replication, configs=configs)
            return call.done(f"/topics/{name}", f"Topic {name} was created.")
    return form.again(call, "topic_forms.html", "create")


def _configs(text: str) -> dict[str, str]:
    configs = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise FieldError("configs", f"{line.strip()[:60]!r}: write one KEY=VALUE per line")
        configs[key.strip()] = value.strip()
    return configs
