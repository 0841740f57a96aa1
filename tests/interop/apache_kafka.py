"""A real Apache Kafka for the tests: one combined KRaft node on loopback, on its own directory or on ours.

It formats, starts, stops, kills and restarts the node and runs Kafka's own tools. Client actions that would
each cost a JVM start are in java_client.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
from typing import TYPE_CHECKING

from ottla.protocol.uuids import Uuid
from ottla.world.random import SystemRandom
from tests.ports import free_ports

from .jvm import jvm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from .java_client import JavaClients

# Quick start, small footprint, nothing that waits for a second node.
_SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.share.min.heartbeat.interval.ms": "300",
    "group.share.heartbeat.interval.ms": "300",
    "group.share.initialize.retry.interval.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.cleaner.backoff.ms": "500",
    "controlled.shutdown.enable": "true",
    "controller.quorum.election.timeout.ms": "100",
    "initial.broker.registration.timeout.ms": "300000",
    "broker.heartbeat.interval.ms": "500",
}
# A broker that is silent for so long is fenced, and then topics cannot be created and partitions have no leader: long,
# so that a machine that stops for a while does not bring it about; but a start after a crash waits for the end of the
# session that the crash left, for which a shorter one has to do.
_SESSION_MS, _SESSION_AFTER_CRASH_MS = "600000", "15000"

_STARTED = re.compile(r"\[KafkaRaftServer nodeId=\d+\] Kafka Server started")


class KafkaDiedError(AssertionError):
    """The node ended or was not ready in time; the text holds the end of its log."""


def read_properties(path: Path) -> dict[str, str]:
    """Read a simple properties file, such as meta.properties."""
    lines = (line.strip() for line in path.read_text().splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def random_cluster_id() -> str:
    """Return a fresh id as Kafka makes them: none begins with a dash, which its tools take for an option."""
    return str(Uuid(SystemRandom().uuid()))


class ApacheKafka:
    """One node of Apache Kafka, broker and controller in one process.

    A directory without meta.properties is formatted first; one that has it (written by an earlier run or by
    ottla) is opened as it is, with the ids that it names. `dynamic_quorum` is what `--standalone` formats
    (kraft.version 1); otherwise the quorum is the static `controller.quorum.voters` (kraft.version 0).
    """

    def __init__(
        self,
        log_dir: Path,
        *,
        settings: Mapping[str, str] | None = None,
        node_id: int = 1,
        cluster_id: str | None = None,
        dynamic_quorum: bool = True,
        format_options: Sequence[str] = (),
        sasl: bool = False,
        heap: str = "384m",
        log_level: str = "INFO",
        work_dir: Path | None = None,
    ) -> None:
        self.log_dir = log_dir
        self.work_dir = work_dir or log_dir.parent / f"{log_dir.name}.kafka"
        self.work_dir.mkdir(parents=True, exist_ok=True)
        self.log_file = self.work_dir / "server.log"
        self.node_id = node_id
        self.cluster_id = cluster_id or random_cluster_id()
        self.dynamic_quorum = dynamic_quorum
        self._format_options = list(format_options)
        self._extra = dict(settings or {})
        self._heap = heap
        self._log_level = log_level
        self._sasl = sasl
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._ready = threading.Event()
        self._run_starts_at = 0
        self._after_crash = False
        self.port, self.controller_port, self.sasl_port = free_ports(3)

    # where it is

    @property
    def bootstrap(self) -> str:
        """The address that clients start from."""
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_bootstrap(self) -> str:
        """The address of the SASL_PLAINTEXT listener, if the node was made with `sasl=True`."""
        return f"127.0.0.1:{self.sasl_port}"

    @property
    def pid(self) -> int:
        """The process id of the running node."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def properties(self) -> dict[str, str]:
        """Return the server.properties that the node starts with."""
        listeners = [f"PLAINTEXT://127.0.0.1:{self.port}", f"CONTROLLER://127.0.0.1:{self.controller_port}"]
        protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
        result = {
            **_SETTINGS,
            "broker.session.timeout.ms": _SESSION_AFTER_CRASH_MS if self._after_crash else _SESSION_MS,
            "node.id": str(self.node_id),
            "log.dirs": str(self.log_dir),
            "listener.security.protocol.map": protocols,
            "inter.broker.listener.name": "PLAINTEXT",
        }
        if self._sasl:
            listeners.insert(1, f"SASL_PLAINTEXT://127.0.0.1:{self.sasl_port}")
            result["sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
            result["listener.name.sasl_plaintext.plain.sasl.jaas.config"] = (
                "org.apache.kafka.common.security.plain.PlainLoginModule required "
                'username="admin" password="admin-secret" '
                'user_admin="admin-secret" user_alice="alice-secret";'
            )
            for mechanism in ("scram-sha-256", "scram-sha-512"):
                result[f"listener.name.sasl_plaintext.{mechanism}.sasl.jaas.config"] = (
                    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                )
        result["listeners"] = ",".join(listeners)
        if self.dynamic_quorum:
            result["controller.quorum.bootstrap.servers"] = f"127.0.0.1:{self.controller_port}"
        else:
            result["controller.quorum.voters"] = f"{self.node_id}@127.0.0.1:{self.controller_port}"
        return {**result, **self._extra}

    # life

    def start(self, *, timeout: float = 300) -> ApacheKafka:
        """Start the node and wait until it serves; raises KafkaDiedError with its log if it does not."""
        assert not self.running, "already running"
        meta = self.log_dir / "meta.properties"
        options: list[str] = []
        self._after_crash = meta.exists() and not (self.log_dir / ".kafka_cleanshutdown").exists()
        if meta.exists():
            known = read_properties(meta)
            self.node_id = int(known["node.id"])
            self.cluster_id = known["cluster.id"]
            quorum = self.log_dir / "__cluster_metadata-0" / "quorum-state"
            if quorum.exists():
                self.dynamic_quorum = json.loads(quorum.read_text())["data_version"] >= 1
        config = self.work_dir / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.properties().items()))
        if not meta.exists():
            options = [
                "format",
                "--cluster-id",
                self.cluster_id,
                "--config",
                str(config),
                *self._format_options,
            ]
            if self.dynamic_quorum:
                options.append("--standalone")
        self._ready.clear()
        self._run_starts_at = self.log_file.stat().st_size if self.log_file.exists() else 0
        command = jvm().command(
            "KafkaNode",
            *options,
            "--",
            str(config),
            heap=self._heap,
            log_level=self._log_level,
            properties={"java.security.manager": "allow"},
        )
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.work_dir,
        )
        self._reader = threading.Thread(target=self._copy_log, args=(self._process,), daemon=True)
        self._reader.start()
        if not self._ready.wait(timeout) or not self.running:
            if self.running:
                self.kill()
            raise KafkaDiedError(f"Apache Kafka on {self.log_dir} did not start; its log ends with\n{self.log_tail()}")
        return self

    def _copy_log(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with self.log_file.open("ab") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                if _STARTED.search(line.decode(errors="replace")):
                    self._ready.set()
        process.wait()
        self._ready.set()  # the process ended: wake the waiting start

    def stop(self, *, timeout: float = 300) -> None:
        """Shut down cleanly (SIGTERM) and wait for the end."""
        if self._process is None:
            return
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired as problem:
                self.kill()
                raise KafkaDiedError(f"Apache Kafka did not stop in {timeout} s\n{self.log_tail()}") from problem
        self._finish()

    def kill(self) -> None:
        """End the process as a crash would (SIGKILL)."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._finish()

    def _finish(self) -> None:
        assert self._process is not None
        assert self._reader is not None
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process = None

    def restart(self) -> ApacheKafka:
        """Stop cleanly if it runs and start again on the same directory and ports."""
        self.stop()
        return self.start()

    def __enter__(self) -> ApacheKafka:
        return self if self.running else self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # its log

    def log_text(self) -> str:
        """Return what the node logged since its last start."""
        if not self.log_file.exists():
            return ""
        with self.log_file.open("rb") as file:
            file.seek(self._run_starts_at)
            return file.read().decode(errors="replace")

    def log_tail(self, lines: int = 20) -> str:
        """Return the warnings and the end of the log of the last start."""
        return "\n".join([*self.complaints(), "...", *self.log_text().splitlines()[-lines:]])

    def complaints(self, *, ignore: Sequence[str] = ()) -> list[str]:
        """Return the WARN, ERROR and FATAL lines of the last start, without those that match `ignore`.

        What is matched is a line with the trace of the exception that follows it.
        """
        result = re.compile(r"\[[^\]]*\] (WARN|ERROR|FATAL) ")
        quiet = [re.compile(entry) for entry in (*_EXPECTED_COMPLAINTS, *ignore)]
        entries = re.split(r"\n(?=\[\d{4}-)", self.log_text())
        return [
            entry.partition("\n")[0]
            for entry in entries
            if result.match(entry) and not any(element.search(entry) for element in quiet)
        ]

    def recovered_logs(self) -> list[str]:
        """Return the lines of the last start about partitions that were recovered.

        Kafka reads its metadata log again at every start.
        """
        notified = re.compile(
            r"Recovering unflushed segment|Found (invalid|corrupt)|Rebuilding index|no clean shutdown file"
        )
        lines = self.log_text().splitlines()
        return [line for line in lines if notified.search(line) and "__cluster_metadata" not in line]

    # Kafka's tools

    def tool(self, main: str, *args: str, stdin: bytes = b"", check: bool = True) -> str:
        """Run one of Kafka's tools with `--bootstrap-server` set to this node; return what it prints."""
        return run_tool(main, "--bootstrap-server", self.bootstrap, *args, stdin=stdin, check=check)


_OWN_CONTROLLER = (
    r"(NodeToController\w+|BrokerLifecycleManager|QuorumController|ControllerRegistrationManager|AssignmentsManager"
    r"|AutoTopicCreationManager|ForwardingManager|ProducerIdManager|RaftManager|KafkaRaftClient|KafkaNetworkChannel"
    r"|NetworkClient|InterBrokerSendThread|AlterPartitionManager)"
)
# What a healthy single node says in these settings, and on a machine that is slow for a moment.
_EXPECTED_COMPLAINTS = (
    r"Performing controller activation\.",
    r"Attempting to close NetworkClient that has already been closed",
    r"Exceptionally slow controller event",
    r"Auto topic creation failed for __\w+ with error 'TOPIC_ALREADY_EXISTS'",  # two requests asked for it at once
    r"Attempting to send response via channel for which there is no open connection",  # to a client that has gone
    r"Connection to node \S+ .*could not be established",  # its own listener, before that is open or after it is closed
    r"Graceful shutdown timed out",
    # Requests of this broker to its own controller on a machine that stood still: sent before the controller was ready
    # for them, or not answered in time. Timeouts of anything else (logs, coordinators, clients) remain complaints.
    rf"{_OWN_CONTROLLER}[\s\S]*(Timeout|NotController|Disconnect)Exception",
    rf"(?i){_OWN_CONTROLLER}[\s\S]*(timed out|timeout)",
    rf"(?i)(timed out|timeout|Disconnect)[\s\S]*{_OWN_CONTROLLER}",
)

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
ACLS = "org.apache.kafka.tools.AclCommand"
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
STREAMS_GROUPS = "org.apache.kafka.tools.streams.StreamsGroupCommand"
GROUPS = "org.apache.kafka.tools.GroupsCommand"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
METADATA_QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
DELEGATION_TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
STORAGE = "kafka.tools.StorageTool"
METADATA_SHELL = "org.apache.kafka.shell.MetadataShell"


def run_tool(main: str, *args: str, stdin: bytes = b"", check: bool = True, cwd: Path | None = None) -> str:
    """Run one of Kafka's tools by its main class and return what it prints."""
    return jvm().run(main, *args, stdin=stdin, check=check, cwd=cwd).stdout


def dump_log(
    *files: Path | str,
    options: Sequence[str] = ("--deep-iteration", "--print-data-log"),
    cwd: Path | None = None,
) -> str:
    """Run DumpLogSegments over log, index, snapshot or checkpoint files."""
    return run_tool(DUMP_LOG, *options, "--files", ",".join(str(file) for file in files), cwd=cwd)


def check_log_directory(log_dir: Path, clients: JavaClients) -> None:
    """Let Kafka's own DumpLogSegments find fault with any batch, index, snapshot or checkpoint of a directory."""

    def dump(paths: list[Path], *options: str) -> str:
        texts = []
        for some in _by_size(paths, _LARGE):
            arguments = (DUMP_LOG, *options, "--files", ",".join(str(entry) for entry in some))
            if some[0].stat().st_size > _LARGE:  # its dump does not fit the small heap that clients share
                texts.append(jvm().run(*arguments, timeout=600).stdout)
            else:
                texts.append(clients.tool(*arguments))
            assert not _FAULTS.search(texts[-1]), texts[-1]
        return "".join(texts)

    folders = [path for path in sorted(log_dir.iterdir()) if path.is_dir() and not path.name.endswith("-delete")]
    paths = [path for folder in folders for path in sorted(folder.iterdir())]
    logs = [path for path in paths if path.suffix in (".log", ".checkpoint")]
    assert dump(logs, "--deep-iteration").count("Dumping ") == len(logs)
    others = [path for path in paths if path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot")]
    assert dump(others).count("Dumping ") == len(others)
    indexes = [path for path in others if path.suffix in (".index", ".timeindex") and path.stat().st_size]
    if indexes:
        assert dump(indexes, "--index-sanity-check").count("passed sanity check") == len(indexes)


def _by_size(paths: list[Path], most: int) -> Iterator[list[Path]]:
    """Files in groups of so many bytes together, or of one file."""
    group: list[Path] = []
    size = 0
    for path in paths:
        length = path.stat().st_size
        if group and size + length > most:
            yield group
            group, size = [], 0
        group.append(path)
        size += length
    if group:
        yield group


_LARGE = 8 << 20
_FAULTS = re.compile(
    r"(?i)isvalid: false|mismatch|out of order|non-consecutive|corrupt|exception|\d+ trailing|isn't magic"
)
