"""The extension point: a page is a module with a `Page`, whose decorated functions take a `Call` and return a response.

page = Page("topics", "Topics", section="Data")

@page.get("/topics")
async def topics(call: Call) -> Response:
    return call.render("topics.html", topics=await call.run(Client.topics))
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar
from urllib.parse import parse_qsl

from starlette.responses import HTMLResponse, Response, StreamingResponse

from ottla.client.connection import ConnectionFailedError
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from starlette.requests import Request

    from ottla.client.client import Client
    from ottla.console.app import Console

    Handler = Callable[["Call"], Awaitable[Response]]
    Decorator = Callable[[Handler], Handler]

P = ParamSpec("P")
T = TypeVar("T")
LIVE_SECONDS: Final = 2.0
MAX_FORM_FIELDS: Final = 2000


class FieldError(ValueError):
    """An input that is refused, with the name of its form field: the message is shown beside it."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        self.message = message


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A path of a page and the function that answers it."""

    method: str
    path: str
    handler: Handler


@dataclass(slots=True)
class Page:
    """An entry of the navigation with its routes.

    `name` is the id of its icon (`templates/icons.html`) and of the navigation entry. `templates` is a folder with
    templates of its own, beside the console's. `offered` decides if a console has the page.
    """

    name: str
    title: str
    section: str
    path: str = ""
    templates: Path | None = None
    offered: Callable[[Console], bool] = lambda _: True
    key: str = ""
    """The key that opens the page after `g`."""
    routes: list[PageRoute] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = self.path or f"/{self.name}"

    def get(
        self, path: str
    ) -> Callable[[Callable[[Call], Awaitable[Response]]], Callable[[Call], Awaitable[Response]]]:
        """Answer GET requests of a path; they change nothing."""
        return self._route("GET", path)

    def post(self, path: str) -> Decorator:
        """Answer POST requests of a path: changes, which read-only consoles refuse."""
        return self._route("POST", path)

    def _route(self, method: str, path: str) -> Decorator:
        def add(handler: Handler) -> Handler:
            self.routes.append(PageRoute(method, path, handler))
            return handler

        return add


class Call:
    """One request of a browser, with what a page needs to answer it."""

    def __init__(self, console: Console, page: Page, request: Request) -> None:
        self.console = console
        self.page = page
        self.request = request
        self.path: Mapping[str, str] = request.path_params
        self.query: Mapping[str, str] = request.query_params

    # Input

    async def form(self) -> dict[str, str]:
        """Return the fields of a submitted form; the last value of a repeated field."""
        return dict(await self.form_items())

    async def form_items(self) -> list[tuple[str, str]]:
        """Return the fields of a submitted form in order, with repetitions."""
        body = await self.request.body()
        try:
            return parse_qsl(
                body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS, errors="strict"
            )
        except (UnicodeDecodeError, ValueError) as error:
            raise FieldError("", f"the form cannot be read: {error}") from error

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**63 - 1) -> int:
        """Return a number of the query, within bounds; FieldError if it is not a number."""
        return parse_number(name, self.query.get(name, "") or str(default), least=least, most=most)

    # The cluster

    async def run(self, function: Callable[Concatenate[Client, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of the data layer with a client, on a thread."""
        return await self.console.access.run(function, *args, **kwargs)

    # Output

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page. `live` names the stream of its moving parts."""
        return HTMLResponse(self.console.render(template, self, values), status)

    def fragment(self, template: str, block: str, status: int = 200, **values: Any) -> Response:
        """Return one block of a template, to replace a part of the page."""
        return HTMLResponse(self.block(template, block, **values), status)

    def block(self, template: str, block: str, **values: Any) -> str:
        """Return the HTML of one block of a template."""
        return self.console.render_block(template, block, self, values)

    def done(self, path: str, notice: str) -> Response:
        """Answer a change: go to a page, which shows the notice."""
        self.console.access.forget()
        return Response("", headers={"HX-Redirect": path, "HX-Trigger": json.dumps({"notice": notice})})

    def live(
        self, regions: Callable[[], Awaitable[Mapping[str, str]]], *, seconds: float = LIVE_SECONDS
    ) -> StreamingResponse:
        """Stream regions of a page: HTML (or JSON, for charts) by element id, whenever one has changed."""
        return event_stream(self._live(regions, seconds))

    async def _live(self, regions: Callable[[], Awaitable[Mapping[str, str]]], seconds: float) -> AsyncIterator[bytes]:
        sent: dict[str, str] = {}
        yield b"retry: 2000\n\n"
        while True:
            current: dict[str, str] = {}
            try:
                current.update(await regions())
            except (ConnectionFailedError, KafkaError, TimeoutError, OSError) as error:
                current["problem"] = str(error)
            else:
                current["problem"] = ""
            current["state"] = self.console.state_html(self)
            changed = {name: html for name, html in current.items() if sent.get(name) != html}
            sent |= changed
            for name, html in changed.items():
                yield event(name, html)
            if not changed:
                yield b": still here\n\n"
            await asyncio.sleep(seconds)


def event(name: str, data: str) -> bytes:
    """Return a server-sent event."""
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return (f"event: {name}\n" + "".join(f"data: {line}\n" for line in lines) + "\n").encode("utf-8", "replace")


def event_stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    """Return a response of server-sent events."""
    return StreamingResponse(events, headers={"Cache-Control": "no-store"}, media_type="text/event-stream")


def parse_number(name: str, text: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return a number of a form field within bounds; FieldError if it is none."""
    try:
        number = int(text.strip())
    except ValueError:
        raise FieldError(name, f"{text[:40]!r} is not a whole number") from None
    if not least <= number <= most:
        bounds = f"from {least:,} to {most:,}" if most < 2**62 else f"of at least {least:,}"
        raise FieldError(name, f"write a number {bounds}")
    return number
