"""Kafka's Java producer, consumers and admin client, in one JVM that many tests share.

`JavaClients` is the process; `Producer`, `Consumer`, `ShareConsumer` and `Admin` are handles on what lives in it.
Every call waits for its answer; `call_later` does not, for two things that must happen at the same time.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from base64 import b64decode, b64encode
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.markers import markers_written

from .jvm import ToolFailedError, jvm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


# Guards only: a machine that stops for a while must not make a client ask twice, or give up.
CALL_SECONDS = 900
WAIT_MS = 300_000
_ASKS = {"request_timeout_ms": "120000", "default_api_timeout_ms": "300000"}
_SENDS = {"request_timeout_ms": "120000", "delivery_timeout_ms": "600000", "max_block_ms": "300000"}


class KafkaClientError(Exception):
    """What a Java client threw: its class, the protocol's error name and code, and the message."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['class']}: {error['message']}{error.get('trace', '')}")
        self.java_class: str = error["class"]
        self.name: str = error["name"]
        self.code: int = error["code"]
        self.message: str = error["message"]


@dataclass(frozen=True, slots=True)
class Record:
    """A record to produce, or one that was consumed."""

    topic: str
    value: bytes | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp: int | None = None
    offset: int | None = field(default=None, compare=True)
    timestamp_type: str | None = None
    leader_epoch: int | None = None
    delivery_count: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what a producer needs of it."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "timestamp": self.timestamp,
            "key": _text(self.key),
            "value": _text(self.value),
            "headers": [[name, _text(value)] for name, value in self.headers],
        }

    @classmethod
    def from_json(cls, node: Mapping[str, Any]) -> Record:
        """Return the record that a consumer saw."""
        return cls(
            topic=node["topic"],
            value=_bytes(node["value"]),
            key=_bytes(node["key"]),
            headers=tuple((name, _bytes(value)) for name, value in node["headers"]),
            partition=node["partition"],
            timestamp=node["timestamp"],
            offset=node["offset"],
            timestamp_type=node["timestamp_type"],
            leader_epoch=node["leader_epoch"],
            delivery_count=node["delivery_count"],
        )


