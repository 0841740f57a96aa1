"""`ottla acl`, `ottla user` and `ottla quota` against a secured cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

from ottla.cli import build
from tests.security.clusters import USERS, secured

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("security cli")  # one worker, one cluster


class Commands:
    def __init__(self, bootstrap: str, config: Path) -> None:
        self._app = build(["acl", "user", "quota", "topic"])
        self._where = ["-b", bootstrap, "--command-config", str(config)]

    def run(self, *words: str, text: str | None = None, where: list[str] | None = None) -> Result:
        return CliRunner().invoke(self._app, [*words, *(self._where if where is None else where)], input=text)

    def rows(self, *words: str, text: str | None = None) -> list[dict[str, object]]:
        result = self.run(*words, "--json", text=text)
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory):
    with secured() as cluster:
        yield cluster.bootstrap


@pytest.fixture
def commands(bootstrap: str, tmp_path: Path) -> Commands:
    config = tmp_path / "admin.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config="
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" '
        f'password="{USERS["admin"]}";\n'
    )
    return Commands(bootstrap, config)


def test_acl_commands_add_list_and_remove(commands: Commands) -> None:
    added = commands.rows("acl", "add", "-p", "carol", "-o", "read", "-o", "write", "--topic", "pay-", "--prefixed")
    assert [entry["operation"] for entry in added] == ["read", "write"]
    assert commands.rows("acl", "list", "-p", "carol") == added
    assert commands.rows("acl", "list", "--topic", "pay-", "--prefixed") == added
    shown = commands.run("acl", "remove", "-p", "carol", "-o", "write", "--topic", "pay-", "--prefixed")
    assert "would remove 1 ACL" in shown.output
    assert commands.rows("acl", "list", "-p", "carol") == added
    assert len(commands.rows("acl", "remove", "-p", "carol", "--yes")) == 2
    assert commands.rows("acl", "list", "-p", "carol") == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["-o", "read"], "name one resource"),
        (["-o", "read", "--topic", "t", "--group", "g"], "name one resource"),
        (["-o", "idempotent_write", "--topic", "t"], "a topic has no operation"),
        (["-o", "fly", "--topic", "t"], "a topic has no operation"),
    ],
)
def test_invalid_acl_is_refused_before_it_is_sent(commands: Commands, words: list[str], problem: str) -> None:
    result = commands.run("acl", "add", "-p", "x", *words)
    assert result.exit_code == 2
    assert problem in result.output


def test_user_is_created_authenticates_and_is_deleted(commands: Commands, bootstrap: str, tmp_path: Path) -> None:
    made = commands.run("user", "set", "dora", "-m", "SCRAM-SHA-512", text="dora-secret\n")
    assert made.exit_code == 0, made.output
    assert {"user": "dora", "mechanisms": {"SCRAM-SHA-512": 4096}} in commands.rows("user", "list")
    login = tmp_path / "dora.properties"
    login.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=dora\nsasl.password=dora-secret\n"
    )
    assert Commands(bootstrap, login).run("topic", "list").exit_code == 0
    assert commands.rows("user", "set", "dora", "-m", "SCRAM-SHA-512", text="dora-secret\n") == [
        {"user": "dora", "mechanisms": {"SCRAM-SHA-512": 4096}}
    ]
    assert commands.rows("user", "delete", "dora") == [{"user": "dora", "removed": ["SCRAM-SHA-512"]}]
    refused = Commands(bootstrap, login).run("topic", "list")
    assert refused.exit_code != 0
    assert "SASL_AUTHENTICATION_FAILED" in refused.output
    assert "dora-secret" not in refused.output


def test_quota_commands_set_list_and_remove(commands: Commands) -> None:
    assert commands.run("quota", "set", "-u", "erik", "producer_byte_rate=1e6").exit_code == 0
    assert commands.run("quota", "set", "-u", "<default>", "--client-id", "x", "request_percentage=50").exit_code == 0
    assert commands.rows("quota", "list", "-u", "erik") == [
        {"entity": {"user": "erik"}, "quotas": {"producer_byte_rate": 1e6}}
    ]
    assert len(commands.rows("quota", "list")) == 2
    assert commands.rows("quota", "set", "-u", "erik", "producer_byte_rate=2e6") == [
        {"entity": {"user": "erik"}, "quotas": {"producer_byte_rate": 2e6}}
    ]
    assert commands.rows("quota", "remove", "-u", "erik", "producer_byte_rate") == [
        {"entity": {"user": "erik"}, "removed": ["producer_byte_rate"]}
    ]
    assert commands.rows("quota", "list", "-u", "erik") == []
    assert commands.run("quota", "set", "producer_byte_rate=1").exit_code == 2


def test_password_on_command_line_is_refused(commands: Commands, bootstrap: str) -> None:
    where = ["-b", bootstrap, "-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.password=admin-secret"]
    result = commands.run("topic", "list", where=where)
    assert result.exit_code == 2
    assert "--command-config" in result.output
    assert "admin-secret" not in result.output


def test_password_is_read_from_environment(commands: Commands, bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_SASL_PASSWORD", USERS["admin"])
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "admin"}
    where = ["-b", bootstrap, *(word for pair in options.items() for word in ("-X", "=".join(pair)))]
    result = commands.run("topic", "list", where=where)
    assert result.exit_code == 0, result.output
    assert "orders" in result.output


def test_serve_refuses_secrets_on_command_line() -> None:
    words = ["serve", "-c", "listener.name.x.plain.sasl.jaas.config=Y required user_a=s3cret;"]
    result = CliRunner().invoke(build(["serve"]), words)
    assert result.exit_code == 2
    assert "properties file" in result.output
    assert "s3cret" not in result.output
