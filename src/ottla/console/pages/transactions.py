"""Transactions: open ones and the LSO that they hold back, hanging ones, aborts, a timeline of states."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from ottla.client.connection import ConnectionFailedError
from ottla.console.data.transactions import (
    HANGING_AFTER_MS,
    abort_hanging,
    abort_open,
    all_transactions,
    find_hanging,
    read_states,
)
from ottla.console.forms import Form
from ottla.console.page import Page, parse_number
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from ottla.client.client import Client
    from ottla.console.page import Call

page = Page("transactions", "Transactions", section="Clients", key="x")
PAGE_SIZE: Final = 50
TIMELINE_MS: Final = 10 * 60_000
LANES: Final = 25
MINUTE_MS: Final = 60_000


@page.get("/transactions")
async def show(call: Call) -> Response:
    """Show transactional ids, open transactions first."""
    values = await _values(call)
    return call.render("transactions.html", live=f"/transactions/live?{urlencode(dict(call.query))}", **values)


@page.get("/transactions/live")
async def live(call: Call) -> Response:
    """Stream the list and the timeline."""

    async def regions() -> Mapping[str, str]:
        values = await _values(call)
        return {name: call.block("transactions.html", name, **values) for name in ("transactions", "timeline")}

    return call.live(regions)


async def _values(call: Call) -> dict[str, Any]:
    words = call.query.get("q", "").lower().split()
    producer = call.query.get("producer", "").strip()
    start = call.number("start", 0)
    producer_id = None if not producer else parse_number("producer", producer)
    listed = await call.console.access.cached("transactions", 1.5, all_transactions)
    rows = [
        row
        for row in listed
        if all(word in row.transactional_id.lower() for word in words) and producer_id in (None, row.producer_id)
    ]
    try:
        timeline = await call.console.access.cached("transaction states", 4, _timeline)
        problem = ""
    except (KafkaError, ConnectionFailedError) as error:
        timeline, problem = None, str(error)
    base = urlencode({"q": call.query.get("q", ""), "producer": producer})
    return {
        "rows": rows[start : start + PAGE_SIZE],
        "total": len(rows),
        "all": len(listed),
        "open_count": sum(row.is_open for row in listed),
        "start": start,
        "size": PAGE_SIZE,
        "url": f"/transactions?{base}",
        "timeline": timeline,
        "problem": problem,
    }


def _timeline(client: Client) -> dict[str, Any]:
    """Return the states of the last minutes as lanes, in percent of the time."""
    now = int(time.time() * 1000)
    first = now - TIMELINE_MS
    spans = read_states(client)
    recent = {name: [span for span in states if (span.end or now) >= first] for name, states in spans.items()}
    order = sorted((name for name in recent if recent[name]), key=lambda name: -recent[name][-1].start)[:LANES]
    earliest = min((span.start for name in order for span in recent[name]), default=first)
    first = max(first, earliest)
    length = max(1, now - first)

    def at(when: int) -> float:
        return round(100 * (min(max(when, first), now) - first) / length, 3)

    lanes = [
        {
            "name": name,
            "spans": [
                {
                    "x": at(span.start),
                    "width": max(0.2, at(span.end or now) - at(span.start)),
                    "state": span.state,
                    "title": f"{span.state}, epoch {span.epoch}, {span.partitions} partitions",
                }
                for span in recent[name]
            ],
        }
        for name in sorted(order)
    ]
    return {"lanes": lanes, "first": first, "hidden": max(0, len(recent) - LANES)}


# Hanging transactions and aborts


@page.get("/transactions/hanging")
async def hanging(call: Call) -> Response:
    """Search the partitions of all topics for hanging transactions."""
    minutes = call.number("minutes", HANGING_AFTER_MS // MINUTE_MS, most=100_000)
    rows = await call.console.access.stream(find_hanging, minutes * MINUTE_MS)
    return call.fragment("transactions.html", "hanging", hanging_rows=rows, minutes=minutes)


@page.get("/transactions/abort")
async def abort_form(call: Call) -> Response:
    """Ask before a transaction is aborted."""
    return call.fragment("transactions.html", "abort", form=dict(call.query))


@page.post("/transactions/abort")
async def abort(call: Call) -> Response:
    """Abort an open or a hanging transaction."""
    form = Form(await call.form())
    values = form.values
    with form.checked():
        if values.get("topic"):
            partition = parse_number("partition", values.get("partition", ""), most=2**31 - 1)
            offset = parse_number("offset", values.get("offset", ""))
            await call.run(abort_hanging, values["topic"], partition, offset)
            return call.done("/transactions", f"An abort marker was written to {values['topic']}-{partition}.")
        await call.run(abort_open, values.get("id", ""))
        return call.done("/transactions", f"The transaction of {values.get('id', '')} was aborted.")
    return form.again(call, "transactions.html", "abort")
