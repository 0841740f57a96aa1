"""Fetching something small over HTTP from somebody who may be slow, ill or hostile. It waits, so not on a loop."""

from __future__ import annotations

import time
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit


def fetched(url: str, seconds: float, most: int) -> bytes:
    """What is at an address, or the first bytes of it, one more than `most`; OSError or ValueError if it cannot be had.

    However slowly it comes, there is an end to the waiting.
    """
    end = time.monotonic() + seconds
    data = bytearray()
    try:
        with urllib.request.build_opener(_SafeRedirects).open(url, timeout=seconds) as answer:
            while len(data) <= most:
                piece = answer.read1(65536)
                if not piece:
                    break
                data += piece
                if time.monotonic() > end:
                    raise TimeoutError(f"it did not come within {seconds} seconds")
    except HTTPException as error:
        raise ValueError(f"what came is not HTTP: {error}") from error
    return bytes(data[: most + 1])


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Goes where the issuer points to, but not from TLS to plain text, nor to anything but HTTP."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """The request to make instead."""
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme != "https"):
            raise ValueError(f"it redirects from {req.type} to {scheme}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
