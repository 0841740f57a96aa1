"""Commands never lose data silently: no ignored option, no skipped input, no overwritten file, no hidden damage."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.client.auth import SECURITY_PROPERTIES, security_from_properties
from ottla.testing import Cluster

from .live import run

if TYPE_CHECKING:
    from collections.abc import Iterator

OTTLA = [sys.executable, "-m", "ottla"]
FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose topic `rotten` has three batches, the second with a flipped bit."""
    with Cluster(topics=["rotten"], data_dir=str(tmp_path / "data")) as cluster:
        for value in ("first", "broken", "last"):
            assert run(cluster.bootstrap, "produce", "rotten", "-v", value).code == 0
        (log,) = (tmp_path / "data" / "rotten-0").glob("*.log")
        with log.open("r+b") as file:
            file.seek(log.read_bytes().index(b"broken"))
            file.write(b"BROKEN")
        yield cluster


def test_consume_stops_at_wrong_crc(damaged: Cluster) -> None:
    stopped = run(damaged.bootstrap, "consume", "rotten", "-e")
    assert (stopped.code, stopped.out) == (1, "first\n")
    assert "CORRUPT_MESSAGE (2): rotten-0: the batch at offset 1 has a wrong CRC" in stopped.err
    assert "--no-check-crcs" in stopped.err


def test_consume_prints_wrong_crc_if_checks_are_off(damaged: Cluster) -> None:
    unchecked = run(damaged.bootstrap, "consume", "rotten", "-e", "--no-check-crcs")
    assert (unchecked.code, unchecked.out) == (0, "first\nBROKEN\nlast\n")


def test_consume_names_the_batch_that_cannot_be_decoded(tmp_path: Path) -> None:
    with Cluster(topics=["packed"], data_dir=str(tmp_path)) as cluster:
        assert run(cluster.bootstrap, "produce", "packed", "-v", "x" * 500, "-z", "zstd").code == 0
        (log,) = (tmp_path / "packed-0").glob("*.log")
        with log.open("r+b") as file:
            file.seek(61)  # where the compressed records begin
            file.write(b"\0\0\0\0")
        undecodable = run(cluster.bootstrap, "consume", "packed", "-e", "--no-check-crcs")
    assert (undecodable.code, undecodable.out) == (1, "")
    assert "packed-0: the batch at offset 0 cannot be decoded" in undecodable.err


@pytest.mark.parametrize(
    "words",
    [
        ("consume", "t", "-e"),
        ("produce", "t", "-v", "x"),
        ("topic", "list"),
        ("group", "list"),
        ("acl", "list"),
        ("export", "t", "--to", "/nonexistent"),
    ],
)
def test_unknown_property_is_refused(cluster: Cluster, words: tuple[str, ...]) -> None:
    command = [*words, "-b", cluster.bootstrap]
    for name, hint in (
        ("sasl.mecanism", "did you mean sasl.mechanism?"),
        ("fetch.wait", "usable are client.id, sasl."),
    ):
        done = subprocess.run([*OTTLA, *command, "-X", f"{name}=1"], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert f"-X {name}: this property has no effect here" in done.stderr
        if words[0] != "export":
            assert hint in done.stderr


def test_unknown_property_of_a_file_is_a_warning(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=PLAINTEXT\nlinger.ms=5\n")
    listed = run(cluster.bootstrap, "topic", "list", "--command-config", file)
    assert listed.code == 0
    assert listed.err == f"ottla: warning: {file}: no effect here: linger.ms\n"


def test_client_id_property_reaches_the_broker(cluster: Cluster) -> None:
    assert run(cluster.bootstrap, "topic", "list", "-X", "client.id=shell").code == 0
    assert "shell" in {seen.client_id for seen in cluster.requests("Metadata")}


@pytest.mark.parametrize("name", sorted(SECURITY_PROPERTIES - {"security.protocol"}))
def test_every_listed_security_property_has_an_effect(name: str, tmp_path: Path) -> None:
    """A property is listed only if a wrong value of it is noticed or it changes what is made of the others."""
    base = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"}
    if "oauthbearer" in name:
        base["sasl.mechanism"] = "OAUTHBEARER"
        base["sasl.oauthbearer.token.file"] = "/a"

    def outcome(properties: dict[str, str]) -> object:
        try:
            made = security_from_properties(properties, {})
        except (ValueError, OSError) as error:
            return str(error)
        assert made is not None
        assert made.login is not None
        return [getattr(made.login, field) for field in made.login.__slots__], made.tls

    value = {"sasl.tokenauth": "true", "ssl.endpoint.identification.algorithm": "none"}.get(name, "wrong/value")
    assert outcome({**base, name: value}) != outcome(base)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"key": "a", "vlaue": "b"}', "unknown field 'vlaue'"),
        ('{"key": "a"}', 'no field value; write "value": null'),
        ('{"value": "a", "value_base64": "YQ=="}', "value and value_base64 are both given"),
        ('{"value": "a", "headers": [{"name": "h", "valeu": "1"}]}', "unknown field 'valeu'"),
    ],
)
def test_misspelt_json_field_writes_nothing(cluster: Cluster, line: str, problem: str) -> None:
    run(cluster.bootstrap, "topic", "create", "compacted", "--if-not-exists", "-c", "cleanup.policy=compact", "-p", 1)
    before = len(cluster.records("compacted"))
    refused = run(cluster.bootstrap, "produce", "compacted", "--from-json", stdin=line)
    assert refused.code == 2
    assert problem in refused.err
    assert len(cluster.records("compacted")) == before


