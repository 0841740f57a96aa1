"""Who may use the console: the token of the printed address or a login, CSRF tokens, read-only mode, page headers.

Host, Origin and sizes are checked before, by `server.web.AccessGate`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ottla.console.options import ConsoleOptions

CSRF_HEADER: Final = "x-csrf-token"
PUBLIC_PATHS: Final = ("/static/", "/vendor/")
"""Files of the package: the page that asks for the token needs its style sheet."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
PAGE_HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


class ConsoleAccess:
    """ASGI middleware in front of all pages.

    A request with the right `?token=` receives a session cookie and is redirected to the address without the token.
    Changes (POST) require the header X-CSRF-Token, whose value only the console's own pages contain.
    """

    def __init__(self, app: ASGIApp, options: ConsoleOptions, refused: Callable[[Request, int, str], Response]) -> None:
        self._app = app
        self._options = options
        self._refused = refused
        key = (options.token or secrets.token_urlsafe(24)).encode()
        self._session = _derive(key, b"session")
        self.csrf = _derive(key, b"csrf" + secrets.token_bytes(16))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer requests that are refused or log in; pass the others on."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *PAGE_HEADERS]}
            await send(message)

        answer = self._check(Request(scope, receive))
        await (self._app if answer is None else answer)(scope, receive, send_with_headers)

    def _check(self, request: Request) -> Response | None:
        """Return the response to a request that does not reach a page, else None."""
        if request.url.path.startswith(PUBLIC_PATHS):
            return None
        answer = self._check_login(request)
        if answer is not None:
            return answer
        if request.method in SAFE_METHODS:
            return None
        if self._options.read_only:
            return self._refused(request, 403, "This console is read-only: it was started with --read-only.")
        if not hmac.compare_digest(request.headers.get(CSRF_HEADER, "").encode(), self.csrf.encode()):
            return self._refused(request, 403, "This page is older than the console. Reload it and repeat the change.")
        return None

    def _check_login(self, request: Request) -> Response | None:
        if self._options.login is not None:
            if _has_login(request, *self._options.login):
                return None
            challenge = {"WWW-Authenticate": 'Basic realm="ottla console", charset="UTF-8"'}
            return PlainTextResponse("Log in with the user and password of this console.", 401, challenge)
        if self._options.token is None:
            return None
        token = request.query_params.get("token")
        if token is not None and hmac.compare_digest(token.encode(), self._options.token.encode()):
            return self._log_in(request)
        if hmac.compare_digest(self._cookie(request).encode(), self._session.encode()):
            return None
        return self._refused(
            request, 401, "Open the address that the console printed when it started: it contains the access token."
        )

    def _log_in(self, request: Request) -> Response:
        """Set the session cookie and remove the token from the address, the history and the referrer."""
        rest = [(key, value) for key, value in parse_qsl(request.url.query) if key != "token"]
        response = RedirectResponse(_local_path(request.url.path) + (f"?{urlencode(rest)}" if rest else ""), 303)
        response.set_cookie(_cookie_name(request), self._session, httponly=True, samesite="lax", path="/")
        return response

    def _cookie(self, request: Request) -> str:
        try:
            cookies = SimpleCookie(request.headers.get("cookie", ""))
        except CookieError:
            return ""
        morsel = cookies.get(_cookie_name(request))
        return "" if morsel is None else morsel.value


def _cookie_name(request: Request) -> str:
    """Return a name with the port: cookies of one host are shared by all its ports."""
    return f"ottla_console_{request.url.port or 80}"


def _local_path(path: str) -> str:
    """Return a path that a browser cannot take for another host, as it would `//host`."""
    return "/" + path.lstrip("/\\")


def _has_login(request: Request, user: str, password: str) -> bool:
    scheme, _, presented = request.headers.get("authorization", "").partition(" ")
    expected = base64.b64encode(f"{user}:{password}".encode())
    return scheme.lower() == "basic" and hmac.compare_digest(presented.strip().encode(), expected)


def _derive(key: bytes, purpose: bytes) -> str:
    return hmac.new(key, purpose, hashlib.sha256).hexdigest()
