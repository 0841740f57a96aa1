"""Protobuf schemas: canonical text, descriptors, differences with Confluent's verdicts, bad input."""

from __future__ import annotations

import base64

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from ottla.schemas.proto_difference import COMPATIBLE, compare
from ottla.schemas.protobuf import ProtobufSchema
from ottla.schemas.schema import InvalidSchemaError

P3 = 'syntax = "proto3";\n'
M = P3 + "message M {{ {} }}"
M2 = 'syntax = "proto2";\nmessage M {{ {} }}'

PAIRS = [
    (M.format("string a = 1;"), M.format("string a = 1;"), []),
    (P3 + "package a;\nmessage M {}", P3 + "package b;\nmessage M {}", ["PACKAGE_CHANGED #/"]),
    (P3 + "message A {} message B {}", P3 + "message A {}", ["MESSAGE_REMOVED #/B"]),
    (P3 + "message A {}", P3 + "message A {} message B {}", ["MESSAGE_ADDED #/B"]),
    (P3 + "message A {} message B {}", P3 + "message B {} message A {}", ["MESSAGE_MOVED #/A", "MESSAGE_MOVED #/B"]),
    (M.format("string a = 1;"), M.format(""), ["FIELD_REMOVED #/M/1"]),
    (M.format(""), M.format("string a = 1;"), ["FIELD_ADDED #/M/1"]),
    (M2.format(""), M2.format("required string a = 1;"), ["REQUIRED_FIELD_ADDED #/M/1"]),
    (M2.format("required string a = 1;"), M2.format(""), ["REQUIRED_FIELD_REMOVED #/M/1"]),
    (M.format("string a = 1;"), M.format("string b = 1;"), ["FIELD_NAME_CHANGED #/M/1"]),
    (M.format("int32 a = 1;"), M.format("int64 a = 1;"), []),
    (M.format("int32 a = 1;"), M.format("sint32 a = 1;"), ["FIELD_SCALAR_KIND_CHANGED #/M/1"]),
    (M.format("string a = 1;"), M.format("bytes a = 1;"), []),
    (M.format("string a = 1;"), M.format("N a = 1; message N {}"), ["FIELD_KIND_CHANGED #/M/1", "MESSAGE_ADDED #/M/N"]),
    (M.format("optional int32 a = 1;"), M.format("repeated int32 a = 1;"), ["FIELD_NUMERIC_LABEL_CHANGED #/M/1"]),
    (
        M.format("optional string a = 1;"),
        M.format("repeated string a = 1;"),
        ["FIELD_STRING_OR_BYTES_LABEL_CHANGED #/M/1"],
    ),
    (
        M.format("N a = 1; message N {} message O {}"),
        M.format("O a = 1; message N {} message O {}"),
        ["FIELD_NAMED_TYPE_CHANGED #/M/1"],
    ),
    (M.format("map<string, int32> a = 1;"), M.format("map<string, int64> a = 1;"), []),
    (
        M.format("map<string, int32> a = 1;"),
        M.format("map<string, string> a = 1;"),
        ["FIELD_SCALAR_KIND_CHANGED #/M/1"],
    ),
    (
        M.format("oneof o { int32 a = 1; }"),
        M.format("oneof o { int32 a = 1; int32 b = 2; }"),
        ["ONEOF_FIELD_ADDED #/M/o/2"],
    ),
    (
        M.format("oneof o { int32 a = 1; int32 b = 2; }"),
        M.format("oneof o { int32 a = 1; }"),
        ["ONEOF_FIELD_REMOVED #/M/o/2"],
    ),
    (M.format("int32 a = 1;"), M.format("oneof o { int32 a = 1; }"), ["ONEOF_ADDED #/M/o"]),
    (
        M.format("int32 a = 1; int32 b = 2;"),
        M.format("oneof o { int32 a = 1; int32 b = 2; }"),
        ["MULTIPLE_FIELDS_MOVED_TO_ONEOF #/M/o", "ONEOF_ADDED #/M/o"],
    ),
    (
        M.format("oneof o { int32 a = 1; }"),
        M.format("int32 a = 1;"),
        ["ONEOF_FIELD_MOVED_TO_TOP_LEVEL #/M/1", "ONEOF_REMOVED #/M/o"],
    ),
    (
        P3 + "enum E { A = 0; B = 1; }",
        P3 + "enum E { A = 0; C = 1; D = 2; }",
        ["ENUM_CONST_ADDED #/E/2", "ENUM_CONST_CHANGED #/E/1"],
    ),
    (P3 + "enum E { A = 0; }", P3, ["ENUM_REMOVED #/E"]),
]