def test_bad_record_names_its_number_and_what_was_written(cluster: Cluster) -> None:
    cluster.create_topic("numbered", 1)
    lines = "".join(json.dumps({"value": "x" * 1000}) + "\n" for _ in range(6000)) + '{"value"\n'
    refused = run(cluster.bootstrap, "produce", "numbered", "--from-json", stdin=lines)
    assert refused.code == 2
    assert refused.err.startswith("ottla: record 6001: ")
    assert f"({len(cluster.records('numbered'))} records written before)" in refused.err


@pytest.mark.parametrize(
    "words",
    [
        ("consume", "t", "--json", "-f", "%s"),
        ("consume", "t", "--json", "-Z", "null"),
        ("consume", "t", "--json", "--value-form", "hex"),
        ("consume", "t", "-f", "%s", "-K", ":"),
        ("produce", "t", "--from-json", "-K", ":"),
        ("produce", "t", "--from-json", "-Z"),
        ("produce", "t", "-v", "x", "-D", ";"),
        ("produce", "t", "-v", "x", "--key-form", "hex"),
        ("group", "lag", "g", "--watch", "--fail-above", "1"),
        ("txn", "abort", "t", "0", "--start-offset", "1", "--producer-epoch", "1"),
    ],
)
def test_option_without_effect_is_refused(cluster: Cluster, words: tuple[str, ...]) -> None:
    refused = run(cluster.bootstrap, *words, stdin="")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("ottla: ")


def test_two_starts_of_a_range_are_refused(cluster: Cluster) -> None:
    cluster.create_topic("two-starts", 1)
    refused = run(cluster.bootstrap, "consume", "two-starts", "-e", "-o", "1", "-o", "end")
    assert (refused.code, "one start and one e@TIME" in refused.err) == (2, True)


def test_offset_outside_the_log_is_noted(cluster: Cluster) -> None:
    cluster.create_topic("outside", 1)
    run(cluster.bootstrap, "produce", "outside", "-v", "x")
    noted = run(cluster.bootstrap, "consume", "outside", "-e", "-o", "9")
    assert (noted.code, noted.out) == (0, "")
    assert noted.err == "ottla: warning: outside-0 has offsets 0 to 0; starting at 1\n"


def test_log_dirs_of_a_missing_topic_is_an_error(cluster: Cluster) -> None:
    assert run(cluster.bootstrap, "cluster", "log-dirs", "--topic", "no-such-topic").code == 4


def test_quota_that_does_not_exist_is_not_removed(cluster: Cluster) -> None:
    refused = run(cluster.bootstrap, "quota", "remove", "--user", "alice", "producer_byte_rate")
    assert (refused.code, "has no quota producer_byte_rate" in refused.err) == (2, True)


@pytest.mark.parametrize("words", [("topic", "delete", "kept"), ("topic", "trim", "kept")])
def test_deletion_needs_confirmation(cluster: Cluster, words: tuple[str, ...]) -> None:
    run(cluster.bootstrap, "topic", "create", "kept", "--if-not-exists", "-p", 1)
    run(cluster.bootstrap, "produce", "kept", "-v", "x")
    refused = run(cluster.bootstrap, *words, stdin="")
    assert refused.code == 2
    assert "Add --yes" in refused.err
    assert cluster.records("kept")


def tap(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*OTTLA, "tap", *words], capture_output=True, text=True, check=False, timeout=120)


