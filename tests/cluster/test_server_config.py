from __future__ import annotations

import pytest

from ottla.cluster.server_config import Endpoint, ServerConfigError, parse_server_properties, server_config


def test_directories_node_and_listeners_are_read() -> None:
    config = parse_server_properties(
        "node.id=7\nprocess.roles=broker,controller\nlog.dirs=/a, /b\n"
        "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://:9093,inside://[::1]:9094\n"
        "advertised.listeners=PLAINTEXT://example.org:19092,INSIDE://in:1\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,INSIDE:sasl_ssl\n"
        "inter.broker.listener.name=INSIDE\n"
    )
    assert config.node_id == 7
    assert config.values["broker.id"] == "7"
    assert config.log_dirs == ("/a", "/b")
    assert config.metadata_log_dir == "/a"
    assert config.listeners == (
        Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092),
        Endpoint("INSIDE", "SASL_SSL", "::1", 9094),
    )
    assert config.controller_listeners == (Endpoint("CONTROLLER", "PLAINTEXT", None, 9093),)
    assert config.advertised_listeners[0] == Endpoint("PLAINTEXT", "PLAINTEXT", "example.org", 19092)
    assert config.inter_broker_listener == "INSIDE"
    assert config.warnings == []


def test_log_dir_is_used_without_log_dirs() -> None:
    assert server_config({"log.dir": "/only"}).log_dirs == ("/only",)
    assert server_config({"log.dir": "/only", "log.dirs": "/x,/y"}).log_dirs == ("/x", "/y")


def test_broker_id_is_accepted_as_node_id() -> None:
    assert server_config({"broker.id": "3"}).node_id == 3
    with pytest.raises(ServerConfigError, match=r"must be the same as node\.id"):
        server_config({"broker.id": "3", "node.id": "4"})


def test_command_line_overrides_file() -> None:
    config = parse_server_properties("num.partitions=3", overrides={"num.partitions": "5"})
    assert config.value("num.partitions") == 5


def test_unknown_key_is_kept_with_warning() -> None:
    config = parse_server_properties(
        "zookeeper.connect=x\nlistener.name.inside.ssl.client.auth=required", "s.properties"
    )
    assert config.values["zookeeper.connect"] == "x"
    assert config.warnings == [
        "s.properties:1: zookeeper.connect: no broker config has this name; it is kept and not used"
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "log.retention.hours=abc",
            r"f\.properties:2: log.retention.hours: Invalid value abc for configuration log.retention.hours: "
            r"Not a number of type INT \(allowed: a 32-bit integer\)",
        ),
        (
            "log.segment.bytes=14",
            r"f\.properties:2: log.segment.bytes: Invalid value 14 .* at least 1048576 "
            r"\(allowed: a 32-bit integer, \[1048576,...\]\)",
        ),
        ("log.cleanup.policy=shred", r"f\.properties:2: .*String must be one of: compact, delete"),
        ("listeners=PLAINTEXT:9092", r"f\.properties:2: listeners: 'PLAINTEXT:9092' is not NAME://host:port"),
        ("listeners=X://:9092", r"f\.properties:2: listeners: listener.security.protocol.map has no entry for X"),
        ("listeners=SSL://:70000", r"f\.properties:2: listeners: .*ports end at 65535"),
        ("listeners=SSL://a:1,PLAINTEXT://b:1", r"f\.properties:2: listeners: port 1 is there 2 times"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:1", r"f\.properties:2: advertised.listeners: 0.0.0.0 is no address"),
        ("listener.security.protocol.map=A:B", r"f\.properties:2: listener.security.protocol.map: 'A:B' is not"),
        ("log.dirs=/a,/b\ncordoned.log.dirs=/c", r"f\.properties:3: cordoned.log.dirs: .* Missing entries : /c"),
        ("log.retention.ms=0", r"f\.properties:2: log.retention.ms: is 0; it must be at least 1 or"),
        (
            "offsets.topic.compression.codec=9",
            r"offsets.topic.compression.codec: is 9; it must be one of 0 .*, 4 \(zstd\)",
        ),
        ("a=\\u00", r"f\.properties:2: \\u needs four"),
    ],
)
def test_invalid_value_names_file_line_key_and_allowed_values(line: str, message: str) -> None:
    with pytest.raises(ServerConfigError, match=message):
        parse_server_properties(f"# first\n{line}\n", "f.properties")


def test_two_address_families_may_share_a_port() -> None:
    config = server_config({"listeners": "PLAINTEXT://127.0.0.1:9092,SSL://[::1]:9092"})
    assert [listener.port for listener in config.listeners] == [9092, 9092]
