"""Mutate valid messages and check that any bytes decode to a message or raise ProtocolError.

The tests run a bounded number of cases, tools/fuzz_codec.py any number. A case is a number, so
that a finding can be replayed.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from ottla.protocol.errors import ProtocolError
from ottla.protocol.framing import FrameCutter, decode_request, decode_response
from ottla.protocol.inspect.walk import walk
from ottla.protocol.record_values import decode_control_key, decode_metadata_record, decode_offsets_key
from ottla.protocol.schema import Field, Uuid

from .strategies import ALL_MESSAGES

if TYPE_CHECKING:
    from ottla.protocol.schema import Message, Struct

EDGES = (0x00, 0x01, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
LENGTHS = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff", b"\xff\xff\xff\xff\x07", b"\x80\x80\0")
SIZES = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 16, "uint32": 32}


def random_primitive(kind: str, random: Random) -> Any:
    if kind in SIZES:
        bits = random.getrandbits(SIZES[kind]) if random.random() < 0.5 else random.randrange(8)
        return bits if kind.startswith("u") or bits < 2 ** (SIZES[kind] - 1) else bits - 2 ** SIZES[kind]
    if kind == "bool":
        return random.random() < 0.5
    if kind == "float64":
        return random.uniform(-1e9, 1e9)
    if kind == "uuid":
        return Uuid(random.randbytes(16))
    size = random.choice((0, 1, 3, 8, 126, 127, 200))
    return "".join(random.choices("abcé☃", k=size)) if kind == "string" else random.randbytes(size)


def random_field(field: Field, version: int, flexible: bool, random: Random) -> Any:
    if version in field.nullable and random.random() < 0.2:
        return None
    if field.kind == "struct":
        assert field.struct is not None
        return random_struct(field.struct, version, flexible, random)
    if field.kind != "array":
        return random_primitive(field.kind, random)
    count = random.choice((0, 1, 1, 2, 9))
    if isinstance(field.of, str):
        return [random_primitive(field.of, random) for _ in range(count)]
    assert field.of is not None
    return [random_struct(field.of, version, flexible, random) for _ in range(min(count, 2))]


def random_struct(cls: type[Struct], version: int, flexible: bool, random: Random) -> Any:
    message = cls(
        **{
            field.name: random_field(field, version, flexible, random)
            for field in cls.__schema__.fields
            if version in field.versions and (field.tag is None or random.random() < 0.3)
        }
    )
    if flexible and random.random() < 0.05:
        message.unknown_tags = {random.randrange(100, 2**31): random.randbytes(random.randrange(200))}
    return message


def mutate(data: bytes, random: Random) -> bytes:
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        position = random.randrange(len(out) + 1)
        match random.randrange(7):
            case 0:
                del out[position:]
            case 1:
                out[position:position] = random.randbytes(random.choice((1, 2, 4, 30)))
            case 2:
                del out[position : position + random.choice((1, 2, 4, 16))]
            case 3 if out:
                out[position % len(out)] = random.choice(EDGES)
            case 4 if out:
                out[position % len(out)] ^= 1 << random.randrange(8)
            case 5:
                piece = random.choice(LENGTHS)
                out[position : position + len(piece)] = piece
            case _:
                start = random.randrange(len(out) + 1)
                out[position:position] = out[start : start + random.randrange(64)]
    return bytes(out)


def decoded(cls: type[Message], data: Any, version: int) -> Message | ProtocolError:
    try:
        return cls.decode(data, version)
    except ProtocolError as error:
        return error


def check(cls: type[Message], version: int, data: bytes) -> bool:
    """Check that the bytes decode or raise ProtocolError; return whether they decode."""
    result = decoded(cls, data, version)
    other = decoded(cls, memoryview(data), version)
    assert type(other) is type(result)
    end = 0
    failure = None
    try:
        for node in walk(cls, data, version):
            assert 0 <= node.position <= node.end <= len(data)
            end = max(end, node.end)
    except ProtocolError as error:
        failure = error
    if isinstance(result, ProtocolError):
        assert str(other) == str(result)
        assert failure is not None or end < len(data), "the walk accepts what the codec refuses"
        assert result.expected != "the bytes do not decode"
        assert result.position is not None
        assert 0 <= result.position <= len(data)
        assert result.path or "left after" in result.expected
        return False
    assert other == result or repr(other) == repr(result)
    assert failure is None, "the codec accepts what the walk refuses"
    assert end == len(data)
    again = result.encode(version)
    back = cls.decode(again, version)
    assert back == result or repr(back) == repr(result)  # a NaN is not itself
    assert back.encode(version) == again
    return True


def check_frames(data: bytes, random: Random) -> None:
    """Check that every reader of untrusted bytes raises nothing but ProtocolError."""
    readers = [
        decode_request,
        decode_metadata_record,
        decode_offsets_key,
        decode_control_key,
        lambda frame: decode_response(frame, cls.__schema__.api_key or 0, version),
        lambda frame: list(FrameCutter(max_size=10_000).feed(frame)),
    ]
    cls = random.choice(ALL_MESSAGES[:150])
    version = random.choice(cls.__schema__.versions)
    for read in readers:
        try:
            read(data)
        except ProtocolError:
            continue


def run_case(number: int) -> bool:
    """Run one case; return whether the mutated bytes were still a message."""
    random = Random(number)
    cls = random.choice(ALL_MESSAGES)
    version = random.choice(cls.__schema__.versions)
    data = random_struct(cls, version, version in cls.__schema__.flexible, random).encode(version)
    bad = mutate(data, random)
    check_frames(bad, random)
    return check(cls, version, bad)
