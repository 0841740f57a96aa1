"""Plain HTTP requests to a registry."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """A response: status, decoded body and content type."""

    status: int
    body: Any
    content_type: str


class Http:
    """A client of one registry."""

    def __init__(self, url: str, user: str | None = None, *, ca_pem: str | None = None) -> None:
        """Call a registry; `user` is `name:password`."""
        self._url = url
        self._context = None if ca_pem is None else ssl.create_default_context(cadata=ca_pem)
        token = base64.b64encode((user or "").encode()).decode()
        self._login = {} if user is None else {"Authorization": f"Basic {token}"}

    def __call__(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Send a request; a body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        sent = {"Content-Type": "application/vnd.schemaregistry.v1+json", **self._login, **(headers or {})}
        request = urllib.request.Request(self._url + path, data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=300, context=self._context) as response:
                return self._answer(response)
        except urllib.error.HTTPError as error:
            with error:
                return self._answer(error)

    @staticmethod
    def _answer(response: Any) -> Answer:
        text = response.read().decode()
        return Answer(response.status, json.loads(text) if text else None, response.headers["Content-Type"])

    def register(self, subject: str, schema: Any, **more: Any) -> Answer:
        """Register a schema."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return self("POST", f"/subjects/{subject}/versions", {"schema": text, **more})
