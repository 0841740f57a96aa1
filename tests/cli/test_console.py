"""`ottla console` and `ottla serve --console` as processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import httpx
import pytest
from typer.testing import CliRunner

from ottla.cli import build
from ottla.testing import Cluster

PATIENCE = 120


def started(*words: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    command = [sys.executable, "-m", "ottla", *words, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def test_console_serves_cluster_until_sigterm() -> None:
    with Cluster(topics=["orders"]) as cluster:
        process, row = started("console", "-b", cluster.bootstrap, "--listen", "0")
        try:
            with httpx.Client(follow_redirects=True, timeout=PATIENCE) as browser:
                assert cluster.bootstrap in browser.get(row["url"]).text
                assert "orders" in browser.get(row["url"].partition("?")[0] + "topics").text
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0


def test_console_starts_while_cluster_is_away() -> None:
    process, row = started("console", "-b", "127.0.0.1:1", "--listen", "0", "--no-auth", "--timeout", "1")
    try:
        answer = httpx.get(row["url"], timeout=PATIENCE)
        assert answer.status_code == 503
        assert "The cluster does not answer" in answer.text
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0


def test_serve_with_console_prints_address() -> None:
    words = (
        "serve",
        "-p",
        "0",
        "--seed-topic",
        "orders",
        "--console",
        "0",
        "--registry",
        "0",
        "--dev-tls",
        "-l",
        "error",
    )
    process, row = started(*words)
    try:
        with httpx.Client(follow_redirects=True, timeout=PATIENCE) as browser:
            assert browser.get(row["console"]).status_code == 200
            assert "orders" in browser.get(row["console"].partition("?")[0] + "topics").text
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--listen", "here"], "write a port"),
        (["-b", "host:port"], "is not host:port"),
        (["--user", "ada"], "OTTLA_CONSOLE_PASSWORD"),
        (["--registry", "ftp://x"], "URL of a registry"),
        (["-X", "sasl.password=x"], "every user of this machine"),
    ],
)
def test_wrong_usage_exits_with_2_and_the_reason(words: list[str], problem: str) -> None:
    result = CliRunner().invoke(build(["console"]), ["console", *words])
    assert result.exit_code == 2
    assert problem in result.stderr
