"""A small client of any registry with Confluent's REST API, over the standard library's HTTP."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

if TYPE_CHECKING:
    import ssl

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024


class RegistryRefusedError(Exception):
    """The registry refused a request: its error code and message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message

    @property
    def is_missing(self) -> bool:
        """Return whether a subject, version or schema does not exist."""
        return self.code // 100 == 404 or self.code == 404


class RegistryUnreachableError(Exception):
    """No registry answered at the URL."""


class RegistryClient:
    """Calls one registry; user and password come from the URL, as in `http://user:password@host:8081`, or `login`.

    https trusts the system's CA certificates, those of the PEM file `ca_file`, or what `context` has. Redirects are
    refused, because they would take the password to another host.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 30.0,
        login: tuple[str, str] | None = None,
        context: ssl.SSLContext | None = None,
        ca_file: str | None = None,
    ) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url}: write the URL of a registry, such as http://localhost:8081")
        self._headers = {"Accept": CONTENT_TYPE, "Content-Type": CONTENT_TYPE}
        if login is None and parts.username is not None:
            login = unquote(parts.username), unquote(parts.password or "")
        if login is not None:
            self._headers["Authorization"] = "Basic " + base64.b64encode(":".join(login).encode()).decode()
        host = parts.hostname if ":" not in parts.hostname else f"[{parts.hostname}]"
        netloc = host if parts.port is None else f"{host}:{parts.port}"
        self._url = urlunsplit((parts.scheme, netloc, parts.path.rstrip("/"), "", ""))
        self._timeout = timeout
        if ca_file is not None:
            context = _context(ca_file)
        handlers: list[urllib.request.BaseHandler] = [_RefuseRedirects()]
        if context is not None:
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the decoded response."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                return json.loads(response.read(MAX_RESPONSE_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(error.code, error.read(MAX_RESPONSE_BYTES)) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise RegistryUnreachableError(f"no schema registry answers at {self._url}: {reason}") from error

    def subjects(self, *, deleted: bool = False) -> list[str]:
        """List subjects."""
        subjects: list[str] = self.call("GET", f"/subjects?deleted={str(deleted).lower()}")
        return subjects

    def versions(self, subject: str) -> list[int]:
        """List the versions of a subject."""
        versions: list[int] = self.call("GET", f"/subjects/{_quoted(subject)}/versions")
        return versions

    def version(self, subject: str, version: str = "latest") -> dict[str, Any]:
        """Return a version with its schema."""
        version_data: dict[str, Any] = self.call("GET", f"/subjects/{_quoted(subject)}/versions/{_quoted(version)}")
        return version_data

    def schema(self, schema_id: int) -> dict[str, Any]:
        """Return the schema with an id."""
        schema: dict[str, Any] = self.call("GET", f"/schemas/ids/{schema_id}")
        return schema

    def register(self, subject: str, request: dict[str, Any], *, normalize: bool = False) -> dict[str, Any]:
        """Register a schema and return its id."""
        path = f"/subjects/{_quoted(subject)}/versions?normalize={str(normalize).lower()}"
        registered: dict[str, Any] = self.call("POST", path, request)
        return registered

    def check(self, subject: str, request: dict[str, Any], version: str | None = None) -> list[str]:
        """Return why a schema is incompatible with a version, or at the subject's compatibility level."""
        suffix = "" if version is None else f"/{_quoted(version)}"
        path = f"/compatibility/subjects/{_quoted(subject)}/versions{suffix}?verbose=true"
        answer = self.call("POST", path, request)
        return [] if answer["is_compatible"] else answer.get("messages") or ["incompatible"]

    def delete(self, subject: str, version: str | None = None, *, permanent: bool = False) -> Any:
        """Delete a version, or a subject with all versions."""
        suffix = "" if version is None else f"/versions/{_quoted(version)}"
        return self.call("DELETE", f"/subjects/{_quoted(subject)}{suffix}?permanent={str(permanent).lower()}")


class _RefuseRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _context(ca_file: str) -> ssl.SSLContext:
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{ca_file}: no CA certificates can be read: {error}") from None


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _refused(status: int, body: bytes) -> RegistryRefusedError:
    try:
        tree = json.loads(body)
        return RegistryRefusedError(int(tree["error_code"]), str(tree["message"]))
    except (ValueError, KeyError, TypeError):
        return RegistryRefusedError(status, f"HTTP status {status}")
