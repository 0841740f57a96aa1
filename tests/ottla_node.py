"""`ottla serve` as a process, with the operations of `ApacheKafka`."""

from __future__ import annotations

import json
import re
import select
import subprocess
import sys
from typing import TYPE_CHECKING

from ottla.protocol.inspect.secrets import is_secret_config
from tests.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class OttlaDiedError(AssertionError):
    """ottla ended or was not ready in time; the text holds the end of its log."""


class OttlaNode:
    """An ottla process on a log directory, which it or Apache Kafka has written.

    With `nodes` above 1 the process runs that many nodes, with directories `node-1`, `node-2` and so on.
    """

    def __init__(
        self,
        log_dir: Path,
        *,
        settings: Mapping[str, str] | None = None,
        node_id: int = 1,
        nodes: int = 1,
        port: int = 0,
        sync: bool = False,
        log_level: str = "info",
        work_dir: Path | None = None,
    ) -> None:
        self.log_dir = log_dir
        self.work_dir = work_dir or log_dir.parent / f"{log_dir.name}.ottla"
        self.work_dir.mkdir(parents=True, exist_ok=True)
        self.log_file = self.work_dir / "ottla.log"
        self.bootstrap = ""
        self.cluster_id = ""
        self._ports = [port] if port else free_ports(nodes)
        self._settings = {**({"node.id": str(node_id)} if nodes == 1 else {}), **(settings or {})}
        self._sync = sync
        self._log_level = log_level
        self._process: subprocess.Popen[bytes] | None = None
        self._run_starts_at = 0

    @property
    def sasl_bootstrap(self) -> str:
        """The address of the SASL_PLAINTEXT listener, if the node was made with one."""
        raise AssertionError("this node has no SASL listener")

    @property
    def port(self) -> int:
        """The port of the first node."""
        return self._ports[0]

    @property
    def pid(self) -> int:
        """The process id of the running node."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        process = self._process  # another thread may be killing it
        return process is not None and process.poll() is None

    def start(self, *, timeout: float = 600) -> OttlaNode:
        """Start it and wait until it says where it listens."""
        assert not self.running, "already running"
        command = [sys.executable, "-m", "ottla", "serve", "--data-dir", str(self.log_dir)]
        command += ["--json", "--log-level", self._log_level, *(["--sync"] if self._sync else [])]
        if any(is_secret_config(key) for key in self._settings):
            # Secrets are taken from files only.
            config = self.work_dir / "server.properties"
            settings = {"listeners": f"PLAINTEXT://127.0.0.1:{self.port}", **self._settings}
            config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            command.append(str(config))
        else:
            command += ["--ports", ",".join(map(str, self._ports))]
            for key, value in self._settings.items():
                command += ["--config", f"{key}={value}"]
        self._run_starts_at = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=self.work_dir)
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            self.kill()
            raise OttlaDiedError(f"ottla on {self.log_dir} did not start; its log ends with\n{self.log_tail()}")
        where = json.loads(line)
        self.bootstrap, self.cluster_id = where["bootstrap"], where["cluster_id"]
        self._ports = [int(address.rpartition(":")[2]) for address in self.bootstrap.split(",")]
        return self

    def stop(self, *, timeout: float = 600) -> None:
        """Shut down cleanly (SIGTERM) and wait for the end."""
        if self._process is None:
            return
        code = self._process.poll()
        if code is None:
            self._process.terminate()
            code = self._process.wait(timeout)
        self._finish()
        if code != 0:
            raise OttlaDiedError(f"ottla on {self.log_dir} ended with code {code}\n{self.log_tail()}")

    def kill(self) -> None:
        """End the process as a crash would (SIGKILL)."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._finish()

    def _finish(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def restart(self) -> OttlaNode:
        """Stop cleanly if it runs and start again on the same directory and port."""
        self.stop()
        return self.start()

    def __enter__(self) -> OttlaNode:
        return self if self.running else self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def log_text(self) -> str:
        """Return what the node logged since its last start."""
        if not self.log_file.exists():
            return ""
        return self.log_file.read_bytes()[self._run_starts_at :].decode(errors="replace")

    def log_tail(self, lines: int = 60) -> str:
        """Return the end of the log of the last start."""
        return "\n".join(self.log_text().splitlines()[-lines:])

    def complaints(self, *, ignore: Sequence[str] = ()) -> list[str]:
        """Return the warnings and errors of the last start, without those that match `ignore`."""
        quiet = [re.compile(entry) for entry in ignore]
        return [
            line
            for line in self.log_text().splitlines()
            if re.search(r"\b(WARNING|ERROR|CRITICAL|Traceback)\b", line)
            and not any(entry.search(line) for entry in quiet)
        ]
