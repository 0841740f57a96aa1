"""Java and franz-go clients that make the faults of `tests.analysis.faulty_clients`.

`python -m tests.interop.client_faults` records them as tests/fixtures/analysis/{java,kgo}.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.analysis.faulty_clients import (
    NEVER,
    POLL_INTERVAL_MS,
    Watched,
    fenced,
    kicked,
    late_end,
    produce,
    slow_polls,
    stuck,
    watch,
)

from .go_programs import build_program
from .java_client import JavaClients, KafkaClientError, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "analysis"
# Lines of the Java clients that no analysis uses and that hold long lists of versions and settings.
_BORING = re.compile(r"API_VERSIONS|finalized features|METADATA|cluster metadata|metric|Metric|telemetry|Telemetry")


class JavaFaults:
    """Java clients in one JVM that logs to `clients/client.log`."""

    def __init__(self, folder: Path) -> None:
        self._java = JavaClients(log_file=folder / "client.log", log_level="DEBUG")
        self.transactions: list[JavaProducer] = []

    def producer(self, run: Watched, name: str, timeout_ms: int) -> JavaProducer:
        """Open a transactional producer."""
        return JavaProducer(self._java, run, name, timeout_ms)

    def slow_consumer(self, run: Watched, name: str) -> JavaConsumer:
        """Open a consumer with a short max.poll.interval.ms."""
        return JavaConsumer(self._java, run, name, POLL_INTERVAL_MS, 50)

    def consumer(self, run: Watched, name: str, heartbeat_ms: int) -> JavaConsumer:
        """Open a consumer with this heartbeat interval."""
        return JavaConsumer(self._java, run, name, 60_000, heartbeat_ms)

    def slow_poll(self, run: Watched) -> None:
        """Exceed max.poll.interval.ms once."""
        slow_polls(run, self.slow_consumer, 1)

    def close(self) -> None:
        """End the JVM."""
        self._java.close()


class JavaProducer:
    """Kafka's transactional producer."""

    def __init__(self, java: JavaClients, run: Watched, name: str, timeout_ms: int) -> None:
        self._producer = java.producer(
            run.bootstrap, client_id=name, transactional_id="app-0", transaction_timeout_ms=str(timeout_ms)
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        """Begin a transaction with four records."""
        self._producer.begin()
        self._producer.send([Record("orders", value=b"value", partition=number % 2) for number in range(4)])

    def commit(self) -> str:
        """Commit; return the error, or an empty string."""
        try:
            self._producer.commit()
        except KafkaClientError as error:
            return str(error)
        return ""

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()


class JavaConsumer:
    """Kafka's consumer, classic protocol."""

    def __init__(self, java: JavaClients, run: Watched, name: str, interval_ms: int, heartbeat_ms: int) -> None:
        self._consumer = java.consumer(
            run.bootstrap,
            client_id=name,
            group_id="g",
            group_protocol="classic",
            session_timeout_ms=str(interval_ms),
            max_poll_interval_ms=str(interval_ms),
            heartbeat_interval_ms=str(heartbeat_ms),
        )
        self._consumer.subscribe("orders")

    def poll(self, count: int) -> None:
        """Read so many records."""
        self._consumer.poll(min_records=count)

    def poll_once(self) -> None:
        """Poll for a moment."""
        self._consumer.poll(min_records=0, timeout_ms=50)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


class KgoFaults:
    """franz-go clients, each in a process that logs to `clients/NAME.log`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._program = str(build_program(Path(__file__).resolve().parent / "go_faults"))
        self._clients: list[KgoClient] = []
        self.transactions: list[KgoClient] = []

    def _open(self, run: Watched, **settings: Any) -> KgoClient:
        client = KgoClient(self._program, run, self._folder, settings)
        self._clients.append(client)
        return client

    def producer(self, run: Watched, name: str, timeout_ms: int) -> KgoClient:
        """Open a transactional producer."""
        return self._open(run, client_id=name, transactional_id="app-0", transaction_timeout_ms=timeout_ms)

    def consumer(self, run: Watched, name: str, heartbeat_ms: int, rebalance_ms: int = 60_000) -> KgoClient:
        """Open a consumer that blocks rebalances while it polls."""
        return self._open(
            run,
            client_id=name,
            group="g",
            session_timeout_ms=60_000,
            rebalance_timeout_ms=rebalance_ms,
            heartbeat_interval_ms=heartbeat_ms,
        )

    def slow_poll(self, run: Watched) -> None:
        """Do not come back from a poll before the rebalance timeout, franz-go's counterpart of max.poll.interval.ms."""
        produce(run, 8)
        slow = self.consumer(run, "slow", 100, 1_000)
        slow.poll(8)
        other = self.consumer(run, "other", 100, 1_000)
        run.wait_for("member.left")
        slow.command("allow-rebalance")
        run.wait_for("member.joined", 3)
        other.close()
        slow.close()

    def close(self) -> None:
        """End the processes."""
        for client in self._clients:
            client.close()


class KgoClient:
    """One process of tests/interop/go_faults."""

    def __init__(self, program: str, run: Watched, folder: Path, settings: dict[str, Any]) -> None:
        chosen = json.dumps({"seeds": run.bootstrap, "topic": "orders", **settings})
        with (folder / f"{settings['client_id']}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, chosen], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def command(self, line: str) -> str:
        """Run a command; return its error, or an empty string."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        response = self._process.stdout.readline().strip()
        return "" if response == "ok" else response

    def begin(self) -> None:
        """Begin a transaction with four records."""
        assert not self.command("begin")
        assert not self.command("produce 4")

    def commit(self) -> str:
        """Commit; return the error, or an empty string."""
        return self.command("commit")

    def poll(self, count: int) -> None:
        """Read so many records, and block rebalances until the next poll."""
        assert not self.command(f"poll {count}")

    def poll_once(self) -> None:
        """Allow a rebalance, as a poll without records does."""
        self.command("allow-rebalance")

    def close(self) -> None:
        """Close the client and end its process."""
        if self._process.poll() is None:
            self.command("close")
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()


CLIENTS: dict[str, Callable[[Path], Any]] = {"java": JavaFaults, "kgo": KgoFaults}
SCENARIOS: dict[str, Callable[[Watched, Any], None]] = {
    "late-end": lambda run, clients: late_end(run, clients.producer),
    "fenced": lambda run, clients: fenced(run, clients.producer),
    "slow-poll": lambda run, clients: clients.slow_poll(run),
    "kicked": lambda run, clients: kicked(run, clients.consumer),
    "stuck": lambda run, clients: clients.transactions.append(stuck(run, clients.producer)),
}
NEVER_ABORTED = {"stuck": {name.replace(".", "_"): value for name, value in NEVER.items()}}
"""Scenarios whose transactions stay open: clients, which abort when they are closed, outlive the cluster."""


@contextmanager
def played(client: str, scenario: str, folder: Path) -> Iterator[dict[str, Path]]:
    """Play a scenario with a kind of client; yield its inputs by kind, the clients' logs as `client`."""
    logs = folder / "clients"
    logs.mkdir()
    with ExitStack() as outlive, watch(folder, **NEVER_ABORTED.get(scenario, {})) as run:
        clients = CLIENTS[client](logs)
        with ExitStack() as inside:
            (outlive if scenario in NEVER_ABORTED else inside).callback(clients.close)
            SCENARIOS[scenario](run, clients)
    yield {**run.inputs, "client": logs}


def record(*names: str) -> None:
    """Write the recordings of these clients and scenarios (`kgo/fenced`), or of all."""
    for client in CLIENTS:
        for scenario in SCENARIOS:
            if names and f"{client}/{scenario}" not in names:
                continue
            with tempfile.TemporaryDirectory() as name, played(client, scenario, Path(name)) as inputs:
                target = FIXTURES / client / scenario
                shutil.rmtree(target, ignore_errors=True)
                (target / "clients").mkdir(parents=True)
                shutil.copy(inputs["ottla-events"], target / "events.jsonl")
                shutil.copy(inputs["tap"], target / "capture.jsonl")
                for log in sorted(inputs["client"].iterdir()):
                    lines = [line for line in log.read_text().splitlines(keepends=True) if not _BORING.search(line)]
                    if client == "java":
                        lines = [line for line in lines if re.search(r"\[(Producer|Consumer) |Exception", line)]
                    (target / "clients" / log.name).write_text("".join(lines))
            print(f"recorded {target}", file=sys.stderr)


if __name__ == "__main__":
    record(*sys.argv[1:])
