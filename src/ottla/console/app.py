"""The console's ASGI application: routes of all pages, templates, and errors as pages."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ottla.client.connection import ConnectionFailedError
from ottla.console import formats
from ottla.console.access import ConsoleAccess
from ottla.console.data.access import ClusterAccess
from ottla.console.page import Call, FieldError, Page
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp

    from ottla.client.client import Client
    from ottla.console.options import ConsoleOptions

FOLDER: Final = Path(__file__).parent
SECTIONS: Final = ("Cluster", "Data", "Clients", "Tools")
AUTHORIZATION_FAILED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)
MISSING: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)
log = logging.getLogger(__name__)


class Console:
    """The pages of one cluster and what they share.

    `kit` is the test kit's cluster where the console runs in its process (`Cluster`, `serve --control`), else None.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        options: ConsoleOptions,
        pages: Sequence[Page],
        *,
        bootstrap: str,
        principal: str = "",
        kit: Any = None,
    ) -> None:
        self.options = options
        self.bootstrap = bootstrap.replace(",", ", ")
        self.principal = principal
        self.kit = kit
        self.access = ClusterAccess(connect)
        self.shared: dict[str, Any] = {}
        """State that pages keep between requests, by page name."""
        self.pages = [page for page in pages if page.offered(self)]
        self._guard = ConsoleAccess(self._application(), options, self._refused)
        folders = [FOLDER / "templates", *(page.templates for page in self.pages if page.templates is not None)]
        self._templates = Environment(
            loader=ChoiceLoader([FileSystemLoader(folder) for folder in folders]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(formats.FILTERS)
        self._templates.globals.update(
            sections=self._sections(), csrf=self._guard.csrf, read_only=options.read_only, bootstrap=self.bootstrap
        )
        # Macros are globals: a block that is rendered alone does not see the imports of its template.
        for name, file in (("icons", "icons.html"), ("w", "widgets.html"), ("configs_table", "configs.html")):
            self._templates.globals[name] = self._templates.get_template(file).module

    @property
    def csrf(self) -> str:
        """The value that changes must send in the header X-CSRF-Token."""
        return self._guard.csrf

    def routes(self) -> list[BaseRoute]:
        """Return the routes for `WebServer.serve`."""
        return [Mount("/", app=self._guard)]

    def close(self) -> None:
        """Disconnect from the cluster."""
        self.access.close()

    # Templates

    def render(self, template: str, call: Call, values: Mapping[str, Any]) -> str:
        """Return a template's HTML."""
        return self._templates.get_template(template).render(self._context(call, values))

    def render_block(self, template: str, block: str, call: Call, values: Mapping[str, Any]) -> str:
        """Return the HTML of one block of a template."""
        loaded = self._templates.get_template(template)
        context = loaded.new_context(dict(self._context(call, values)))
        return "".join(loaded.blocks[block](context))

    def state_html(self, call: Call) -> str:
        """Return the header's note about the connection to the cluster."""
        return self.render_block("base.html", "state", call, {})

    def _context(self, call: Call, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "call": call,
            "console": self,
            "page": call.page,
            "query": call.query,
            "live": "/live",
            "errors": {},
            "reachability": self.access.reachability,
            **values,
        }

    # Routes

    def _application(self) -> ASGIApp:
        routes: list[BaseRoute] = [
            Mount("/static", StaticFiles(directory=FOLDER / "static")),
            Mount("/vendor", StaticFiles(directory=FOLDER / "vendor")),
        ]
        for page in self.pages:
            for route in page.routes:
                endpoint = functools.partial(self._answer, page, route.handler)
                routes.append(Route(route.path, endpoint, methods=[route.method]))
        return Starlette(routes=routes, exception_handlers={HTTPException: self._http_problem})

    async def _answer(self, page: Page, handler: Callable[[Call], Awaitable[Response]], request: Request) -> Response:
        """Call a page's function; turn errors of the cluster and of input into pages."""
        call = Call(self, page, request)
        try:
            return await handler(call)
        except HTTPException:
            raise
        except FieldError as error:
            return self._problem(call, 400, "Bad input", error.message)
        except KafkaError as error:
            return self._kafka_problem(call, error)
        except ProtocolError as error:
            return self._problem(call, 502, "The cluster's answer cannot be read", str(error))
        except UnicodeError:
            return self._problem(call, 400, "Bad input", "The input is not valid UTF-8.")
        except (ConnectionFailedError, TimeoutError) as error:
            return self._problem(call, 503, "The cluster does not answer", str(error) or "timed out", retry=True)
        except Exception as error:
            log.exception("console: %s", request.url.path)
            return self._problem(call, 500, "The console failed", f"{type(error).__name__}: {error}")

    def _kafka_problem(self, call: Call, error: KafkaError) -> Response:
        if error.code in AUTHORIZATION_FAILED:
            principal = f" as {self.principal}" if self.principal else ""
            return self._problem(
                call, 403, "Not allowed", f"The console is connected{principal}, and the cluster refuses: {error}"
            )
        if error.code in MISSING:
            return self._problem(call, 404, "Not found", str(error))
        return self._problem(call, 502, "The cluster refuses", str(error))

    def _problem(self, call: Call, status: int, title: str, detail: str, *, retry: bool = False) -> Response:
        values = {"title": title, "detail": detail, "retry": retry}
        if call.request.headers.get("hx-request") == "true":
            return call.fragment("problem.html", "problem", status, **values)
        return call.render("problem.html", status, **values)

    def _refused(self, request: Request, status: int, message: str) -> Response:
        """Answer a request that access control refuses; nothing of the cluster is shown."""
        bare = request.headers.get("hx-request") == "true"
        page = self._templates.get_template("refused.html")
        return HTMLResponse(page.render(message=message, status=status, bare=bare), status)

    async def _http_problem(self, request: Request, problem: Exception) -> Response:
        assert isinstance(problem, HTTPException)
        call = Call(self, self.pages[0], request)
        title = "Not found" if problem.status_code == 404 else "Refused"
        detail = problem.detail if problem.detail != title else f"This console has no page {request.url.path[:200]}"
        return self._problem(call, problem.status_code, title, detail)

    def _sections(self) -> list[tuple[str, list[Page]]]:
        """Return the navigation: pages by section."""
        named = [(section, [page for page in self.pages if page.section == section]) for section in SECTIONS]
        return [(section, pages) for section, pages in named if pages]
