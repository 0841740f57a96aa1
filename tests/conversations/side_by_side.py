"""Sends the requests of a script to a broker and records the responses, to compare Apache Kafka and ottla.

What cannot be the same (ids, times, ports, paths) is replaced by a name; everything else must be equal.
"""

from __future__ import annotations

import socket
import time
from struct import Struct as Layout
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ottla.protocol.api import response_class, response_header_version
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.header import ResponseHeader
from ottla.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.protocol.schema import ZERO_UUID, Message, Struct, Uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

R = TypeVar("R", bound=Message)
Transcript = dict[str, Any]
LENGTH = Layout(">i")
PREFIX = Layout(">hhi")
CLOSED = "the connection was closed"
# Nothing is meant to take so long: what ends a wait is a guard against a broker that never answers.
SETTLE_SECONDS = 300.0
SETTLE_MS = int(SETTLE_SECONDS * 1000)


class PeerClosedError(Exception):
    """The broker hung up instead of answering."""


class Wire:
    """A bare socket to a broker: frames out, frames in."""

    def __init__(self, bootstrap: str, client_id: str | None = "side-by-side") -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=SETTLE_SECONDS)
        self._client_id = client_id
        self._correlation_id = 0

    def send(self, request: Message, version: int) -> int:
        key = request.__schema__.api_key
        assert key is not None
        self._correlation_id += 1
        self.send_bytes(encode_request(key, version, self._correlation_id, self._client_id, request))
        return self._correlation_id

    def send_bytes(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise PeerClosedError from error

    def receive_frame(self) -> bytes:
        size = LENGTH.unpack(self._exactly(4))[0]
        return self._exactly(size)

    def receive(self, key: int, version: int, correlation_id: int) -> Message:
        frame = self.receive_frame()
        header, position = ResponseHeader.decode_from(frame, 0, response_header_version(key, version))
        assert header.correlation_id == correlation_id
        response, end = response_class(key).decode_from(frame, position, version)
        assert end == len(frame), f"{len(frame) - end} bytes left behind {response}"
        return response

    def ask(self, request: Message, version: int) -> Message:
        key = request.__schema__.api_key
        assert key is not None
        return self.receive(key, version, self.send(request, version))

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                piece = self._socket.recv(count - len(data))
            except ConnectionError:
                piece = b""
            if not piece:
                raise PeerClosedError
            data += piece
        return data


class Talk:
    """One broker's half of a script: what was asked, under which label, and what it answered."""

    def __init__(self, bootstrap: str, data_dir: str) -> None:
        self.bootstrap = bootstrap
        self.transcript: Transcript = {}
        self._data_dir = data_dir
        self._wire: Wire | None = None
        self._names: dict[Uuid, str] = {}
        self._sessions: dict[int, int] = {}
        self._settled = 0
        response = cast("ApiVersionsResponse", self.wire.ask(ApiVersionsRequest(), 0))
        self.versions = {
            api_key.api_key: range(api_key.min_version, api_key.max_version + 1) for api_key in response.api_keys
        }

    # What scripts say.

    def ask(
        self,
        label: str,
        request: Message,
        response: type[R],
        *,
        version: int | None = None,
        unordered: tuple[str, ...] = (),
        own_words: tuple[str, ...] = (),
    ) -> R:
        """Send a request, write the answer down, and return it for those who need an id from it.

        `unordered` names lists whose order Kafka leaves to a hash map, `own_words` texts that are told differently.
        """
        key = request.__schema__.api_key
        assert key is not None
        if version is None:
            version = self.versions[key][-1]
        try:
            reply = self.wire.ask(request, version)
        except PeerClosedError:
            self._hang_up()
            self._note(label, CLOSED)
            return response()
        if isinstance(reply, CreateTopicsResponse):
            self._names.update({topic.topic_id: topic.name for topic in reply.topics if topic.error_code == 0})
        self._note(label, _sorted(_reworded(self._tree(reply, version), own_words), unordered))
        return cast("R", reply)

    def ask_all(
        self,
        label: str,
        request: Callable[[int], Message],
        response: type[Message],
        *,
        least: int = 0,
        unordered: tuple[str, ...] = (),
    ) -> None:
        """Ask the same in every version that the broker serves; `request` makes it for a version."""
        key = response.__schema__.api_key
        assert key is not None
        for version in self.versions[key]:
            if version >= least:
                self.ask(f"{label} v{version}", request(version), response, version=version, unordered=unordered)

    def ask_bytes(self, label: str, frame: bytes, *, shown: bool = True) -> bytes | None:
        """Send a frame as it is, length excluded, and write down the frame that comes back, or just that one did."""
        try:
            self.wire.send_bytes(LENGTH.pack(len(frame)) + frame)
            response = self.wire.receive_frame()
        except PeerClosedError:
            self._hang_up()
            self._note(label, CLOSED)
            return None
        self._note(label, response.hex() if shown else "a frame")
        return response

    def tell(self, label: str, request: Message, *, version: int) -> None:
        """Send a request that is not answered; write down whether the connection is still good afterwards."""
        self.wire.send(request, version)
        try:
            self.wire.ask(ApiVersionsRequest(), 0)
        except PeerClosedError:
            self._hang_up()
            self._note(label, CLOSED)
        else:
            self._note(label, "the connection lives")

    def note(self, label: str, fact: object) -> None:
        """Write down something that a script found out."""
        self._note(label, fact)

    def quietly(self, request: Message, response: type[R], *, version: int | None = None) -> R:
        """Ask without writing the answer down."""
        key = request.__schema__.api_key
        assert key is not None
        return cast("R", self.wire.ask(request, self.versions[key][-1] if version is None else version))

    def create(self, name: str, partitions: int = 1, **configs: str) -> Uuid:
        """Make a topic for a script to use and wait until its partitions have leaders."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
        )
        response = self.quietly(CreateTopicsRequest(topics=[topic], timeout_ms=SETTLE_MS), CreateTopicsResponse)
        assert response.topics[0].error_code == 0, response
        self.wait_for(name, partitions)
        return response.topics[0].topic_id

    def wait_for(self, name: str, partitions: int = 1) -> None:
        """Wait until a broker knows a topic as it was just changed, and leads all of it."""
        self.wait_until(lambda: self._led(name, partitions), f"{name} has no leaders")
        for topic in self.quietly(MetadataRequest(topics=None), MetadataResponse).topics:
            self._names[topic.topic_id] = topic.name or ""

    def wait_until(self, condition: Callable[[], bool], what: str, seen: Callable[[], object] = lambda: "") -> None:
        """Wait for something that a broker does on its own time; if it never comes, tell what was seen instead."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what} {seen()}"
            time.sleep(0.02)

    def clear(self) -> None:
        """Delete every topic, so that a script starts from nothing."""

        def gone() -> bool:
            topics = self.quietly(MetadataRequest(topics=None), MetadataResponse).topics
            named = [DeleteTopicState(name=topic.name) for topic in topics if not topic.is_internal]
            if named:  # again if need be: a Kafka with too much to do gives up after a while
                self.quietly(DeleteTopicsRequest(topics=named, timeout_ms=SETTLE_MS), DeleteTopicsResponse)
            return not named

        self.wait_until(gone, "topics are still there")

    def settle(self) -> None:
        """Wait until the broker goes by all that it took so far, such as configs of groups.

        It takes changes in their order, some at once: the first topic may show in the midst of those that came with it,
        but the second one shows only after all of them.
        """
        for _ in range(2):
            self._settled += 1
            self.create(f"settled-{self._settled}")

    @property
    def wire(self) -> Wire:
        """The connection; a new one after the broker hung up."""
        if self._wire is None:
            self._wire = Wire(self.bootstrap)
        return self._wire

    def connect_as(self, client_id: str | None) -> None:
        """Go on as a client of another name."""
        self._hang_up()
        self._wire = Wire(self.bootstrap, client_id)

    def close(self) -> None:
        """Hang up."""
        self._hang_up()

    # Inside.

    def _hang_up(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _led(self, name: str, partitions: int) -> bool:
        topic = self.quietly(
            MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False), MetadataResponse
        ).topics[0]
        if topic.error_code or len(topic.partitions) != partitions or any(p.error_code for p in topic.partitions):
            return False
        expected = [ListOffsetsPartition(partition_index=index, timestamp=-2) for index in range(partitions)]
        response = self.quietly(
            ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=expected)]),
            ListOffsetsResponse,
        )
        return all(partition.error_code == ErrorCode.NONE for partition in response.topics[0].partitions)

    def _note(self, label: str, response: object) -> None:
        assert label not in self.transcript, f"two answers under {label!r}"
        self.transcript[label] = response

    def _tree(self, value: Any, version: int, name: str = "") -> Any:
        if isinstance(value, Struct):
            fields = [field for field in value.__schema__.fields if version in field.versions]
            tree = {field.name: self._tree(getattr(value, field.name), version, field.name) for field in fields}
            return {key: value for key, value in tree.items() if key not in _LEFT_OUT}
        if isinstance(value, list):
            return [self._tree(element, version, name) for element in value]
        if isinstance(value, Uuid):
            return self._id(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value).hex()
        if name == "session_id" and value:
            return f"session {self._sessions.setdefault(value, len(self._sessions) + 1)}"
        if name in _HIDDEN and value not in (None, -1, ""):
            return f"<{name}>"
        if isinstance(value, str):
            return self._text(value)
        return value

    def _id(self, value: Uuid) -> str:
        if value == ZERO_UUID:
            return "zero"
        return f"<id of {self._names[value]}>" if value in self._names else str(value)

    def _text(self, text: str) -> str:
        text = text.replace(self._data_dir, "<data>")
        for topic_id, name in self._names.items():
            text = text.replace(str(topic_id), f"<id of {name}>")
        return text

    def know_topics(self) -> None:
        """Learn the ids of all topics, so that answers show their names."""
        for topic in self.quietly(MetadataRequest(topics=None), MetadataResponse).topics:
            self._names[topic.topic_id] = topic.name or ""


