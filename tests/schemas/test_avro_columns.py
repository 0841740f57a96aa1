"""Avro into columns: both forms of the kernel, with fastavro as the oracle, and hostile bytes."""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.schemas import kernel
from ottla.schemas.avro import AvroSchema
from ottla.schemas.avro_columns import AvroDecoder, UnresolvableError, added_fields, column_type
from ottla.schemas.column_types import NoColumnsError, make_column
from ottla.spark.values.arrow import take_array

FORMS = {"compiled": kernel.compiled(), "uncompiled": kernel.uncompiled()}


def schema_of(tree: Any) -> AvroSchema:
    return AvroSchema.parse(json.dumps(tree))


def record(*fields: Any, name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [dict(zip(("name", "type", "default"), f)) for f in fields]}  # noqa: B905


def encode(tree: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(json.dumps(tree))), value)
    return stream.getvalue()


class Decoding:
    """Decodes values of one writer with one form of the kernel."""

    def __init__(self, form: str, writer: Any, reader: Any = None) -> None:
        self.kernel = FORMS[form]
        reader_schema = schema_of(writer if reader is None else reader)
        self.type = column_type(reader_schema)
        self.column = make_column(self.type, self.kernel)
        self.decoder = AvroDecoder(schema_of(writer), reader_schema, self.column, kernel=self.kernel)

    def read(self, *values: bytes | None) -> tuple[list[Any], list[str]]:
        """Return the rows, null where a value is damaged, and the reasons."""
        framed = pa.array([None if value is None else b"\0\0\0\0\7" + value for value in values], pa.binary())
        validity, offsets, data = framed.buffers()
        rows = self.kernel.FramedRows(data or b"", offsets, validity, 0, len(framed))
        reasons = []
        while rows.decode(self.decoder.step, self.column, 7) != self.kernel.DONE:
            reasons.append(self.decoder.explain(rows.error))
            rows.skip(self.column)
        array = take_array(self.column, self.type)
        array.validate(full=True)
        return array.to_pylist(maps_as_pydicts="strict"), reasons


