"""Downloads a small resource over HTTP from a server that may be slow or hostile. Blocks; call it in a worker."""

from __future__ import annotations

import time
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit


def download(url: str, seconds: float, most: int) -> bytes:
    """Return a resource, or its first `most` + 1 bytes; raise OSError or ValueError if it cannot be read.

    The whole download has a deadline.
    """
    end = time.monotonic() + seconds
    data = bytearray()
    try:
        with urllib.request.build_opener(_SafeRedirects).open(url, timeout=seconds) as response:
            while len(data) <= most:
                piece = response.read1(65536)
                if not piece:
                    break
                data += piece
                if time.monotonic() > end:
                    raise TimeoutError(f"it did not come within {seconds} seconds")
    except HTTPException as error:
        raise ValueError(f"what came is not HTTP: {error}") from error
    return bytes(data[: most + 1])


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to HTTP addresses, but not from HTTPS to HTTP."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the redirected request."""
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme != "https"):
            raise ValueError(f"it redirects from {req.type} to {scheme}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
