"""A broker in this process, in virtual time, that gets request frames as from a connection."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ottla.broker.session import Session
from ottla.broker.start import close_cluster, open_cluster
from ottla.cluster.server_config import Endpoint, parse_server_properties
from ottla.handlers.registry import apis
from ottla.pending import Pending
from ottla.protocol.api import response_header_version
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.header import ResponseHeader
from ottla.server.dispatch import Dispatch
from ottla.world.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ottla.protocol.schema import Message

R = TypeVar("R", bound="Message")
LENGTH = Struct(">i")
CLIENT_ID = "side-by-side"


class LocalTalk:
    """One node, and the means to ask it."""

    def __init__(self, settings: Mapping[str, str], *, sync: bool = False, seed: int = 1) -> None:
        self.world = World.simulated(seed)
        self.world.disk.make_dirs("/data")
        config = parse_server_properties(
            "node.id=1\nlog.dirs=/data\nlisteners=PLAINTEXT://127.0.0.1:9092\n", "server.properties", settings
        )
        self._config, self._sync = config, sync
        self.versions = {key: api.versions for key, api in apis().items()}
        self.open()

    def open(self) -> None:
        """Start the node on what its disk holds."""
        advertised = {1: [Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)]}
        self.runtime = open_cluster(self.world, [self._config], advertised, sync=self._sync)
        self._dispatch = Dispatch(self.runtime.nodes[1])
        self._session = Session(1, "PLAINTEXT", "127.0.0.1", 40_000)

    def restart(self) -> None:
        """Stop the node cleanly and start it again on what it left."""
        self.close()
        self.open()

    def quietly(self, request: Message, response: type[R], *, version: int | None = None) -> R:
        """Ask, and let time pass until there is an answer."""
        key = request.__schema__.api_key
        assert key is not None
        version = self.versions[key][-1] if version is None else version
        return self.start(request, response, version)()

    def ask_now(self, request: Message, response: type[R]) -> R:
        """Ask in the newest version, and expect the answer without any turn of the loop."""
        key = request.__schema__.api_key
        assert key is not None
        version = self.versions[key][-1]
        reply = self.ask_frame(encode_request(key, version, 7, CLIENT_ID, request))
        assert not isinstance(reply, Pending) or reply.done
        return self._answer(reply, response, key, version)

    def start(self, request: Message, response: type[R], version: int) -> Callable[[], R]:
        """Ask on a connection of its own; what this returns waits for the answer."""
        key = request.__schema__.api_key
        assert key is not None
        reply = self.ask_frame(encode_request(key, version, 7, CLIENT_ID, request))
        return lambda: self._answer(reply, response, key, version)

    def ask_frame(self, frame: bytes | bytearray) -> Any:
        """Ask with a frame, and return the parts of the answer, or the promise of them."""
        return self._dispatch.handle(self._session, memoryview(bytearray(frame))[LENGTH.size :])

    def _answer(self, answer: Any, response: type[R], key: int, version: int) -> R:
        if isinstance(answer, Pending):
            self.wait_until(lambda: answer.done, "no answer")
            answer = answer.response
        data = b"".join(written(part) for part in answer)
        assert LENGTH.unpack_from(data)[0] == len(data) - LENGTH.size
        _, position = ResponseHeader.decode_from(data, LENGTH.size, response_header_version(key, version))
        decoded, end = response.decode_from(data, position, version)
        assert end == len(data)
        return cast("R", decoded)

    def segments(self, topic: str) -> Iterator[bytes]:
        """The segments of a topic."""
        disk = self.world.disk
        for folder in sorted(disk.list("/data")):
            if folder.startswith(f"{topic}-"):
                for name in sorted(disk.list(f"/data/{folder}")):
                    if name.endswith(".log"):
                        yield disk.read(f"/data/{folder}/{name}")

    def create(self, name: str, partitions: int = 1) -> None:
        """Make a topic."""
        self.runtime.create_topic(name, partitions, 1)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Let time pass until something has happened."""
        for _ in range(10_000):
            if condition():
                return
            self.pause()
        raise AssertionError(what)

    def pause(self) -> None:
        """Let a moment pass."""
        self.world.clock.advance(0.02)

    def close(self) -> None:
        """Stop the node."""
        close_cluster(self.runtime)


def written(part: Any) -> bytes:
    """What a connection would write: bytes as they are, a range of a file read."""
    if isinstance(part, bytes | bytearray | memoryview):
        return bytes(part)
    data = bytes(part.read(0, len(part)))
    part.release()
    return data
