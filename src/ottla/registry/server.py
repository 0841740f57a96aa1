"""A running registry: follows `_schemas`, serves HTTP on a separate loop and thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from ottla.client.connection import ConnectionFailedError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.registry.errors import schema_too_large, store_failed, timed_out
from ottla.registry.schemas_topic import FencedError, SchemasTopic
from ottla.registry.service import RegistryService
from ottla.registry.state import RegistryState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.client.client import Client
    from ottla.registry.access import RegistryAccess
    from ottla.registry.change import Change
    from ottla.registry.local_client import LocalRegistryClient
    from ottla.registry.schemas_topic import TopicRecord
    from ottla.server.web_options import WebOptions

log = logging.getLogger(__name__)

START_SECONDS: Final = 120.0
WRITE_SECONDS: Final = 60.0
WRITE_ATTEMPTS: Final = 10
SETTLE_SECONDS: Final = 0.2
TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


class RegistryServer:
    """A schema registry over any Kafka.

        with RegistryServer(lambda: Client("localhost:9092"), WebOptions("127.0.0.1", 8081)) as registry:
            print(registry.url)

    `connect` makes a client; the registry uses two, one of them on a thread that follows the topic. `access` has the
    users and their rights; None admits everyone.
    """

    def __init__(
        self, connect: Callable[[], Client], options: WebOptions, access: RegistryAccess | None = None
    ) -> None:
        self._connect = connect
        self._options = options
        self._access = access
        self.state = RegistryState()
        self.service = RegistryService(self.state)
        self.url = ""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._position = 0
        self._moved: asyncio.Condition | None = None
        self._writing: asyncio.Lock | None = None
        self._io = ThreadPoolExecutor(1, "ottla-registry-io")
        self._topic: SchemasTopic | None = None
        self._ends_with_marker = False
        self._settling: asyncio.TimerHandle | None = None
        self._settle_task: asyncio.Task[None] | None = None

    def start(self) -> RegistryServer:
        """Read the topic and serve; return when requests are answered."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._main, args=(ready,), name="ottla-registry-http", daemon=True)
        self._thread.start()
        if not ready.wait(START_SECONDS):
            raise TimeoutError("the registry did not start")
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def client(self) -> LocalRegistryClient:
        """Return a client that reads schemas from this registry without HTTP."""
        from ottla.registry.local_client import LocalRegistryClient

        assert self._loop is not None, "start comes first"
        return LocalRegistryClient(self.service, self._loop, self.url)

    def close(self) -> None:
        """Stop serving and disconnect."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and self._stop is not None and thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        thread.join()
        self._io.shutdown()

    def __enter__(self) -> RegistryServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _main(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:
            self._failure = error
        finally:
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        from ottla.registry.api import RegistryApi, refuse

        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._moved = asyncio.Condition()
        self._writing = asyncio.Lock()
        web = self._options.server()
        self.url = web.bind()
        topic = self._topic = await self._call(SchemasTopic, self._connect)
        try:
            await self._call(topic.create)
            records, self._position = await self._call(topic.read_all)
            self._replay(records)
            self._ends_with_marker = bool(records) and records[-1].offset + 1 < self._position
            cluster_id = await self._call(lambda: topic.cluster_id)
            topic.follow(self._position, self._deliver)
            await web.serve(RegistryApi(self.service, self.write, cluster_id, self._access).routes(), refuse)
            ready.set()
            self._settle_later()
            await self._stop.wait()
        finally:
            await web.stop()
            await self._settle()
            await self._call(topic.close)

    async def _call(self, function: Callable[..., Any], *args: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._io, function, *args)

    def _replay(self, records: list[TopicRecord]) -> None:
        for record in records:
            self.state.replay(record.key, record.value, record.offset, record.timestamp)

    def _deliver(self, records: list[TopicRecord], position: int) -> None:
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._advance(records, position), self._loop)

    async def _advance(self, records: list[TopicRecord], position: int) -> None:
        assert self._moved is not None
        self._replay(records)
        self._position = max(self._position, position)
        async with self._moved:
            self._moved.notify_all()

    def _settle_later(self) -> None:
        """Append a NOOP record when no write has followed for a while."""
        assert self._loop is not None
        if self._settling is not None:
            self._settling.cancel()
        if self._ends_with_marker:
            self._settling = self._loop.call_later(SETTLE_SECONDS, self._spawn_settle)

    def _spawn_settle(self) -> None:
        assert self._loop is not None
        self._settle_task = self._loop.create_task(self._settle())

    async def _settle(self) -> None:
        assert self._writing is not None
        assert self._topic is not None
        async with self._writing:
            if not self._ends_with_marker:
                return
            self._ends_with_marker = False
            try:
                await self._call(self._topic.append_noop)
            except (KafkaError, ConnectionFailedError, OSError) as error:
                log.info("the topic _schemas ends with the marker of a transaction: %s", error)

    async def _reach(self, offset: int) -> None:
        """Wait until everything below an offset is replayed."""
        assert self._moved is not None
        async with asyncio.timeout(WRITE_SECONDS), self._moved:
            await self._moved.wait_for(lambda: self._position >= offset)

    async def write(self, make: Callable[[], Change]) -> Any:
        """Decide on the newest state, append what the decision needs, and return its result once it is replayed."""
        assert self._writing is not None
        assert self._topic is not None
        async with self._writing:
            try:
                for _ in range(WRITE_ATTEMPTS):
                    await self._call(self._topic.take_over)
                    await self._reach(await self._call(self._topic.end))
                    change = make()
                    if change.records:
                        try:
                            await self._reach(await self._call(self._topic.append, change.records))
                        except FencedError:
                            continue
                        self._ends_with_marker = True
                        self._settle_later()
                    return change.result()
            except TimeoutError:
                raise timed_out() from None
            except KafkaError as error:
                if error.code in TOO_LARGE:
                    raise schema_too_large("Write failed because schema is too large") from error
                raise store_failed(f"The topic _schemas cannot be written: {error}") from error
            except (ConnectionFailedError, OSError) as error:
                raise store_failed(f"The topic _schemas cannot be written: {error}") from error
        raise store_failed("Another registry keeps writing to the topic _schemas")