@pytest.fixture(params=list(FORMS))
def form(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


DOUBLES = {"type": "array", "items": "double"}
ALL = record(
    ("nothing", "null"),
    ("flag", "boolean"),
    ("small", "int"),
    ("large", "long"),
    ("single", "float"),
    ("real", "double"),
    ("raw", "bytes"),
    ("text", "string"),
    ("day", {"type": "int", "logicalType": "date"}),
    ("millis", {"type": "long", "logicalType": "timestamp-millis"}),
    ("micros", {"type": "long", "logicalType": "timestamp-micros"}),
    ("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
    ("money", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}),
    ("fixed_money", {"type": "fixed", "name": "M", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 3}),
    ("digest", {"type": "fixed", "name": "D", "size": 4}),
    ("uuid", {"type": "string", "logicalType": "uuid"}),
    ("status", {"type": "enum", "name": "S", "symbols": ["NEW", "PAID"]}),
    ("maybe", ["null", "string"]),
    ("maybe_last", ["long", "null"]),
    ("either", ["null", "long", "string", "D"]),
    ("number", ["int", "long"]),
    ("items", {"type": "array", "items": record(("sku", "string"), ("prices", DOUBLES), name="I")}),
    ("attributes", {"type": "map", "values": ["null", "int"]}),
)  # fmt: skip


def full_row(number: int) -> dict[str, Any]:
    return {
        "nothing": None,
        "flag": number % 2 == 0,
        "small": -number,
        "large": number << 40,
        "single": number / 4,
        "real": number / 3,
        "raw": bytes([number % 256]) * (number % 5),
        "text": f"grün {number}",
        "day": date(2026, 1, 1 + number % 28),
        "millis": datetime(2026, 1, 1, microsecond=5000 * (number % 100), tzinfo=UTC),
        "micros": datetime(1969, 1, 1, microsecond=number, tzinfo=UTC),
        "local": datetime(2026, 1, 1, microsecond=number),
        "money": Decimal(number - 5) / 100,
        "fixed_money": Decimal(10**30 + number) / 1000 * (-1) ** number,
        "digest": b"abcd",
        "uuid": "0b94a2e6-9a3c-4b4e-9a3c-0b94a2e69a3c",
        "status": "PAID" if number % 3 else "NEW",
        "maybe": None if number % 2 else "x",
        "maybe_last": None if number % 3 else number,
        "either": [None, number, "text", b"wxyz"][number % 4],
        "number": number,
        "items": [{"sku": f"s{i}", "prices": [i / 2] * i} for i in range(number % 4)],
        "attributes": {f"k{i}": None if i % 2 else i for i in range(number % 4)},
    }


def as_column(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as the column has it: a union of several types is a struct of members."""
    value = row["either"]
    members = {
        "member0": value if isinstance(value, int) else None,
        "member1": value if isinstance(value, str) else None,
        "member2": value if isinstance(value, bytes) else None,
    }
    return {**row, "uuid": str(row["uuid"]), "either": None if value is None else members}


def test_every_type_is_decoded(form: str) -> None:
    rows = [full_row(number) for number in range(50)]
    decoding = Decoding(form, ALL)
    for _ in range(2):  # the buffers are taken and used again
        values, reasons = decoding.read(*[encode(ALL, row) for row in rows], None)
        assert values == [*map(as_column, rows), None]
        assert reasons == []


def test_column_types_follow_spark() -> None:
    assert str(column_type(schema_of(ALL))) == (
        "struct<nothing: void, flag: boolean, small: int, large: bigint, single: float, real: double, raw: binary, "
        "text: string, day: date, millis: timestamp, micros: timestamp, local: timestamp_ntz, money: decimal(12,2), "
        "fixed_money: decimal(38,3), digest: binary, uuid: string, status: string, maybe: string, maybe_last: bigint, "
        "either: struct<member0: bigint, member1: string, member2: binary>, number: bigint, "
        "items: array<struct<sku: string, prices: array<double>>>, attributes: map<string, int>>"
    )


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        ("int", "long", 5, 5),
        ("int", "float", 5, 5.0),
        ("int", "double", -5, -5.0),
        ("long", "float", 1 << 24, float(1 << 24)),
        ("long", "double", 1 << 40, float(1 << 40)),
        ("float", "double", 0.5, 0.5),
        ("string", "bytes", "ab", b"ab"),
        ("bytes", "string", b"ab", "ab"),
        ("int", ["null", "long"], 5, 5),
        (["null", "int"], ["null", "long"], None, None),
        (["null", "int"], ["null", "long"], 7, 7),
        (["int", "null"], "long", 7, 7),
        (["string", "int"], ["null", "int", "string"], "x", {"member0": None, "member1": "x"}),
        ({"type": "array", "items": "int"}, {"type": "array", "items": ["null", "double"]}, [1], [1.0]),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, {"a": 1}, {"a": 1}),
        (record(("a", "int"), ("b", "string")), record(("b", "string")), {"a": 1, "b": "x"}, {"b": "x"}),
        (record(("a", "int")), record(("b", ["null", "int"], None), ("a", "long")), {"a": 1}, {"b": None, "a": 1}),
        (record(("a", "int")), record(("a", "int"), ("b", ["string", "null"], "x")), {"a": 1}, {"a": 1, "b": "x"}),
        (
            record(("a", "int")),
            record(("a", "int"), ("l", DOUBLES, [1, 2]), ("m", {"type": "map", "values": "string"}, {"k": "v"})),
            {"a": 1},
            {"a": 1, "l": [1, 2], "m": {"k": "v"}},
        ),
        (
            record(("a", "int")),
            record(("a", "int"), ("r", record(("x", "bytes", "\xff"), name="R"), {})),
            {"a": 1},
            {"a": 1, "r": {"x": b"\xff"}},
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            {"type": "enum", "name": "E", "symbols": ["A", "Z"], "default": "Z"},
            "B",
            "Z",
        ),
        (
            {"type": "record", "name": "Order", "fields": [{"name": "old", "type": "int"}]},
            {"type": "record", "name": "Order", "fields": [{"name": "new", "type": "int", "aliases": ["old"]}]},
            {"old": 4},
            {"new": 4},
        ),
    ],
)  # fmt: skip
def test_writer_is_resolved_to_reader(form: str, writer: Any, reader: Any, value: Any, expected: Any) -> None:
    assert Decoding(form, writer, reader).read(encode(writer, value)) == ([expected], [])


def test_skipped_fields_of_every_type(form: str) -> None:
    writer = record(*[(field["name"], field["type"]) for field in ALL["fields"]], ("last", "int"))
    reader = record(("last", "int"))
    values = [encode(writer, {**full_row(number), "last": number}) for number in range(20)]
    assert Decoding(form, writer, reader).read(*values) == ([{"last": number} for number in range(20)], [])


@pytest.mark.parametrize(
    ("writer", "reader", "message"),
    [
        ("string", "int", "the value is string in the data and int"),
        (record(("a", "int")), record(("a", "string")), "a is int in the data and string"),
        (record(("a", "int")), record(("a", "int"), ("b", "int")), "b is not in the data and has no default"),
        (record(("a", "int"), name="X"), record(("a", "int"), name="Y"), "record X in the data and record Y"),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, "fixed F"),
    ],
)
def test_unresolvable_schemas_are_refused(writer: Any, reader: Any, message: str) -> None:
    with pytest.raises(UnresolvableError, match=message):
        Decoding("compiled", writer, reader)


def test_unresolvable_branch_fails_only_its_records(form: str) -> None:
    decoding = Decoding(form, ["string", "int"], "int")
    values, reasons = decoding.read(encode(["string", "int"], 1), encode(["string", "int"], "x"))
    assert values == [1, None]
    assert reasons == ["the value is string in the data and int in the reader's schema"]


def test_recursive_schema_is_refused() -> None:
    node = record(("next", ["null", "Order"]))
    with pytest.raises(NoColumnsError, match="the record Order contains itself"):
        column_type(schema_of(node))
    with pytest.raises(UnresolvableError, match="recursive"):
        Decoding("compiled", record(("next", ["null", "Order"]), ("a", "int")), record(("a", "int")))


def test_schema_that_multiplies_is_refused() -> None:
    tree: Any = record(("leaf", "int"), name="R0")
    for level in range(1, 20):
        fields = [("first", tree)] + [(f"f{number}", f"R{level - 1}") for number in range(4)]
        tree = record(*fields, name=f"R{level}")
    with pytest.raises(NoColumnsError, match="more than 20000 types"):
        column_type(schema_of(tree))


LONGS = {"type": "array", "items": "long"}
NULLS = {"type": "array", "items": "null"}


@pytest.mark.parametrize(
    ("tree", "data", "reason"),
    [
        ("long", b"", "cut off"),
        ("long", b"\xff" * 9, "cut off"),
        ("long", b"\xff" * 9 + b"\x02", "longer than its type"),
        ("long", b"\xff" * 11, "longer than its type"),
        ("int", b"\xff\xff\xff\xff\x7f", "longer than its type"),
        ("boolean", b"", "cut off"),
        ("double", b"1234567", "cut off"),
        ("string", b"\x08abc", "length is negative or larger"),
        ("string", b"\x01", "length is negative or larger"),
        ("string", b"\xff" * 9 + b"\x01", "length is negative or larger"),
        ("string", b"\xfe" + b"\xff" * 8 + b"\x01", "length is negative or larger"),
        ({"type": "fixed", "name": "F", "size": 4}, b"abc", "cut off"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "no such symbol"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", "no such symbol"),
        (["null", "int"], b"\x04", "no such branch"),
        (["null", "int"], b"\x01", "no such branch"),
        (["null", "int", "string"], b"\x06", "no such branch"),
        (LONGS, b"\x04\x02", "more items than the data can hold"),
        (LONGS, b"\xfe" + b"\xff" * 8 + b"\x01", "more items than the data can hold"),
        (LONGS, b"\xff" * 9 + b"\x01\x02\x02", "more items than the data can hold"),
        (LONGS, b"\x01\x01\x02\x00", "length is negative or larger"),
        (LONGS, b"\x02\x02", "cut off"),
        (NULLS, b"\xfe\xff\xff\xff\xff\xff\xff\x7f\x00", "more items than the data can hold"),
        ({"type": "map", "values": "null"}, b"\x04\x00", "more items than the data can hold"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3}, b"\x04\x03\xe8", "more digits"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38}, b"\x28" + b"\x01" * 20, "more digits"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xfe" + b"\xff" * 8 + b"\x01", "out of the range"),
        ("int", b"\x02\x02", "1 bytes follow"),
    ],
)  # fmt: skip
def test_hostile_bytes_are_refused(form: str, tree: Any, data: bytes, reason: str) -> None:
    good = {"long": b"\x02", "int": b"\x02"}.get(tree if isinstance(tree, str) else "")
    values, reasons = Decoding(form, tree).read(data, *([good, None] if good else []))
    assert values == [None, *([1, None] if good else [])]
    assert len(reasons) == 1
    assert reason in reasons[0]


def test_block_sizes_and_sign_bytes_are_read(form: str) -> None:
    assert Decoding(form, LONGS).read(b"\x03\x04\x02\x04\x02\x06\x00") == ([[1, 2, 3]], [])
    skipped = record(("l", LONGS), ("a", "int"))
    assert Decoding(form, skipped, record(("a", "int"))).read(b"\x03\x04\x02\x04\x00\x08") == ([{"a": 4}], [])
    money = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}
    encoded = [b"\x00", b"\x28" + b"\xff" * 20, b"\x24" + b"\0" * 17 + b"\x7f", b"\x04\xd8\xf1"]
    expected = [Decimal("0.0"), Decimal("-0.1"), Decimal("12.7"), Decimal("-999.9")]
    assert Decoding(form, money).read(*encoded) == (expected, [])


def test_invalid_text_is_replaced_as_in_java(form: str) -> None:
    assert Decoding(form, "string").read(b"\x04a\xff", b"\x02b") == (["a\ufffd", "b"], [])


def test_damaged_bytes_never_disturb_other_rows(form: str) -> None:
    """Flip bytes of one row among good ones: the good ones stay, the damaged one is refused or another value."""
    chance = random.Random(5)
    good = [encode(ALL, full_row(number)) for number in range(4)]
    decoding = Decoding(form, ALL)
    for _ in range(600 if form == "compiled" else 60):
        damaged = bytearray(good[3])
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        values, reasons = decoding.read(good[0], bytes(damaged[: chance.randint(0, len(damaged))]), good[1], good[2])
        assert [values[0], *values[2:]] == [as_column(full_row(number)) for number in (0, 1, 2)]
        assert (values[1] is None) == bool(reasons)


def types(names: list[str]) -> st.SearchStrategy[Any]:
    """Generate schemas of nested types without logical types."""
    simple = st.sampled_from(["boolean", "int", "long", "double", "string", "bytes"])

    def named(children: list[Any]) -> dict[str, Any]:
        names.append("R")
        return record(*[(f"f{index}", child) for index, child in enumerate(children)], name=f"R{len(names)}")

    return st.recursive(
        simple,
        lambda inner: (
            st.builds(lambda items: {"type": "array", "items": items}, inner)
            | st.builds(lambda items: {"type": "map", "values": items}, inner)
            | st.lists(inner, min_size=1, max_size=4).map(named)
            | st.builds(lambda item: ["null", item], inner)
        ),
        max_leaves=8,
    )


def nested_union(tree: Any) -> bool:
    if isinstance(tree, list):
        return any(isinstance(branch, list) or nested_union(branch) for branch in tree)
    if isinstance(tree, dict):
        parts = [tree.get("items"), tree.get("values"), *[field["type"] for field in tree.get("fields", ())]]
        return any(nested_union(part) for part in parts if part is not None)
    return False


def values_of(tree: Any) -> st.SearchStrategy[Any]:
    if isinstance(tree, list):
        return st.none() | values_of(tree[1])
    if isinstance(tree, str):
        return {
            "boolean": st.booleans(),
            "int": st.integers(-(2**31), 2**31 - 1),
            "long": st.integers(-(2**63), 2**63 - 1),
            "double": st.floats(allow_nan=False),
            "string": st.text(max_size=5),
            "bytes": st.binary(max_size=5),
        }[tree]
    if tree["type"] == "array":
        return st.lists(values_of(tree["items"]), max_size=4)
    if tree["type"] == "map":
        return st.dictionaries(st.text(max_size=3), values_of(tree["values"]), max_size=4)
    return st.fixed_dictionaries({field["name"]: values_of(field["type"]) for field in tree["fields"]})


@settings(max_examples=30)
@given(data=st.data())
def test_values_equal_those_of_fastavro(data: st.DataObject) -> None:
    tree = data.draw(types([]).filter(lambda tree: not nested_union(tree)))
    rows = data.draw(st.lists(values_of(tree), max_size=5))
    for form in FORMS:
        values, reasons = Decoding(form, tree).read(*[encode(tree, row) for row in rows])
        assert values == rows
        assert reasons == []


def test_added_fields_are_named_by_path() -> None:
    line = record(("sku", "string"), name="L")
    wider = record(("sku", "string"), ("color", "string"), name="L")
    reader = record(("a", "int"), ("lines", {"type": "array", "items": line}))
    writer = record(("a", "int"), ("b", "int"), ("lines", ["null", {"type": "array", "items": wider}]))
    assert added_fields(schema_of(writer), schema_of(reader)) == ["b", "lines.color"]
    assert added_fields(schema_of(reader), schema_of(writer)) == []
