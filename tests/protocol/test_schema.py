"""The schema language: messages made from declarations, and imports without compilation."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest

from ottla.protocol.api import APIS, ApiKey, find_api, request_class, response_class
from ottla.protocol.codec.compiled import decoder_source, encoder_source
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.schema import (
    ZERO_UUID,
    Message,
    Struct,
    Uuid,
    array,
    format_versions,
    int32,
    parse_versions,
    string,
    struct,
    uuid,
)


class Inner(Struct):
    number: int = int32(default=7)


class Example(Message, api_key=999, kind="request", versions="1-3", flexible="2+"):
    name: str | None = string(nullable="2+", default=None)
    inner: Inner = struct(Inner, default_factory=Inner)
    inners: list[Inner] = array(Inner, versions="2+", default_factory=list)
    id: Uuid = uuid(versions="3+", tag=0, default=ZERO_UUID)


def test_message_takes_keywords_and_compares_by_value() -> None:
    message = Example(name="x", inners=[Inner(number=1)])
    assert message == Example(name="x", inners=[Inner(number=1)])
    assert message != Example(name="x")
    assert message != "x"
    assert repr(message) == (
        "Example(name='x', inner=Inner(number=7), inners=[Inner(number=1)], id=Uuid.parse('AAAAAAAAAAAAAAAAAAAAAA'))"
    )
    with pytest.raises(TypeError, match="nonsense"):
        Example(nonsense=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        hash(message)


def test_messages_do_not_share_defaults() -> None:
    first, second = Example(), Example()
    assert first.inners is not second.inners
    assert first.inner is not second.inner


def test_unknown_attribute_fails() -> None:
    with pytest.raises(AttributeError):
        Example().other = 1  # type: ignore[attr-defined]


def test_message_can_be_copied_and_pickled() -> None:
    message = FetchRequest(topics=[FetchTopic(topic_id=Uuid(b"x" * 16), partitions=[FetchPartition(partition=3)])])
    for other in (copy.deepcopy(message), pickle.loads(pickle.dumps(message))):
        assert other == message
        assert type(other.topics[0].topic_id) is Uuid


def test_schema_describes_declaration() -> None:
    schema = Example.__schema__
    assert (schema.name, schema.api_key, schema.kind) == ("Example", 999, "request")
    assert list(schema.versions) == [1, 2, 3]
    assert [field.name for field in schema.fields] == ["name", "inner", "inners", "id"]
    assert [field.name for field in schema.fields if field.present(1)] == ["name", "inner"]
    assert 3 not in schema.fields[3].tagged or not schema.fields[3].present(3)


@pytest.mark.parametrize(
    ("text", "first", "last"), [("4-18", 4, 18), ("12+", 12, 32767), ("3", 3, 3), ("0+", 0, 32767)]
)
def test_versions_are_formatted_as_in_kafka(text: str, first: int, last: int) -> None:
    versions = parse_versions(text)
    assert (versions[0], versions[-1]) == (first, last)
    assert format_versions(versions) == text


def test_none_is_an_empty_version_range() -> None:
    assert not parse_versions("none")
    assert format_versions(parse_versions("none")) == "none"


# -- Uuid -----------------------------------------------------------------------------------------------------------


def test_uuid_prints_as_in_kafka() -> None:
    value = Uuid(bytes.fromhex("942ca2f2d3354a55a427b6eb4abf5d7f"))
    assert str(value) == "lCyi8tM1SlWkJ7brSr9dfw"
    assert f"{value}" == str(value)
    assert Uuid.parse(str(value)) == value
    assert {value: 1}[Uuid.parse("lCyi8tM1SlWkJ7brSr9dfw")] == 1
    assert eval(repr(value)) == value
    assert str(ZERO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"


@pytest.mark.parametrize("text", ["", "short", "lCyi8tM1SlWkJ7brSr9dfwAA", "!!!!", "lCyi8tM1SlWkJ7brSr9df", "é"])
def test_malformed_uuid_fails(text: str) -> None:
    with pytest.raises(ValueError, match="not a Uuid"):
        Uuid.parse(text)
    with pytest.raises(ValueError, match="16 bytes"):
        Uuid(b"short")


# -- errors ---------------------------------------------------------------------------------------------------------


def test_error_code_has_retriable_flag() -> None:
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER == 6
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert not ErrorCode.UNSUPPORTED_VERSION.retriable
    assert not ErrorCode.NONE.retriable
    assert min(ErrorCode) == ErrorCode.UNKNOWN_SERVER_ERROR == -1
    assert sorted(ErrorCode) == list(range(-1, max(ErrorCode) + 1))


def test_kafka_error_has_code() -> None:
    error = KafkaError(3, "no such topic")
    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert str(error) == "UNKNOWN_TOPIC_OR_PARTITION (3): no such topic"
    assert str(KafkaError(ErrorCode.NOT_COORDINATOR)) == "NOT_COORDINATOR (16)"
    assert error.retriable
    assert pickle.loads(pickle.dumps(error)).code == 3
    assert str(KafkaError(999)) == "UNKNOWN_SERVER_ERROR (-1): error code 999"


def test_protocol_error_has_position() -> None:
    error = ProtocolError("expected a", message="M", version=3, path="b[0].c", position=9)
    assert str(error) == "M v3, b[0].c at byte 9: expected a"
    assert str(ProtocolError("expected a")) == "expected a"
    assert str(ProtocolError("expected a", position=1)) == "byte 1: expected a"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


# -- the registry ---------------------------------------------------------------------------------------------------


def test_api_is_found_by_key() -> None:
    assert request_class(1) is FetchRequest
    assert response_class(ApiKey.FETCH).__name__ == "FetchResponse"
    assert find_api(4) is None
    with pytest.raises(KeyError):
        request_class(4)
    for api in APIS:
        request, response = request_class(api.key).__schema__, response_class(api.key).__schema__
        assert (request.api_key, request.kind, request.versions) == (api.key, "request", api.versions)
        assert (response.api_key, response.kind, response.versions) == (api.key, "response", api.versions)
        flexible = range(api.first_flexible_version, api.max_version + 1)
        assert [v for v in api.versions if v in request.flexible] == [v for v in api.versions if v in flexible]
        assert [v for v in api.versions if v in response.flexible] == [v for v in api.versions if v in flexible]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_import_loads_and_compiles_no_message() -> None:
    code = """
import sys
from ottla.protocol import ApiKey, request_class
loaded = [name for name in sys.modules if ".messages.k" in name or name.endswith(".codec")]
request = request_class(ApiKey.HEARTBEAT)
loaded += [name for name in sys.modules if name.endswith(".codec")]
print(loaded, bool(request.__schema__.decoders), "__init__" in vars(request))
request().encode(4)
print(list(request.__schema__.encoders), list(request.__schema__.decoders))
"""
    assert run(code) == "[] False False\n[4] []"


def test_generated_source_compiles() -> None:
    compile(decoder_source(FetchRequest, 16), "decoder", "exec")
    compile(encoder_source(FetchRequest, 16), "encoder", "exec")
    assert "U_iiqiqiB" in decoder_source(FetchRequest, 16)  # a partition is read with one call