@pytest.mark.parametrize(("old", "new", "expected"), PAIRS, ids=[f"{n:02}" for n in range(len(PAIRS))])
def test_differences_of_two_files(old: str, new: str, expected: list[str]) -> None:
    first, second = ProtobufSchema.parse(old), ProtobufSchema.parse(new)
    result = compare(first.file, first.dependencies, second.file, second.dependencies)
    assert sorted(map(str, result)) == expected
    incompatible = any(difference.split()[0] not in COMPATIBLE for difference in expected)
    assert bool(second.differences(first)) == incompatible


def test_imported_message_is_compared_where_it_is_used() -> None:
    def orders(item: str) -> ProtobufSchema:
        imported = {"item.proto": P3 + "package shop;\nmessage Item { " + item + " sku = 1; }"}
        return ProtobufSchema.parse(P3 + 'import "item.proto";\nmessage Order { shop.Item item = 1; }', imported)

    first, second = orders("int32"), orders("string")
    assert first.differences(first) == []
    assert [message.split('"')[1] for message in second.differences(first)] == [
        "FIELD_SCALAR_KIND_CHANGED",
        "FIELD_NAMED_TYPE_CHANGED",
    ]


CANONICAL = """syntax = "proto3";
package shop;

import "google/protobuf/timestamp.proto";

option java_package = "org.shop";

message Order {
  reserved 4, 6 to 8;
  reserved "old";

  string id = 1;
  repeated Line lines = 2;
  map<string, int64> totals = 3;
  google.protobuf.Timestamp at = 5 [deprecated = true];

  oneof payment {
    string card = 9;
    bool cash = 10;
  }

  message Line {
    int32 count = 1;
  }

  enum State {
    NEW = 0;
    PAID = 1;
  }
}
service Orders {
  rpc Place (Order) returns (stream Order);
}
"""


def test_canonical_text_is_stable() -> None:
    schema = ProtobufSchema.parse(CANONICAL)
    assert schema.canonical() == CANONICAL
    assert ProtobufSchema.parse(CANONICAL.replace("\n", " // x\n").replace("  ", "\t")).canonical() == CANONICAL
    assert schema.message_names() == ["shop.Order", "shop.Order.Line"]


def test_normalized_file_does_not_depend_on_the_order_of_fields() -> None:
    first = ProtobufSchema.parse(M.format("int32 b = 2; int32 a = 1;")).normalized()
    assert first.canonical() == ProtobufSchema.parse(M.format("int32 a = 1; int32 b = 2;")).normalized().canonical()


def test_proto2_features_are_kept() -> None:
    text = 'syntax = "proto2";\n\nmessage M {\n  optional int32 a = 1 [default = -5];\n\n  extensions 100 to max;\n}\n'
    assert ProtobufSchema.parse(text).canonical() == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("message M {", "line 1: expected a name, found 'the end'"),
        (P3 + "mesage M {}", "line 2: unexpected 'mesage'"),
        (P3 + "message M { Missing a = 1; }", "Missing"),
        (P3 + "message M { int32 a = 1; int32 b = 1; }", "."),
        (P3 + "message M { string a = 0; }", "."),
        (P3 + 'import "other.proto";', "other.proto is imported, but it is not among the references"),
        (P3 + 'import "google/protobuf/../../etc/passwd";', "is imported, but it is not among the references"),
        ('edition = "2023";', "unsupported syntax"),
        (P3 + "message M { " * 200 + "}" * 200, "nests deeper"),
        (P3 + "message \x00M {}", "unexpected"),
        (P3 + "// " + "x" * 1_000_001, "larger than"),
    ],
)
def test_bad_file_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchemaError, match=reason):
        ProtobufSchema.parse(text)


def test_serialized_descriptor_is_read_like_its_text() -> None:
    text = CANONICAL.replace("service Orders {\n  rpc Place (Order) returns (stream Order);\n}\n", "")
    schema = ProtobufSchema.parse(text)
    proto = FileDescriptorProto()
    schema.pool.FindFileByName("schema.proto").CopyToProto(proto)
    again = ProtobufSchema.parse(base64.b64encode(proto.SerializeToString()).decode())
    assert again.differences(schema) == schema.differences(again) == []
    assert again.message_names() == schema.message_names()
    assert ".shop.Order.Line lines = 2" in again.canonical()
