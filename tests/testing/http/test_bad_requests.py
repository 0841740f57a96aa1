"""The control API and malformed requests: each is answered with an error, and other clients are not affected."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.testing.http.test_api import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.testing.http.test_api import Api


@pytest.fixture(scope="module")
def server() -> Iterator[Api]:
    with serving("-p", "0", "--seed-topic", "t:2") as api:
        yield api


def status(api: Api, method: str, path: str, body: bytes | None = None) -> int:
    request = urllib.request.Request(api.url + path, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            json.load(response)
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code if json.load(error)["error"] else 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"topic": NaN}',
        b'{"topic": 7}',
        b'{"topic": null}',
        b'{"topic": "x", "partitions": 1e400}',
        b'{"topic": "x", "partitions": 1.5}',
        b'{"topic": "x", "partitions": true}',
        b'{"topic": "x", "configs": []}',
        b'{"topic": "x", "colour": "red"}',
    ],
    ids=lambda body: repr(body[:40]),
)
def test_malformed_topic_bodies_are_refused(server: Api, body: bytes) -> None:
    assert status(server, "POST", "/topics", body) == 400


@pytest.mark.parametrize(
    "body",
    [
        b'{"topic": "\\ud800"}',
        b'{"topic": "x", "partitions": 100000000000000000000}',
        b'{"topic": "x", "partitions": -3}',
        b'{"topic": "x", "configs": {"retention.ms": "soon"}}',
        b'{"topic": "x", "replication_factor": 9}',
        b'{"topic": "%s"}' % (b"a" * 1_000_000),
    ],
    ids=lambda body: repr(body[:60]),
)
def test_invalid_topics_are_refused(server: Api, body: bytes) -> None:
    assert status(server, "POST", "/topics", body) == 409


@pytest.mark.parametrize(
    "body",
    [
        {"action": "nope"},
        {"action": "error"},
        {"action": "error", "error": "99999"},
        {"action": "answer", "api": "Produce"},
        {"action": "answer", "api": "Produce", "response": {"responses": "x"}},
        {"action": "delay"},
        {"action": "delay", "seconds": -1},
        {"action": "delay", "seconds": 1e300},
        {"action": "cut", "bytes": -1},
        {"action": "corrupt", "positions": ["a"]},
        {"action": "observe", "times": -1},
        {"action": "observe", "partitions": [1]},
        {"action": "observe", "api": ["Fetch"]},
        {"action": "observe", "api": "\u00b2"},
    ],
    ids=str,
)
def test_invalid_rules_are_refused(server: Api, body: dict[str, object]) -> None:
    assert status(server, "POST", "/rules", json.dumps(body).encode()) == 400
    assert server.get("/rules") == []


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/", 404),
        ("GET", "//", 404),
        ("GET", f"/{'a' * 60_000}", 404),
        ("GET", "/topics/%00", 404),
        ("GET", "/topics/%ff%fe", 404),
        ("GET", "/topics/t/x/records", 400),
        ("GET", "/topics/t/-1/records", 404),
        ("GET", "/topics/t/99999999999999999999/records", 404),
        ("GET", "/requests?limit=x", 400),
        ("GET", "/requests?limit=-1", 400),
        ("GET", "/requests?colour=red", 400),
        ("GET", "/requests?api=Nope", 400),
        ("GET", "/events?kind=nope", 400),
        ("GET", "/rules/x", 400),
        ("GET", "/rules/99/wait?seconds=nan", 404),
        ("GET", "/coordinators/zebra/g", 400),
        ("POST", "/nodes/x/stop", 400),
        ("DELETE", "/nodes/1", 400),
        ("PUT", "/topics", 405),
        ("BREW", "/topics", 405),
    ],
)
def test_unknown_paths_and_parameters_are_refused(server: Api, method: str, path: str, expected: int) -> None:
    assert status(server, method, path) == expected


def test_wait_requires_finite_seconds(server: Api) -> None:
    rule = server.post("/rules", action="observe", api="Produce")["rule"]
    for seconds in ("nan", "-1", "1e20", "inf"):
        assert status(server, "GET", f"/rules/{rule}/wait?seconds={seconds}") == 400
    assert status(server, "GET", f"/rules/{rule}/wait?seconds=0") == 408
    server.delete(f"/rules/{rule}")


@pytest.mark.parametrize(
    "data",
    [
        b"GET\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"\0\r\n\r\n",
        b"GET /state HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"GET /state HTTP/1.1\r\nHost: localhost\r\nContent-Length: \xb2\r\n\r\n",
        b"POST /topics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n\r\n",
        b"GET /state HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    ],
    ids=lambda data: repr(data[:50]),
)
def test_malformed_http_is_refused(server: Api, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60) as wire:
        wire.sendall(data)
        assert wire.recv(12) == b"HTTP/1.1 400"
    assert server.get("/state")["topics"] == ["t"]


def test_many_waiting_requests_block_neither_others_nor_shutdown() -> None:
    with serving("-p", "0") as api:
        rule = api.post("/rules", action="observe", api="Produce")["rule"]
        wires = []
        for _ in range(60):
            wire = socket.create_connection(("127.0.0.1", int(api.url.rpartition(":")[2])), timeout=60)
            wire.sendall(f"GET /rules/{rule}/wait?seconds=600 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            wires.append(wire)
        assert api.get("/state")["nodes"]
    for wire in wires:
        wire.close()