def _text(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else b64decode(value)


class JavaClients:
    """The JVM with the clients; use as a context manager or call `close`."""

    def __init__(
        self,
        *,
        log_file: Path | None = None,
        log_level: str = "ERROR",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._log_file = log_file
        self._log = log_file.open("ab") if log_file is not None else None
        self._process = subprocess.Popen(
            jvm().command("ClientHost", log_level=log_level, properties=properties),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log if self._log is not None else subprocess.DEVNULL,
        )
        self._ids = itertools.count(1)
        self._names = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reply = json.loads(line)
            with self._lock:
                future = self._waiting.pop(reply["id"])
            if "error" in reply:
                future.set_exception(KafkaClientError(reply["error"]))
            else:
                future.set_result(reply["ok"])
        with self._lock:
            left, self._waiting = self._waiting, {}
        for future in left.values():
            future.set_exception(RuntimeError("the JVM with the Java clients ended"))

    def call_later(self, action: str, *, on: str | None = None, **args: Any) -> Future[Any]:
        """Ask for an action and return at once; actions on one client run in order."""
        number = next(self._ids)
        future: Future[Any] = Future()
        line = json.dumps({"id": number, "do": action, "on": on, **args}).encode() + b"\n"
        assert self._process.stdin is not None
        with self._lock:
            self._waiting[number] = future
            self._process.stdin.write(line)
            self._process.stdin.flush()
        return future

    def call(self, action: str, *, on: str | None = None, timeout: float = CALL_SECONDS, **args: Any) -> Any:
        """Do an action and return its result."""
        return self.call_later(action, on=on, **args).result(timeout)

    def tool(self, main: str, *args: str, check: bool = True) -> str:
        """Run one of Kafka's command-line tools in this JVM, one at a time, and return what it prints."""
        done = self.call("tool", main=main, args=jvm().arguments(main, args))
        if check and done["code"] != 0:
            raise ToolFailedError(f"{main} {' '.join(args)} ended with code {done['code']}\n{done['out']}")
        printed: str = done["out"]
        return printed

    def log_tail(self, lines: int = 40) -> str:
        """Return the end of what the clients logged."""
        if self._log_file is None or not self._log_file.exists():
            return ""
        return "\n".join(self._log_file.read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        """End the JVM; clients that are still open are dropped."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> JavaClients:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def producer(self, bootstrap: str, **config: str) -> Producer:
        """Open a producer; config keys are Kafka's with `_` for `.`, and transactions have ten minutes by default."""
        defaults = {**_SENDS, **({"transaction_timeout_ms": "600000"} if "transactional_id" in config else {})}
        if config.get("enable_idempotence") == "false":  # what is sent again must not come after what was sent later
            defaults["max_in_flight_requests_per_connection"] = "1"
        return Producer(self, f"producer-{next(self._names)}", _config(bootstrap, defaults, config))

    def consumer(self, bootstrap: str, **config: str) -> Consumer:
        """Open a consumer; `auto.offset.reset` is earliest and auto commit is off unless told otherwise."""
        defaults = {**_ASKS, "auto_offset_reset": "earliest", "enable_auto_commit": "false"}
        return Consumer(self, f"consumer-{next(self._names)}", _config(bootstrap, defaults, config))

    def share_consumer(self, bootstrap: str, **config: str) -> ShareConsumer:
        """Open a share consumer."""
        return ShareConsumer(self, f"share-{next(self._names)}", _config(bootstrap, _ASKS, config))

    def admin(self, bootstrap: str, **config: str) -> Admin:
        """Return an admin client."""
        return Admin(self, _config(bootstrap, _ASKS, config))

    def read_all(self, bootstrap: str, topics: Sequence[str], **config: str) -> list[Record]:
        """Return every record of the topics, in the order of topic, partition and offset."""
        if config.get("isolation_level") == "read_committed":
            markers_written(bootstrap)
        response = self.call(
            "read_all", topics=list(topics), timeout_ms=WAIT_MS, config=_config(bootstrap, _ASKS, config)
        )
        return [Record.from_json(entry) for entry in response]


def _config(bootstrap: str, *configs: Mapping[str, str]) -> dict[str, str]:
    """Settings under Kafka's names; a later one goes before an earlier one."""
    named = {key.replace("_", "."): value for config in configs for key, value in config.items()}
    return {"bootstrap.servers": bootstrap, **named}


def sasl_config(mechanism: str, user: str, password: str) -> dict[str, str]:
    """Return the client settings for a SASL_PLAINTEXT listener."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_jaas_config": f"org.apache.kafka.common.security.{module} required "
        f'username="{user}" password="{password}";',
    }


class _Handle:
    _kind = ""

    def __init__(self, clients: JavaClients, name: str, config: Mapping[str, str]) -> None:
        self._clients = clients
        self.name = name
        self.call("open", config=dict(config))

    def call(self, action: str, *, timeout: float = CALL_SECONDS, **args: Any) -> Any:
        """Do one of the Java side's actions by its name."""
        return self._clients.call(f"{self._kind}.{action}", on=self.name, timeout=timeout, **args)

    def call_later(self, action: str, **args: Any) -> Future[Any]:
        """Like `call`, but returns at once."""
        return self._clients.call_later(f"{self._kind}.{action}", on=self.name, **args)

    def close(self) -> None:
        """Close the client as an application would."""
        self.call("close")

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Producer(_Handle):
    """A KafkaProducer of bytes."""

    _kind = "producer"

    def send(self, records: Iterable[Record]) -> list[dict[str, Any]]:
        """Send and flush; return topic, partition, offset and timestamp of each."""
        sent: list[dict[str, Any]] = self.call("send", records=[record.to_json() for record in records])
        return sent

    def init_transactions(self) -> None:
        """Register the transactional id."""
        self.call("init")

    def begin(self) -> None:
        """Begin a transaction."""
        self.call("begin")

    def commit(self) -> None:
        """Commit the transaction."""
        self.call("commit")

    def abort(self) -> None:
        """Abort the transaction."""
        self.call("abort")

    def send_offsets(
        self, offsets: Mapping[str, Any], *, group: str | None = None, consumer: str | None = None
    ) -> None:
        """Add a group's offsets ("topic:0" -> offset) to the transaction."""
        self.call("send_offsets", offsets=dict(offsets), group=group, consumer=consumer)


class Consumer(_Handle):
    """A KafkaConsumer of bytes."""

    _kind = "consumer"

    def subscribe(self, *topics: str) -> None:
        """Join the group for these topics."""
        self.call("subscribe", topics=list(topics))

    def assign(self, *partitions: str) -> None:
        """Take partitions ("topic:0") without a group's assignment."""
        self.call("assign", partitions=list(partitions))

    def poll(self, *, min_records: int = 1, timeout_ms: int = WAIT_MS) -> list[Record]:
        """Poll until so many records came or the time is over."""
        response = self.call("poll", min_records=min_records, timeout_ms=timeout_ms)
        return [Record.from_json(entry) for entry in response]

    def await_assignment(self, count: int, *, timeout_ms: int = WAIT_MS) -> list[str]:
        """Poll until exactly so many partitions are assigned; records seen on the way wait for the next poll."""
        response: list[str] = self.call("await_assignment", count=count, timeout_ms=timeout_ms)
        assert len(response) == count, f"{self.name} should have {count} partitions and has {response}"
        return response

    def commit(self, offsets: Mapping[str, Any] | None = None) -> None:
        """Commit the positions, or given offsets ("topic:0" -> offset or {offset, metadata, leader_epoch})."""
        self.call("commit", offsets=None if offsets is None else dict(offsets))


class ShareConsumer(_Handle):
    """A KafkaShareConsumer of bytes."""

    _kind = "share"

    def subscribe(self, *topics: str) -> None:
        """Join the share group for these topics."""
        self.call("subscribe", topics=list(topics))

    def poll(self, *, min_records: int = 1, timeout_ms: int = WAIT_MS, acknowledge: str | None = None) -> list[Record]:
        """Poll until so many records came; `acknowledge` (ACCEPT, RELEASE, REJECT) answers and commits each."""
        response = self.call("poll", min_records=min_records, timeout_ms=timeout_ms, acknowledge=acknowledge)
        return [Record.from_json(entry) for entry in response]


class Admin:
    """Kafka's admin client: `admin.call("create_topics", topics=[{"name": "t", "partitions": 2}])`.

    The actions and their arguments are those of java/AdminActions.java; answers are plain JSON values.
    """

    def __init__(self, clients: JavaClients, config: Mapping[str, str]) -> None:
        self._clients = clients
        self._config = dict(config)

    def call(self, action: str, *, timeout: float = CALL_SECONDS, **args: Any) -> Any:
        """Do one of the admin client's calls."""
        return self._clients.call(f"admin.{action}", timeout=timeout, config=self._config, **args)

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> dict[str, Any]:
        """Create a topic; config keys are Kafka's with `_` for `.`."""
        topic = {
            "name": name,
            "partitions": partitions,
            "config": {key.replace("_", "."): value for key, value in config.items()},
        }
        created: dict[str, Any] = self.call("create_topics", topics=[topic])[name]
        return created

    def close(self) -> None:
        """Close the client; another call opens it again."""
        self.call("close")
