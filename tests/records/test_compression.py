from __future__ import annotations

import contextlib
import gzip
import struct
import tracemalloc

import cramjam
import lz4.frame
import pytest
import zstandard
from aiokafka.codec import lz4_decode, snappy_decode, snappy_encode
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.records.compression import CompressionType, compress, decompress
from ottla.records.errors import ErrorCode, InvalidRecords

REAL_CODECS = [CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD]
payloads = st.one_of(
    st.binary(max_size=300),
    st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 40_000)).map(lambda p: p[0] * p[1]),
)


@given(st.sampled_from(list(CompressionType)), payloads)
@example(CompressionType.LZ4, bytes(65536))
@example(CompressionType.SNAPPY, bytes(65537))
def test_decompress_undoes_compress(codec: CompressionType, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), limit=len(data)) == data


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (CompressionType.GZIP, 1),
        (CompressionType.GZIP, 9),
        (CompressionType.LZ4, 1),
        (CompressionType.LZ4, 12),
        (CompressionType.ZSTD, -5),
        (CompressionType.ZSTD, 19),
    ],
)
def test_every_level_round_trips(codec: CompressionType, level: int) -> None:
    data = b"".join(b"%d:%d;" % (i, i * i) for i in range(20_000))
    assert decompress(codec, compress(codec, data, level)) == data


def test_output_is_read_by_other_libraries() -> None:
    data = b"some records " * 20_000
    assert gzip.decompress(compress(CompressionType.GZIP, data)) == data
    assert snappy_decode(compress(CompressionType.SNAPPY, data)) == data
    assert lz4_decode(compress(CompressionType.LZ4, data)) == data
    assert lz4.frame.decompress(compress(CompressionType.LZ4, data)) == data
    assert zstandard.ZstdDecompressor().decompressobj().decompress(compress(CompressionType.ZSTD, data)) == data


def test_output_of_other_libraries_is_read() -> None:
    data = b"some records " * 20_000
    unsized = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(data)
    assert decompress(CompressionType.GZIP, gzip.compress(data)) == data
    assert decompress(CompressionType.SNAPPY, snappy_encode(data)) == data
    assert decompress(CompressionType.ZSTD, zstandard.compress(data)) == data
    assert decompress(CompressionType.ZSTD, unsized) == data
    for options in ({}, {"block_checksum": True}, {"content_checksum": True}, {"block_size": 7}):
        frame = lz4.frame.compress(data, block_linked=False, **options)
        assert decompress(CompressionType.LZ4, frame) == data


def test_snappy_without_framing_is_read_as_one_block() -> None:
    data = b"librdkafka may write this " * 100
    assert decompress(CompressionType.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


def test_concatenated_frames_are_read_as_in_kafka() -> None:
    for codec in (CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.ZSTD):
        assert decompress(codec, compress(codec, b"first ") + compress(codec, b"second")) == b"first second"
    skippable = struct.pack("<II", 0x184D2A51, 3) + b"abc"
    assert decompress(CompressionType.ZSTD, skippable + compress(CompressionType.ZSTD, b"x")) == b"x"


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_output_over_limit_is_refused(codec: CompressionType) -> None:
    data = b"0123456789" * 20_000
    packed = compress(codec, data)
    assert decompress(codec, packed, limit=len(data)) == data
    for limit in (0, 1, 1000, len(data) - 1):
        with pytest.raises(InvalidRecords) as caught:
            decompress(codec, packed, limit=limit)
        assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_decompression_bomb_stays_within_limit(codec: CompressionType) -> None:
    packed = compress(codec, bytes(64 << 20))
    limit = 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRecords) as caught:
            decompress(codec, packed, limit=limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert peak < 4 * limit + len(packed)


def test_frame_with_absurd_size_allocates_nothing() -> None:
    snappy = b"\xff\xff\xff\xff\x07" + bytes(10)
    zstd = bytes.fromhex("28b52ffd e0 ffffffffffffff7f 010000".replace(" ", ""))
    block = struct.pack("<I", 3) + b"\x30ab"  # three bytes that might be the start of 4 MiB
    big_blocks = bytes.fromhex("04224d186070df") + block * 100 + bytes(4)
    frames = ((CompressionType.SNAPPY, snappy), (CompressionType.ZSTD, zstd), (CompressionType.LZ4, big_blocks))
    for codec, data in frames:
        tracemalloc.start()
        try:
            with pytest.raises(InvalidRecords):
                decompress(codec, data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 1 << 17


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_truncated_frame_is_refused(codec: CompressionType) -> None:
    packed = compress(codec, bytes(range(256)) * 3)
    for cut in range(len(packed)):
        if codec == CompressionType.SNAPPY and cut == 16:
            continue  # the framing's header alone is a stream of no blocks
        with pytest.raises(InvalidRecords) as caught:
            decompress(codec, packed[:cut])
        assert caught.value.code == ErrorCode.UNKNOWN_SERVER_ERROR


@given(st.sampled_from(REAL_CODECS), st.data())
def test_random_bytes_decompress_or_are_refused(codec: CompressionType, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, data.draw(payloads)))
    for _ in range(data.draw(st.integers(0, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    packed = packed[: data.draw(st.integers(0, len(packed)))] + data.draw(st.binary(max_size=10))
    with contextlib.suppress(InvalidRecords):
        assert len(decompress(codec, packed, limit=1 << 20)) <= 1 << 20


def test_linked_lz4_blocks_are_refused_as_in_kafka() -> None:
    frame = lz4.frame.compress(bytes(200_000), block_linked=True)
    with pytest.raises(InvalidRecords, match="dependent"):
        decompress(CompressionType.LZ4, frame)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_fails(codec: int) -> None:
    with pytest.raises(InvalidRecords, match="unknown compression type"):
        decompress(codec, b"")
    with pytest.raises(InvalidRecords, match="unknown compression type"):
        compress(codec, b"")
