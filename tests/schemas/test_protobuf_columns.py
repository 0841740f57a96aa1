"""Protobuf into columns: both forms of the kernel, with google.protobuf as the oracle, and unusual bytes."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory

from ottla.schemas import kernel
from ottla.schemas.column_types import NoColumnsError, make_column
from ottla.schemas.protobuf import ProtobufSchema
from ottla.schemas.protobuf_columns import column_type, compile_message, converter, find_message
from ottla.spark.values.arrow import arrow_type, take_array

FORMS = {"compiled": kernel.compiled(), "uncompiled": kernel.uncompiled()}
PROTO = """syntax = "proto3";
message Order {
  double a = 1; float b = 2; int64 c = 3; uint64 d = 4; int32 e = 5; fixed64 f = 6; fixed32 g = 7; bool h = 8;
  string i = 9; bytes j = 10; uint32 k = 11; sfixed32 l = 12; sfixed64 m = 13; sint32 n = 14; sint64 o = 15;
  enum Status { NEW = 0; PAID = 1; LOST = -1; }
  Status p = 16;
  message Line { string sku = 1; optional int32 count = 2; repeated double prices = 3; }
  Line q = 17;
  repeated Line r = 18;
  repeated int32 s = 19; repeated sint64 t = 20; repeated string u = 21; repeated Status v = 22; repeated bool w = 23;
  optional int32 x = 200; optional string y = 201; optional Status z = 202;
  oneof either { int32 one = 300; string two = 301; }
}"""


def filled(message: Any, chance: random.Random, depth: int = 0) -> Any:
    """Fill some fields of a message with random values."""
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.3:
            continue
        count = chance.randint(0, 3) if field.is_repeated else 1
        for _ in range(count):
            if field.message_type is not None:
                inner = getattr(message, field.name)
                filled(inner.add() if field.is_repeated else inner, chance, depth + 1)
                if not field.is_repeated:
                    inner.SetInParent()
                continue
            value = scalar(field, chance)
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
    return message


def scalar(field: Any, chance: random.Random) -> Any:
    bits = chance.choice([1, 7, 8, 31, 32, 63, 64])
    number = chance.getrandbits(bits)
    match field.cpp_type:
        case field.CPPTYPE_INT32:
            return (number & 0xFFFFFFFF) - (1 << 31)
        case field.CPPTYPE_INT64:
            return number - (1 << 63)
        case field.CPPTYPE_UINT32:
            return number & 0xFFFFFFFF
        case field.CPPTYPE_UINT64:
            return number
        case field.CPPTYPE_DOUBLE | field.CPPTYPE_FLOAT:
            return chance.randint(-1000, 1000) / 8
        case field.CPPTYPE_BOOL:
            return chance.random() < 0.5
        case field.CPPTYPE_ENUM:
            return chance.choice([0, 1, -1])
    text = "grün" * chance.randint(0, 40)
    return text.encode() if field.type == field.TYPE_BYTES else text


class Decoding:
    def __init__(self, form: str, proto: str = PROTO) -> None:
        self.kernel = FORMS[form]
        schema = ProtobufSchema.parse(proto)
        self.descriptor = find_message(schema, None)
        self.message = message_factory.GetMessageClass(self.descriptor)
        self.type = column_type(schema)
        self.column = make_column(self.type, self.kernel)
        self.step = compile_message(self.descriptor, self.column, self.kernel)

    def read(self, *values: bytes) -> list[Any] | None:
        """Return the messages, or None if one of them is unusual."""
        _, offsets, data = pa.array([b"frame" + value for value in values], pa.binary()).buffers()
        self.column.truncate(0)
        if not self.kernel.MessageRows(data, offsets, 0, len(values)).decode(self.step, b"frame"):
            return None
        array = take_array(self.column, self.type)
        array.validate(full=True)
        rows: list[Any] = array.to_pylist()
        return rows

    def expected(self, *values: bytes) -> list[Any]:
        convert = converter(self.descriptor)
        messages = [self.message.FromString(value) for value in values]
        rows: list[Any] = pa.array([convert(message) for message in messages], arrow_type(self.type)).to_pylist()
        return rows


@pytest.fixture(params=list(FORMS))
def decoding(request: pytest.FixtureRequest) -> Decoding:
    return Decoding(request.param)


def test_messages_equal_those_of_google_protobuf(decoding: Decoding) -> None:
    chance = random.Random(3)
    values = [filled(decoding.message(), chance).SerializeToString() for _ in range(60)]
    for _ in range(2):
        assert decoding.read(*values, b"") == decoding.expected(*values, b"")


def test_unknown_fields_order_and_packing_do_not_matter(decoding: Decoding) -> None:
    parts = [b"\x48\x05", b"\x2a\x02\x01\x02"]  # a field of another type is unusual
    assert decoding.read(parts[0]) is None
    unknown = b"\xf8\x3f\x05" + b"\xfa\x3f\x02ab" + b"\xf9\x3f12345678" + b"\xfd\x3f1234"
    unpacked = b"\x98\x01\x07" + b"\x9a\x01\x02\x08\x09" + b"\x98\x01\x0a"
    value = unpacked + unknown + b"\x28\x05" + b"\x28\x06" + b"\x18\x01"
    assert decoding.read(value) == decoding.expected(value)


def test_unusual_messages_are_left_to_google_protobuf(decoding: Decoding) -> None:
    line = b"\x8a\x01\x03\x0a\x01x"
    unusual = [
        line + line,
        b"\x80\x01\x09",
        b"\x0b\x0c",
        b"\x00",
        b"\x28",
        b"\x28" + b"\xff" * 10 + b"\x01",
        b"\x4a\x7f",
    ]
    for value in unusual:
        assert decoding.read(b"\x28\x05", value) is None
    assert decoding.read(b"\x28\x05") == decoding.expected(b"\x28\x05")


def test_damaged_messages_are_refused_or_read_alike(decoding: Decoding) -> None:
    from google.protobuf.message import DecodeError

    chance = random.Random(11)
    good = filled(decoding.message(), chance).SerializeToString()
    for _ in range(300 if decoding.kernel is FORMS["compiled"] else 60):
        damaged = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        value = bytes(damaged[: chance.randint(0, len(damaged))])
        rows = decoding.read(value)
        with contextlib.suppress(DecodeError):  # google.protobuf refuses text that is no UTF-8; the caller checks that
            assert rows is None or repr(rows) == repr(decoding.expected(value))


def test_types_that_need_google_protobuf_are_not_compiled() -> None:
    proto = (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message O { google.protobuf.Timestamp at = 1; }'
    )
    assert Decoding("compiled", proto).step is None
    assert Decoding("compiled", 'syntax = "proto3"; message O { map<string, int32> m = 1; }').step is None


def test_recursive_message_is_refused() -> None:
    with pytest.raises(NoColumnsError, match="the message Node contains itself"):
        column_type(ProtobufSchema.parse('syntax = "proto3"; message Node { Node next = 1; }'))
    with pytest.raises(NoColumnsError, match="no message Other; it has Node"):
        column_type(ProtobufSchema.parse('syntax = "proto3"; message Node { int32 a = 1; }'), "Other")
