"""One broker's half of a conversation: requests, and responses with ids and times replaced by names."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.schema import Message, Struct, Uuid
from ottla.records.batch import iter_batches
from tests.conversations.side_by_side import CLOSED, SETTLE_SECONDS, PeerClosedError, Talk

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conversations.local_talk import LocalTalk

R = TypeVar("R", bound=Message)

NOT_READY = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
UNREAD = object()  # the response of a request that was sent, until it is read
# What must not pass while a conversation is held, however slow the machine: sessions, rebalances, transactions.
LONG_MS = 600_000
# A timeout that must pass; only for members that send nothing more.
PASSING_MS = 500


class Conversation:
    """What is asked and answered, by the number and the name of the request."""

    unordered: ClassVar[frozenset[str]] = frozenset()
    times: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, talk: Talk | LocalTalk, pause: Callable[[], None] = lambda: time.sleep(0.02)) -> None:
        self.talk = talk
        self.transcript: dict[str, Any] = {}
        self.pause = pause
        self._number = 0
        self._names_ids = True

    def begin(self) -> None:
        """Begin a conversation."""
        self.transcript = {}
        self._number = 0

    def ask(self, request: Message, response: type[R], version: int | None = None) -> R:
        """Ask, write the answer down, and return it; an answer that says to come back is not one yet."""
        version = self.version_of(request) if version is None else version
        label = self.label(request, version)
        try:
            reply = self.patiently(lambda: self.talk.quietly(request, response, version=version))
        except PeerClosedError:
            self.talk.close()
            self.transcript[label] = CLOSED
            return response()
        self.transcript[label] = self.tree(reply, version)
        return reply

    def version_of(self, request: Message) -> int:
        """The newest version of a request."""
        key = request.__schema__.api_key
        assert key is not None
        return self.talk.versions[key][-1]

    def label(self, request: Message, version: int) -> str:
        """Return the label of a step: its number, the request and those of its fields that differ from the default."""
        self._number += 1
        self._names_ids = False
        fields = json.dumps(self._request_tree(request, version))
        self._names_ids = True
        return f"{self._number:03} {type(request).__name__.removesuffix('Request')} v{version} {fields}"

    def _request_tree(self, value: Any, version: int, name: str = "") -> Any:
        if isinstance(value, Struct):
            default = type(value)()
            return {
                field.name: self._request_tree(getattr(value, field.name), version, field.name)
                for field in value.__schema__.fields
                if version in field.versions
                and (field.name.endswith("producer_id") or getattr(value, field.name) != getattr(default, field.name))
            }
        if isinstance(value, list):
            return [self._request_tree(entry, version, name) for entry in value]
        if isinstance(value, bytes | bytearray | memoryview) and not isinstance(value, Uuid):
            return self._records(bytes(value)) if name == "records" else escaped(bytes(value))
        if name.endswith(("producer_id", "producer_id_filters")):
            return self.producer(value)
        return self.leaf(value, name)

    def producer(self, producer_id: int) -> object:
        """Return what stands for a producer id in a request."""
        return "<producer id>" if producer_id >= 0 else producer_id

    def _records(self, data: bytes) -> Any:
        try:
            headers = list(iter_batches(data))
        except KafkaError:
            return escaped(data)
        return [
            {
                "count": header.record_count,
                "producer_id": self.producer(header.producer_id),
                "producer_epoch": header.producer_epoch,
                "base_sequence": header.base_sequence,
                "transactional": header.is_transactional,
            }
            for header in headers
        ]

    def patiently(self, attempt: Callable[[], R], *also: ErrorCode) -> R:
        """Try again while the coordinator is not there yet."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            response = attempt()
            if not NOT_READY.union(also).intersection(codes(response)) or time.monotonic() > deadline:
                return response
            self.pause()

    def note(self, what: str, fact: object) -> None:
        """Write down something else."""
        self._number += 1
        self.transcript[f"{self._number:03} {what}"] = fact

    def find_coordinators(self) -> None:
        """Have the coordinators' topics made, and wait until they are led."""
        for kind in (0, 1):
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["anybody"])
            self.patiently(lambda request=request: self.talk.quietly(request, FindCoordinatorResponse))

    def until_gone(self, topic: str) -> None:
        """Wait until the broker has forgotten a topic that was deleted; a change made now comes to it after that."""

        def gone() -> bool:
            known = self.talk.quietly(MetadataRequest(topics=None), MetadataResponse).topics
            return all(entry.name != topic for entry in known)

        self.talk.wait_until(gone, f"{topic} is still there")

    def tree(self, value: Any, version: int, name: str = "") -> Any:
        """A message as a tree of what can be compared."""
        if isinstance(value, Struct):
            fields = [field for field in value.__schema__.fields if version in field.versions]
            tree = {field.name: self.tree(getattr(value, field.name), version, field.name) for field in fields}
            tree.pop("throttle_time_ms", None)
            return tree
        if isinstance(value, list):
            listed = [self.tree(element, version, name) for element in value]
            return sorted(listed, key=str) if name in self.unordered else listed
        if name.endswith("error_code"):
            return ErrorCode(value).name
        if name in self.times and value > 0:
            return "a time"
        return self.leaf(value, name)

    def leaf(self, value: Any, name: str) -> Any:
        """A value that is not made of others."""
        return value


def escaped(data: bytes) -> str:
    """Return bytes as printable text."""
    return data.decode("latin-1").encode("unicode_escape").decode()


def codes(value: Any) -> list[int]:
    """All error codes in an answer."""
    if isinstance(value, list):
        return [code for element in value for code in codes(element)]
    if not isinstance(value, Struct):
        return []
    result = []
    for field in value.__schema__.fields:
        inner = getattr(value, field.name)
        result += [inner] if field.name.endswith("error_code") else codes(inner)
    return result
