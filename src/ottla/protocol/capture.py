"""Captured frames, one JSON object per line: written by `ottla tap`, read by `ottla decode` and the Spark tables.

The first line names the format; every other line is a frame with its origin. docs/tap.md has the fields.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FORMAT = "ottla-capture"
VERSION = 1

REQUEST = "request"
RESPONSE = "response"


class CapturedFrame(NamedTuple):
    """One frame between a client and a broker."""

    time_us: int
    connection: int
    direction: str
    client: str
    server: str
    node: int | None
    api_key: int
    api: str
    version: int
    correlation_id: int
    client_id: str | None
    size: int
    frame: bytes
    """Without its length prefix; the first bytes only, if it is shorter than `size`."""

    @property
    def is_whole(self) -> bool:
        """Return whether the capture has the whole frame."""
        return len(self.frame) == self.size


def header_line(**about: Any) -> str:
    """Return the first line of a capture."""
    return json.dumps({"format": FORMAT, "version": VERSION, **about}, ensure_ascii=False) + "\n"


def to_line(frame: CapturedFrame) -> str:
    """Return a frame as a line."""
    fields = frame._asdict()
    fields["frame"] = base64.b64encode(frame.frame).decode("ascii")
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n"


def is_capture(data: bytes) -> bool:
    """Return whether a file with this beginning is a capture."""
    return data.startswith(b'{"format": "' + FORMAT.encode() + b'"')


def from_line(line: str | bytes) -> CapturedFrame | None:
    """Return the frame of a line; None for the first line of a file; raise ProtocolError for anything else."""
    try:
        fields = json.loads(line)
        if fields.get("format") == FORMAT:
            _check_version(fields["version"])
            return None
        fields["frame"] = base64.b64decode(fields["frame"], validate=True)
        return CapturedFrame(**fields)
    except ProtocolError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, binascii.Error) as error:
        raise ProtocolError(f"expected a line of a capture, got {line[:60]!r}") from error


def _check_version(version: object) -> None:
    if version != VERSION:
        raise ProtocolError(f"expected a capture of version {VERSION}, got {version}")


def read_capture(lines: Iterable[str | bytes]) -> Iterator[CapturedFrame]:
    """Yield the frames of a capture, in order; ignore a last line that a crash cut off."""
    waiting: str | bytes | None = None
    for line in lines:
        if waiting is not None and (frame := from_line(waiting)) is not None:
            yield frame
        waiting = line if line.strip() else None
    if waiting is not None:
        try:
            last = from_line(waiting)
        except ProtocolError:
            if waiting[-1:] in ("\n", b"\n"):
                raise
            return
        if last is not None:
            yield last
