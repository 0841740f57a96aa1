"""`ottla registry` and `ottla serve --registry` as processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.security.dev_tls import Authority
from ottla.testing import Cluster
from tests.registry.http_client import Http

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 120


class Processes:
    """Processes of the test, ended with it."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ottla", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.end()


def first_line(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    row: dict[str, str] = json.loads(process.stdout.readline())
    return row


def test_registry_serves_any_kafka_and_stops_on_sigterm(processes: Processes) -> None:
    with Cluster() as cluster:
        process = processes.start("registry", "-b", cluster.bootstrap, "--listen", "0", "--json")
        http = Http(first_line(process)["url"])
        assert http.register("a", '"string"').body["id"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def connect(row: dict[str, str], user: str | None = None) -> Http:
    """Return a client of the registry that a broker's first line names."""
    ca = Path(row["ca"]).read_text() if "ca" in row else None
    return Http(row["registry"], user, ca_pem=ca)


@pytest.mark.parametrize("options", [[], ["--dev-tls"]], ids=["plain", "tls"])
def test_broker_serves_a_registry_that_survives_a_kill(
    processes: Processes, tmp_path: object, options: list[str]
) -> None:
    words = ["serve", "-d", f"{tmp_path}/data", "-p", "0", "--registry", "0", "--json", *options]
    process = processes.start(*words)
    assert connect(first_line(process)).register("a", '"string"').body["id"] == 1
    process.kill()
    process.wait(PATIENCE)
    process = processes.start(*words)
    http = connect(first_line(process))
    assert http("GET", "/subjects/a/versions/1").body["id"] == 1
    assert http.register("b", '"int"').body["id"] == 2
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def write_private(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_broker_with_sasl_serves_a_registry_with_users(processes: Processes, tmp_path: Path) -> None:
    properties = write_private(
        tmp_path / "server.properties",
        "listeners=SASL_PLAINTEXT://127.0.0.1:0\nsasl.enabled.mechanisms=PLAIN\n"
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        f"log.dirs={tmp_path}/data\n"
        'listener.name.sasl_plaintext.plain.sasl.jaas.config=PlainLoginModule required user_admin="x";\n',
    )
    users = write_private(tmp_path / "users.toml", '[users]\nalice = "secret"\n')
    assert processes.start("serve", properties, "--registry", "0").wait(PATIENCE) == 2
    process = processes.start("serve", properties, "--registry", "0", "--registry-users", users, "--json")
    row = first_line(process)
    assert connect(row).register("a", '"string"').status == 401
    assert connect(row, "alice:secret").register("a", '"string"').body["id"] == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_registry_command_serves_https_with_users(processes: Processes, tmp_path: Path) -> None:
    authority = Authority()
    server = authority.server()
    certificate = write_private(tmp_path / "server.pem", server.certificate_pem.decode())
    key = write_private(tmp_path / "server.key", server.key_pem.decode())
    users = write_private(tmp_path / "users.toml", '[users]\nalice = "secret"\n')
    with Cluster() as cluster:
        words = ["registry", "-b", cluster.bootstrap, "--listen", "0", "--json", "--users", users]
        process = processes.start(*words, "--tls-certificate", certificate, "--tls-key", key)
        url = first_line(process)["url"]
        ca = authority.certificate_pem.decode()
        assert Http(url, ca_pem=ca)("GET", "/subjects").status == 401
        http = Http(url, "alice:secret", ca_pem=ca)
        assert http.register("a", '"string"').body["id"] == 1
        # A renewed certificate is served without a restart.
        renewed = Authority()
        Path(certificate).write_text(renewed.server().certificate_pem.decode())
        assert http("GET", "/subjects").body == ["a"], "a key that does not fit leaves the old certificate in use"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["registry", "--listen", "x"], 2),
        (["registry", "-b", "127.0.0.1:1", "--timeout", "1", "--listen", "0"], 3),
        (["serve", "--registry", "70000"], 2),
        (["serve", "--registry-users", "x"], 2),
        (["registry", "--listen", "0", "--users", "/no/such/file"], 2),
        (["registry", "--listen", "0", "--tls-key", "x"], 2),
        (["registry", "--listen", "0", "--tls-certificate", "/no/such/file"], 2),
    ],
)
def test_bad_call_ends_with_its_exit_code(processes: Processes, words: list[str], code: int) -> None:
    assert processes.start(*words).wait(PATIENCE) == code