def test_tap_that_cannot_listen_keeps_the_capture(tmp_path: Path) -> None:
    capture = tmp_path / "capture.jsonl"
    capture.write_text("precious\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = tap(port, "127.0.0.1:1", "-o", str(capture), "--overwrite")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert capture.read_text() == "precious\n"


def test_tap_refuses_to_overwrite_a_capture(tmp_path: Path) -> None:
    capture = tmp_path / "capture.jsonl"
    capture.write_text("precious\n")
    done = tap("0", "127.0.0.1:1", "-o", str(capture))
    assert done.returncode == 2
    assert f"{capture} exists; choose another file, or add --overwrite" in done.stderr
    assert capture.read_text() == "precious\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--max-bytes", "10"),
        ("--overwrite",),
        ("-q", "--brief"),
        ("--brief", "--hexdump"),
        ("-X", "sasl.mechanism=PLAIN"),
    ],
)
def test_tap_refuses_option_without_effect(words: tuple[str, ...]) -> None:
    assert tap("0", "127.0.0.1:1", *words).returncode == 2


def close_after_first_line(*command: str, stdin: str = "") -> tuple[int, str]:
    """Run a command whose reader closes the pipe after one line; return exit code and standard error."""
    process = subprocess.Popen(
        [*OTTLA, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(stdin)
    process.stdin.close()
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    return process.wait(120), errors


def test_closed_pipe_is_no_error(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("long", 1)
    lines = "".join(f"{number} {'x' * 100}\n" for number in range(20_000))
    assert run(cluster.bootstrap, "produce", "long", stdin=lines).code == 0
    frame = (
        "00 00 00 23 00 12 00 04 25 ed c0 ae 00 09 6b 61 66 6b 61 2d 63 6c 69 "
        "00 0a 6b 61 66 6b 61 2d 63 6c 69 04 30 2e 31 00\n"
    )
    for command, stdin in (
        (("consume", "long", "-e", "-b", cluster.bootstrap), ""),
        (("consume", "long", "--json", "-b", cluster.bootstrap), ""),  # without -e it would wait for more
        (("decode",), frame * 500),
        (("decode", "--json"), frame * 500),
        (("config", "describe", "broker", "1", "--all", "--documentation", "--json", "-b", cluster.bootstrap), ""),
    ):
        assert close_after_first_line(*command, stdin=stdin) == (0, ""), command


def run_with_closed_pipe(*command: str) -> tuple[int, str]:
    """Run a command whose standard output nobody reads; return exit code and standard error."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*OTTLA, *command], stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=120
        )
    finally:
        os.close(writing)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("analyze", "rebalances", str(FIXTURES / "analysis" / "kgo.log")),
        ("analyze", "rebalances", str(FIXTURES / "analysis" / "kgo.log"), "--json"),
        ("log", "verify", str(FIXTURES / "kafka" / "4.3.1" / "data")),
        ("log", "ls", str(FIXTURES / "kafka" / "4.3.1" / "data"), "--internal"),
        ("log", "dump", str(FIXTURES / "kafka" / "4.3.1" / "data" / "orders-0"), "--records"),
        ("--help",),
        ("--version",),
    ],
)
def test_closed_pipe_keeps_the_exit_code(command: tuple[str, ...]) -> None:
    expected = subprocess.run([*OTTLA, *command], capture_output=True, check=False, timeout=120)
    code, errors = run_with_closed_pipe(*command)
    assert code == expected.returncode
    assert "Traceback" not in errors
    assert "Broken" not in errors


def test_lag_of_every_group(cluster: Cluster) -> None:
    cluster.create_topic("everyone", 2)
    run(cluster.bootstrap, "produce", "everyone", "-v", "a", "-v", "b", "-p", 1)
    for group in ("one", "two"):
        run(cluster.bootstrap, "group", "reset-offsets", group, "-t", "everyone", "--to-earliest", "--execute")
    lags = {row["group"]: row["lag"] for row in run(cluster.bootstrap, "group", "lag", "--json").rows}
    assert (lags["one"], lags["two"]) == (2, 2)
    assert run(cluster.bootstrap, "group", "lag", "--fail-above", 1).code == 5


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_interrupted_command_exits_with_130(cluster: Cluster) -> None:
    command = [*OTTLA, "group", "lag", "--watch", "--every", "600", "--json", "-b", cluster.bootstrap]
    run(cluster.bootstrap, "topic", "create", "watched", "--if-not-exists", "-p", 1)
    run(cluster.bootstrap, "group", "reset-offsets", "watcher", "-t", "watched", "--to-earliest", "--execute")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "")
