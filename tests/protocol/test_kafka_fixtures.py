"""Bytes written by Apache Kafka's classes, decoded to the values of Kafka's JSON converters."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.protocol import api
from ottla.protocol.record_values import decode_metadata_record, encode_metadata_record
from ottla.protocol.schema import Message, Struct, Uuid

if TYPE_CHECKING:
    from collections.abc import Iterator

KAFKA = Path(__file__).resolve().parents[1] / "fixtures" / "kafka" / "4.3.1"

RECORD_MODULES = (
    "consumer_protocol",
    "control",
    "group",
    "metadata",
    "principal",
    "remote_storage",
    "share",
    "storage",
    "transaction",
)


def read_lines(name: str) -> list[dict[str, Any]]:
    data = (KAFKA / name).read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    return [json.loads(line) for line in text.splitlines()]


@cache
def record_class(name: str) -> type[Message]:
    for module in RECORD_MODULES:
        declared = getattr(import_module(f"ottla.protocol.record_schemas.{module}"), name, None)
        if declared is not None:
            cls: type[Message] = declared
            return cls
    raise AssertionError(f"no class for {name}")


def message_class(name: str, key: int) -> type[Message]:
    if name in ("RequestHeaderData", "ResponseHeaderData"):
        header: type[Message] = getattr(import_module("ottla.protocol.messages.header"), name.removesuffix("Data"))
        return header
    return api.request_class(key) if name.endswith("RequestData") else api.response_class(key)


def plain(name: str) -> str:
    return name.replace("_", "").lower()


def differences(value: Any, expected: Any, version: int, path: str) -> Iterator[str]:
    """Yield the paths at which a decoded value differs from Kafka's JSON."""
    if isinstance(value, Struct):
        fields = {plain(field.name): field for field in value.__schema__.fields}
        for key, inner in expected.items():
            if key.endswith("SizeInBytes") and plain(key) not in fields:
                size = len(getattr(value, fields.pop(plain(key.removesuffix("SizeInBytes"))).name))
                if size != inner:
                    yield f"{path}.{key}: {size} is not {inner}"
                continue
            field = fields.pop(plain(key), None)
            if field is None:
                yield f"{path}.{key}: no such field"
                continue
            yield from differences(getattr(value, field.name), inner, version, f"{path}.{key}")
        for field in fields.values():  # what Kafka does not show is at its default
            if getattr(value, field.name) != field.new_default():
                yield f"{path}.{field.name}: Kafka has no such value"
    elif isinstance(value, list):
        if not isinstance(expected, list) or len(value) != len(expected):
            yield f"{path}: {value!r} is not {expected!r}"
            return
        for index, (element, other) in enumerate(zip(value, expected, strict=True)):
            yield from differences(element, other, version, f"{path}[{index}]")
    elif isinstance(value, Uuid):
        if str(value) != expected:
            yield f"{path}: {value} is not {expected}"
    elif isinstance(value, (bytes, memoryview)):
        if bytes(value) != base64.b64decode(expected):
            yield f"{path}: {bytes(value)!r} is not {expected!r}"
    elif value != expected or type(value) is not type(expected):
        yield f"{path}: {value!r} is not {expected!r}"


def check(cls: type[Message], line: dict[str, Any]) -> list[str]:
    data, version = bytes.fromhex(line["hex"]), line["version"]
    where = f"{line['name']} v{version} {line['variant']}"
    message = cls.decode(data, version)
    problems = list(differences(message, line["json"], version, where))
    if message.encode(version) != data:
        problems.append(f"{where}: encodes to other bytes")
    return problems


RECORDS = read_lines("record-schemas.jsonl")
MESSAGES = read_lines("messages.jsonl.gz")


@pytest.mark.parametrize("name", sorted({line["name"] for line in RECORDS}))
def test_stored_records_equal_kafkas_json_and_bytes(name: str) -> None:
    cls = record_class(name)
    lines = [line for line in RECORDS if line["name"] == name]
    assert {line["version"] for line in lines} == set(cls.__schema__.versions)
    assert [problem for line in lines for problem in check(cls, line)] == []


@pytest.mark.parametrize("name", sorted({line["name"] for line in MESSAGES}))
def test_messages_equal_kafkas_json_and_bytes(name: str) -> None:
    lines = [line for line in MESSAGES if line["name"] == name]
    cls = message_class(name, lines[0]["key"])
    assert {line["version"] for line in lines} == set(cls.__schema__.versions)
    assert [problem for line in lines for problem in check(cls, line)] == []


def test_metadata_record_frame_equals_kafkas() -> None:
    framed = [line for line in RECORDS if "framed" in line]
    assert len({line["name"] for line in framed}) == 26
    for line in framed:
        record = decode_metadata_record(bytes.fromhex(line["framed"]))
        assert isinstance(record, Message)
        assert record == record_class(line["name"]).decode(bytes.fromhex(line["hex"]), line["version"])
        assert encode_metadata_record(record, line["version"]).hex() == line["framed"]