_LEFT_OUT = frozenset({"throttle_time_ms"})
_HIDDEN = frozenset(
    {
        "cluster_id",
        "port",
        "log_append_time_ms",
        "documentation",
        "finalized_features_epoch",
        "total_bytes",
        "usable_bytes",
        "last_fetch_timestamp",
        "last_caught_up_timestamp",
        "replica_directory_id",
    }
)


def differences(kafka: Transcript, ottla: Transcript, who: tuple[str, str] = ("Kafka", "ottla")) -> dict[str, str]:
    """What the two answered differently, by label, told for people."""
    differences = {}
    for label in dict.fromkeys([*kafka, *ottla]):
        lines = list(_compare(kafka.get(label, "nothing of it"), ottla.get(label, "nothing of it"), "", who))
        if lines:
            differences[label] = "\n".join(lines)
    return differences


def assert_alike(
    kafka: Transcript, ottla: Transcript, about: str = "", *, who: tuple[str, str] = ("Kafka", "ottla")
) -> None:
    """Both answered alike; if not, say where they first did not, and then where else."""
    result = differences(kafka, ottla, who)
    if result:
        first = next(iter(result))
        labels = list(dict.fromkeys([*kafka, *ottla]))
        before = labels[labels.index(first) - 1] if first != labels[0] else "nothing"
        heartbeat = "\n".join(f"{label}\n  {what}" for label, what in result.items())
        raise AssertionError(f"{about}{len(result)} of {len(labels)} differ, first behind {before!r}:\n{heartbeat}")


