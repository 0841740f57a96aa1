"""Config values are parsed and refused as by Kafka's ConfigDef; Kafka 4.3.1 printed the expected texts."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cluster.configs import BROKER, BY_RESOURCE, GROUP, TOPIC, Value, to_text
from ottla.cluster.configs.values import ConfigType, java_double, parse_text
from ottla.protocol.errors import ErrorCode, KafkaError


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("min.cleanable.dirty.ratio", "1e-5", 1e-5),
        ("min.cleanable.dirty.ratio", "0x1p-1", 0.5),
        ("cleanup.policy", "", ()),
        ("cleanup.policy", "delete , compact", ("delete", "compact")),
        ("cleanup.policy", "delete,delete", ("delete",)),
        ("preallocate", " TRUE ", True),
        ("retention.ms", " +7 ", 7),
        ("leader.replication.throttled.replicas", "*", ("*",)),
        ("leader.replication.throttled.replicas", "0:1, 2:3", ("0:1", "2:3")),
    ],
)
def test_valid_value_is_parsed(name: str, text: str, expected: Value) -> None:
    assert TOPIC[name].parse(text) == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "compression.gzip.level",
            "0",
            "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
        ),
        (
            "min.cleanable.dirty.ratio",
            "2",
            "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        ("cleanup.policy", "delete,,compact", "Configuration 'cleanup.policy' values must not be empty."),
        (
            "cleanup.policy",
            "foo",
            "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        (
            "retention.ms",
            "9223372036854775808",
            "Invalid value 9223372036854775808 for configuration retention.ms: Not a number of type LONG",
        ),
        ("retention.ms", "1_0", "Invalid value 1_0 for configuration retention.ms: Not a number of type LONG"),
        (
            "preallocate",
            "1",
            "Invalid value 1 for configuration preallocate: Expected value to be either true or false",
        ),
        (
            "leader.replication.throttled.replicas",
            "*,x",
            "Invalid value [*, x] for configuration leader.replication.throttled.replicas: "
            "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following "
            "format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
        ),
        (
            "compression.type",
            "ZSTD",
            "Invalid value ZSTD for configuration compression.type: String must be one of: uncompressed, zstd, lz4, "
            "snappy, gzip, producer",
        ),
        (
            "max.message.bytes",
            "-1",
            "Invalid value -1 for configuration max.message.bytes: Value must be at least 0",
        ),
    ],
)
def test_invalid_value_fails_with_kafkas_message(name: str, text: str, message: str) -> None:
    with pytest.raises(KafkaError) as caught:
        TOPIC[name].parse(text)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert caught.value.message == message


@pytest.mark.parametrize("text", ["by_duration:PT1H", "by_duration:P1DT2H3M4.5S", "earliest", "latest"])
def test_share_offset_reset_accepts_duration(text: str) -> None:
    assert GROUP["share.auto.offset.reset"].parse(text) == text


@pytest.mark.parametrize(
    "text", ["foo", "by_duration:-PT1H", "by_duration:x", "EARLIEST", "by_duration:", "by_duration:P"]
)
def test_invalid_share_offset_reset_fails(text: str) -> None:
    with pytest.raises(KafkaError, match="must be either 'earliest', 'latest' or of the format"):
        GROUP["share.auto.offset.reset"].parse(text)


def test_quorum_voters_have_id_and_address() -> None:
    voters = BROKER["controller.quorum.voters"]
    assert voters.parse("1@localhost:9093,2@[::1]:9094") == ("1@localhost:9093", "2@[::1]:9094")
    for bad in ("localhost:9093", "x@a:1", "1@a"):
        with pytest.raises(KafkaError):
            voters.parse(bad)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e7, "1.0E7"),
        (1e-3, "0.001"),
        (123456789.125, "1.23456789125E8"),
        (0.0001, "1.0E-4"),
        (1e21, "1.0E21"),
        (-2.5e-7, "-2.5E-7"),
        (100.0, "100.0"),
        (9999999.0, "9999999.0"),
        (12345678.0, "1.2345678E7"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (0.0, "0.0"),
        (float("inf"), "Infinity"),
        (float("nan"), "NaN"),
    ],
)
def test_double_prints_as_in_java(number: float, text: str) -> None:
    assert java_double(number) == text


@given(st.floats(allow_nan=False))
def test_printed_double_round_trips(number: float) -> None:
    assert parse_text("x", java_double(number), ConfigType.DOUBLE) == number


@pytest.mark.parametrize(
    ("resource", "name"), [(resource, name) for resource, keys in BY_RESOURCE.items() for name in keys]
)
def test_every_default_is_valid(resource: int, name: str) -> None:
    key = BY_RESOURCE[resource][name]  # type: ignore[index]
    text = to_text(key.default_value())
    if text is not None:
        assert key.parse(text) == key.default_value()


@given(st.text(max_size=20))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for name in ("cleanup.policy", "retention.ms", "min.cleanable.dirty.ratio", "preallocate"):
        with contextlib.suppress(KafkaError):
            assert to_text(TOPIC[name].parse(text)) is not None
