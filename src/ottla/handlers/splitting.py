"""Divides a large request into parts that a handler finishes within a few milliseconds, and joins their responses.

An API whose elements (topics, partitions, groups, resources) have independent results declares a `Split` beside its
versions. Dispatch handles the parts one after another, each on its own turn of the loop.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.protocol.schema import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from ottla.protocol.schema import Message

DIVIDED_BYTES = 2048
"""A smaller request is never divided, so that its elements need not be counted."""

SCANNED_WORK = 1
FREED_TOGETHER = 100
FREED_WORK = 50


@dataclass(frozen=True, slots=True)
class Split:
    """How requests of one API are divided."""

    paths: tuple[tuple[str, ...], ...]
    """The arrays that lead to the elements: each request has elements on one or several of these paths."""
    size: int
    """The number of elements of a part; a request with at most this many is handled whole."""
    key: Callable[[Any], object] | None = None
    """Elements of the first array with equal keys stay in one part, because the handler compares them."""
    check: Callable[[Any, Any], None] | None = None
    """A check of the whole request (call, request), which raises KafkaError."""

    def is_large(self, request: Message) -> bool:
        """Return whether a request has more elements than one part."""
        left = self.size
        for path in self.paths:
            left -= _count(getattr(request, path[0]), path[1:], left)
            if left < 0:
                return True
        return False

    def parts(self, request: Message) -> Iterator[Part | int]:
        """Yield the parts of a request and the units of work done in between; take the elements out of the request."""
        arrays = [(path, getattr(request, path[0])) for path in self.paths]
        for path, _ in arrays:
            setattr(request, path[0], [])
        for path, elements in arrays:
            if not elements:
                continue
            if self.key is not None:
                elements = yield from _group(elements, self.key)
            for chunk, continued in _chunks(elements, path[1:], self.size, self.key):
                part = copy(request)
                setattr(part, path[0], chunk)
                yield Part(part, continued)


class Part(NamedTuple):
    """A request with some of the elements of a large one."""

    request: Any
    continued: bool
    """Whether its first structure has further elements of the last one of the part before."""


def divide_by(
    *paths: str,
    size: int = 100,
    key: Callable[[Any], object] | None = None,
    check: Callable[[Any, Any], None] | None = None,
) -> Split:
    """Declare that requests are divided; a path is the names of nested arrays: `topics.partitions`."""
    return Split(tuple(tuple(path.split(".")) for path in paths), size, key, check)


def _count(elements: list[Any] | None, path: tuple[str, ...], limit: int) -> int:
    """Return the number of elements, at least `limit` + 1 if there are more than `limit`."""
    if not elements:
        return 0
    if not path:
        return len(elements)
    if len(elements) > limit:
        return len(elements)
    count = 0
    for element in elements:
        count += max(_count(getattr(element, path[0]), path[1:], limit - count), 1)
        if count > limit:
            break
    return count


def _group(elements: list[Any], key: Callable[[Any], object]) -> Generator[int, None, list[Any]]:
    """Return the elements with equal ones side by side, in the order of their first occurrence."""
    groups: dict[object, list[Any]] = {}
    for element in elements:
        groups.setdefault(key(element), []).append(element)
        yield SCANNED_WORK
    if len(groups) == len(elements):
        return elements
    return [element for group in groups.values() for element in group]


def _chunks(
    elements: list[Any], path: tuple[str, ...], size: int, key: Callable[[Any], object] | None
) -> Iterator[tuple[list[Any], bool]]:
    """Yield lists of at most `size` elements at the end of the path; divide a structure that has more.

    With each list comes whether its first structure continues the last one of the list before.
    """
    elements.reverse()  # taken from the end, so that what was handled is freed
    chunk: list[Any] = []
    room = size
    while elements:
        element = elements.pop()
        inner = getattr(element, path[0]) if path else None
        weight = max(_count(inner, path[1:], size), 1) if inner else 1
        together = key is not None and chunk and key(chunk[-1]) == key(element)
        if weight > room and chunk and not together:
            yield chunk, False
            chunk, room = [], size
        if weight > size and inner is not None:
            setattr(element, path[0], [])
            continued = False
            for inner_chunk, _ in _chunks(inner, path[1:], size, None):
                piece = copy(element)
                setattr(piece, path[0], inner_chunk)
                yield [piece], continued
                continued = True
            continue
        chunk.append(element)
        room -= weight
    if chunk:
        yield chunk, False


def join(joined: Any, response: Any, continued: bool) -> Any:
    """Append the elements of a part's response to those of the parts before it."""
    if joined is None:
        return response
    _extend(joined, response, continued)
    return joined


def _extend(joined: Struct, response: Struct, continued: bool) -> None:
    for field in joined.__schema__.fields:
        if field.kind != "array":
            continue
        elements: list[Any] | None = getattr(joined, field.name)
        more: list[Any] | None = getattr(response, field.name)
        if not more:
            continue
        if not elements:
            setattr(joined, field.name, more)
            continue
        if continued and _are_parts(elements[-1], more[0]):
            _extend(elements[-1], more[0], continued)
            more = more[1:]
        elements.extend(more)


def _are_parts(last: object, following: object) -> bool:
    """Return whether two structures may be parts of one: equal but for their arrays."""
    if not isinstance(last, Struct) or not isinstance(following, Struct):
        return False
    fields = last.__schema__.fields
    if all(field.kind != "array" for field in fields):
        return False
    return all(getattr(last, field.name) == getattr(following, field.name) for field in fields if field.kind != "array")


def dispose(message: Struct) -> Generator[int, None, None]:
    """Free the elements of a large message in pieces: freeing many objects at once would block the loop."""
    for field in message.__schema__.fields:
        elements = getattr(message, field.name) if field.kind == "array" else None
        while elements:
            last = elements[-1]
            if isinstance(last, Struct) and any(
                inner.kind == "array" and len(getattr(last, inner.name) or ()) > FREED_TOGETHER
                for inner in last.__schema__.fields
            ):
                yield from dispose(last)
                del elements[-1:]
            else:
                del elements[-FREED_TOGETHER:]
            yield FREED_WORK