def _compare(kafka: Any, ottla: Any, path: str, who: tuple[str, str]) -> Iterable[str]:
    if isinstance(kafka, dict) and isinstance(ottla, dict):
        for key in dict.fromkeys([*kafka, *ottla]):
            yield from _compare(kafka.get(key, "absent"), ottla.get(key, "absent"), f"{path}.{key}", who)
    elif isinstance(kafka, list) and isinstance(ottla, list):
        if len(kafka) != len(ottla):
            yield f"{path}: {who[0]} has {len(kafka)}: {kafka!r}, {who[1]} {len(ottla)}: {ottla!r}"
            return
        for index, (one, other) in enumerate(zip(kafka, ottla, strict=True)):
            yield from _compare(one, other, f"{path}[{index}]", who)
    elif kafka != ottla:
        yield f"{path}: {who[0]} {kafka!r}, {who[1]} {ottla!r}"


def _reworded(tree: Any, own_words: tuple[str, ...]) -> Any:
    if isinstance(tree, dict):
        return {
            key: "<words>" if key in own_words and value else _reworded(value, own_words) for key, value in tree.items()
        }
    return [_reworded(element, own_words) for element in tree] if isinstance(tree, list) else tree


def _sorted(tree: Any, unordered: tuple[str, ...]) -> Any:
    if isinstance(tree, dict):
        tree = {key: _sorted(value, unordered) for key, value in tree.items()}
        return {key: sorted(value, key=str) if key in unordered and value else value for key, value in tree.items()}
    return [_sorted(element, unordered) for element in tree] if isinstance(tree, list) else tree
