"""XXH3 with 64 bits, seed 0 and the standard secret: Kafka keeps a hash of a group's topics in its records.

Small inputs, seldom: a few kilobytes when a topic changes. The same hash lets Apache Kafka take a group over as it is.
"""

from __future__ import annotations

import struct
from typing import Final

_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_MASK: Final = (1 << 64) - 1
_P32_1: Final = 0x9E3779B1
_P32_2: Final = 0x85EBCA77
_P32_3: Final = 0xC2B2AE3D
_P64_1: Final = 0x9E3779B185EBCA87
_P64_2: Final = 0xC2B2AE3D27D4EB4F
_P64_3: Final = 0x165667B19E3779F9
_P64_4: Final = 0x85EBCA77C2B2AE63
_P64_5: Final = 0x27D4EB2F165667C5
_STRIPE: Final = 64
_STRIPES_PER_BLOCK: Final = (len(_SECRET) - _STRIPE) // 8

_EIGHT: Final = struct.Struct("<8Q")
_KEYS: Final = [_EIGHT.unpack_from(_SECRET, 8 * n) for n in range(_STRIPES_PER_BLOCK)]
_SCRAMBLE_KEYS: Final = _EIGHT.unpack_from(_SECRET, len(_SECRET) - _STRIPE)
_LAST_KEYS: Final = _EIGHT.unpack_from(_SECRET, len(_SECRET) - _STRIPE - 7)


def xxh3_64(data: bytes) -> int:
    """The hash as an unsigned number."""
    size = len(data)
    if size > 240:
        return _long(data)
    if size > 128:
        return _medium(data)
    if size > 16:
        return _short(data)
    if size > 8:
        low = _read64(data, 0) ^ _read64(_SECRET, 24) ^ _read64(_SECRET, 32)
        high = _read64(data, size - 8) ^ _read64(_SECRET, 40) ^ _read64(_SECRET, 48)
        swapped = int.from_bytes(low.to_bytes(8, "little"))
        return _avalanche(size + swapped + high + _fold(low, high))
    if size >= 4:
        mixed = int.from_bytes(data[-4:], "little") + (int.from_bytes(data[:4], "little") << 32)
        mixed ^= _read64(_SECRET, 8) ^ _read64(_SECRET, 16)
        mixed ^= _rotate(mixed, 49) ^ _rotate(mixed, 24)
        mixed = mixed * 0x9FB21C651E98DF25 & _MASK
        mixed ^= (mixed >> 35) + size
        mixed = mixed * 0x9FB21C651E98DF25 & _MASK
        return mixed ^ mixed >> 28
    if size > 0:
        combined = data[0] << 16 | data[size >> 1] << 24 | data[-1] | size << 8
        flip = int.from_bytes(_SECRET[0:4], "little") ^ int.from_bytes(_SECRET[4:8], "little")
        return _avalanche_64(combined ^ flip)
    return _avalanche_64(_read64(_SECRET, 56) ^ _read64(_SECRET, 64))


def _short(data: bytes) -> int:
    size = len(data)
    total = size * _P64_1
    for step in range((size - 1) // 32, -1, -1):
        total += _mix(data, 16 * step, 32 * step)
        total += _mix(data, size - 16 * (step + 1), 32 * step + 16)
    return _avalanche(total)


def _medium(data: bytes) -> int:
    size = len(data)
    total = size * _P64_1
    for step in range(8):
        total += _mix(data, 16 * step, 16 * step)
    total = _avalanche(total)
    for step in range(8, size // 16):
        total += _mix(data, 16 * step, 16 * (step - 8) + 3)
    total += _mix(data, size - 16, 136 - 17)
    return _avalanche(total)


def _long(data: bytes) -> int:
    sums = [_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1]
    size = len(data)
    for stripe in range((size - 1) // _STRIPE):
        _accumulate(sums, _EIGHT.unpack_from(data, stripe * _STRIPE), _KEYS[stripe % _STRIPES_PER_BLOCK])
        if stripe % _STRIPES_PER_BLOCK == _STRIPES_PER_BLOCK - 1:
            for lane, key in enumerate(_SCRAMBLE_KEYS):
                value = sums[lane]
                sums[lane] = (value ^ value >> 47 ^ key) * _P32_1 & _MASK
    _accumulate(sums, _EIGHT.unpack_from(data, size - _STRIPE), _LAST_KEYS)
    total = size * _P64_1
    for pair in range(4):
        total += _fold(
            sums[2 * pair] ^ _read64(_SECRET, 11 + 16 * pair), sums[2 * pair + 1] ^ _read64(_SECRET, 19 + 16 * pair)
        )
    return _avalanche(total)


def _accumulate(sums: list[int], stripe: tuple[int, ...], keys: tuple[int, ...]) -> None:
    for lane in range(8):
        value = stripe[lane]
        key = value ^ keys[lane]
        sums[lane ^ 1] = sums[lane ^ 1] + value & _MASK
        sums[lane] = sums[lane] + (key & 0xFFFFFFFF) * (key >> 32) & _MASK


def _read64(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 8], "little")


def _mix(data: bytes, position: int, secret: int) -> int:
    return _fold(
        _read64(data, position) ^ _read64(_SECRET, secret), _read64(data, position + 8) ^ _read64(_SECRET, secret + 8)
    )


def _fold(left: int, right: int) -> int:
    product = left * right
    return (product & _MASK) ^ product >> 64


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _avalanche(value: int) -> int:
    value &= _MASK
    value ^= value >> 37
    value = value * 0x165667919E3779F9 & _MASK
    return value ^ value >> 32


def _avalanche_64(value: int) -> int:
    value ^= value >> 33
    value = value * _P64_2 & _MASK
    value ^= value >> 29
    value = value * _P64_3 & _MASK
    return value ^ value >> 32
