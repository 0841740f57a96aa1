"""Explains frames byte by byte: the nodes of `walk` as lines for people and programs.

Matches responses to requests and decodes headers. The command line prints the lines; the caller passes a function that
explains `records` fields (`ottla.records.inspect`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct as Layout
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.protocol.api import (
    find_api,
    request_class,
    request_header_version,
    response_class,
    response_header_version,
)
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.inspect.secrets import SECRET_FIELDS, is_secret_config
from ottla.protocol.inspect.walk import Node, walk
from ottla.protocol.messages.header import RequestHeader, ResponseHeader

if TYPE_CHECKING:
    from ottla.protocol.schema import Message

LENGTH = Layout(">i")
PREFIX = Layout(">hhi")
API_VERSIONS = 18
UNSUPPORTED_VERSION = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


class _Null:
    """A null field, as opposed to a row without a value."""

    def __repr__(self) -> str:
        return "null"


NULL = _Null()


class Line(NamedTuple):
    """One row of the tree: a name, a value if it has one, and its bytes in the frame."""

    depth: int
    label: str
    value: Any
    position: int
    end: int
    type: str = ""
    secret: bool = False


RecordsOpener = Callable[[bytes | memoryview, int, int, int], Iterator[Line]]
"""Given the frame, where records begin and end in it, and a depth: the lines of the batches."""


@dataclass(slots=True)
class Inspection:
    """One frame, explained as far as possible."""

    frame: bytes
    kind: str
    api_key: int | None = None
    version: int | None = None
    correlation_id: int | None = None
    lines: list[Line] = field(default_factory=list)
    error: ProtocolError | None = None

    @property
    def name(self) -> str:
        """The title of the frame."""
        api = None if self.api_key is None else find_api(self.api_key)
        kind = {"request": "Request", "response": "Response"}.get(self.kind, self.kind)
        if api is None:
            return kind if self.api_key is None else f"{kind} of unknown API {self.api_key}"
        return f"{api.name}{kind} v{self.version}"


class Inspector:
    """Explains the frames of a connection; stores requests to decode their responses."""

    def __init__(self, open_records: RecordsOpener | None = None) -> None:
        self._open_records = open_records
        self._requests: dict[int, tuple[int, int]] = {}

    def stream(self, data: bytes, *, api: int | None = None, version: int | None = None) -> Iterator[Inspection]:
        """Explain consecutive frames, each with its length prefix."""
        position = 0
        while position < len(data):
            remaining = len(data) - position
            if remaining < 4:
                yield self._cut(data[position:], f"expected int32 to be 4 bytes, got {remaining}", 0)
                return
            size = LENGTH.unpack_from(data, position)[0]
            if size < 0 or size > remaining - 4:
                frame = data[position:]
                inspection = self.frame(frame, api=api, version=version)
                expected = f"expected a frame of {size} bytes, got {remaining - 4}"
                if inspection.error is None or size < 0:
                    inspection.error = ProtocolError(expected, message=inspection.name, path="message_size", position=0)
                yield inspection
                return
            yield self.frame(data[position : position + 4 + size], api=api, version=version)
            position += 4 + size

    def frame(self, frame: bytes, *, api: int | None = None, version: int | None = None) -> Inspection:
        """Explain one frame with its length prefix.

        With `api` the frame is the response of that API and version. Otherwise it is the response to an earlier
        request, if its correlation id matches and it decodes as one; else a request.
        """
        if len(frame) < 12 and api is None and len(frame) < 8:
            return self._cut(frame, f"expected a header, got {max(len(frame) - 4, 0)} bytes after the size", 4)
        if api is not None:
            return self.response(frame, api, 0 if version is None else version)
        correlation_id = LENGTH.unpack_from(frame, 4)[0]
        request = self._requests.get(correlation_id)
        if request is not None:
            response = self.response(frame, *request)
            if response.error is None or not self._reads_as_request(frame):
                del self._requests[correlation_id]
                return response
        return self.request(frame)

    def request(self, frame: bytes) -> Inspection:
        """Explain a request."""
        if len(frame) < 12:
            return self._cut(frame, f"expected a request header of 8 bytes or more, got {len(frame) - 4}", 4)
        key, version, correlation_id = PREFIX.unpack_from(frame, 4)
        inspection = Inspection(frame, "request", key, version, correlation_id, [_size_line(frame)])
        versions = _versions(key)
        if version not in versions:
            self._header(inspection, RequestHeader, 1)
            if inspection.error is None:
                known = f"versions {versions[0]} to {versions[-1]}" if versions else "no API of Kafka"
                inspection.error = ProtocolError(
                    f"expected a known API and version, got API {key} ({known}) in version {version}",
                    message="RequestHeader",
                    path="request_api_version" if versions else "request_api_key",
                    position=6 if versions else 4,
                )
            return inspection
        position = self._header(inspection, RequestHeader, request_header_version(key, version))
        if position is not None:
            self._body(inspection, request_class(key), version, position)
        self._requests[correlation_id] = (key, version)
        return inspection

    def response(self, frame: bytes, key: int, version: int) -> Inspection:
        """Explain the response to a request of that API and version."""
        inspection = Inspection(frame, "response", key, version, None, [_size_line(frame)])
        if len(frame) >= 8:
            inspection.correlation_id = LENGTH.unpack_from(frame, 4)[0]
        if (
            key == API_VERSIONS
            and len(frame) >= 10
            and int.from_bytes(frame[8:10], "big") == ErrorCode.UNSUPPORTED_VERSION
        ):
            # KIP-511: this response is in version 0, whatever the request's version.
            inspection.version = version = 0
        position = self._header(inspection, ResponseHeader, response_header_version(key, version))
        if position is not None:
            self._body(inspection, response_class(key), version, position)
        return inspection

    # Private parts

    def _reads_as_request(self, frame: bytes) -> bool:
        if len(frame) < 12:
            return False
        key, version, _ = PREFIX.unpack_from(frame, 4)
        return version in _versions(key) and Inspector(None).request(frame).error is None

    def _header(self, inspection: Inspection, header: type[Message], version: int) -> int | None:
        inspection.lines.append(Line(0, header.__name__, None, 4, 4))
        return self._walk(inspection, header, version, 4)

    def _body(self, inspection: Inspection, body: type[Message], version: int, position: int) -> None:
        label = "RequestBody" if inspection.kind == "request" else "ResponseBody"
        inspection.lines.append(Line(0, label, None, position, position))
        end = self._walk(inspection, body, version, position)
        remaining = 0 if end is None else len(inspection.frame) - end
        if end is not None and remaining:
            some = "1 byte" if remaining == 1 else f"{remaining} bytes"
            name = body.__schema__.name
            inspection.error = ProtocolError(
                f"{some} left after {name} v{version}", message=name, version=version, position=end
            )

    def _walk(self, inspection: Inspection, cls: type[Message], version: int, position: int) -> int | None:
        end = position
        try:
            for node in walk(cls, inspection.frame, version, position):
                inspection.lines.append(_mark_secret(node_line(node), inspection.lines))
                end = node.end
                if node.type == "records" and node.value and self._open_records is not None:
                    start = node.end - len(node.value)
                    try:
                        inspection.lines.extend(self._open_records(inspection.frame, start, node.end, node.depth + 2))
                    except ProtocolError as error:
                        error.path = f"{node.path}{'.' if error.path else ''}{error.path}"
                        inspection.error = error
        except ProtocolError as error:
            inspection.error = error
            return None
        return end if inspection.error is None else None

    def _cut(self, frame: bytes, expected: str, position: int) -> Inspection:
        inspection = Inspection(frame, "frame")
        inspection.error = ProtocolError(expected, message="frame", position=position)
        return inspection


def _versions(key: int) -> range:
    """Return every version of a request; empty for an unknown API."""
    return range(0) if find_api(key) is None else request_class(key).__schema__.versions


def _size_line(frame: bytes) -> Line:
    if len(frame) < 4:
        return Line(0, "message_size", NULL, 0, len(frame))
    size, following = LENGTH.unpack_from(frame, 0)[0], len(frame) - 4
    return Line(0, "message_size", size if size == following else f"{size}, but {following} bytes follow", 0, 4)


def node_line(node: Node) -> Line:
    """Return the row of one node, one level below its message."""
    depth = node.depth + 1
    if node.kind == "array":
        count = NULL if node.value is None else node.value
        return Line(depth, f"num_{node.name}", count, node.position, node.end, f"array of {node.type}")
    if node.kind == "tags":
        value = node.value or None
        return Line(depth, "TAG_BUFFER", value, node.position, node.end, "tags")
    if node.kind == "struct":
        label = _struct_label(node.name) if "[" in node.name else node.name
        return Line(depth, label, NULL if node.value is None else None, node.position, node.end, node.type)
    secret = node.name in SECRET_FIELDS and bool(node.value)
    return Line(depth, node.name, _value(node), node.position, node.end, node.type, secret)


def _mark_secret(line: Line, before: list[Line]) -> Line:
    """Return the line, marked as secret if it is the value of a config that holds a password."""
    if line.label != "value" or not line.value:
        return line
    for earlier in reversed(before):
        if earlier.depth < line.depth:
            break
        if earlier.depth == line.depth and earlier.label == "name":
            return line._replace(secret=is_secret_config(earlier.value))
    return line


def _struct_label(name: str) -> str:
    """Return `ApiKeys[0]` for `api_keys[0]`: an array element is named after the array."""
    stem, _, index = name.partition("[")
    return "".join(word.capitalize() for word in stem.split("_")) + "[" + index


def _value(node: Node) -> Any:
    if node.value is None:
        return NULL
    if node.type == "uuid":
        return str(node.value)
    if node.type in ("bytes", "records", "unknown"):
        return memoryview(node.value)
    return node.value
