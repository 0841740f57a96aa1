"""The five codecs of record batches, each with its frame as Kafka's clients write it.

Decompression is bounded: the size of a frame is read off its structure first, and nothing is written past the limit.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import cramjam

from ottla.records.errors import ErrorCode, InvalidRecords

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Plain = bytes | bytearray | memoryview


class CompressionType(IntEnum):
    """The number of a codec in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# A batch of 1 MiB rarely holds more than a few MiB; a fetch or produce request never more than 100 MiB.
MAX_DECOMPRESSED: Final = 128 * 1024 * 1024

# The defaults of Kafka's compression.<codec>.level.
GZIP_DEFAULT_LEVEL: Final = -1
LZ4_DEFAULT_LEVEL: Final = 9
ZSTD_DEFAULT_LEVEL: Final = 3

# Reading a block's header costs about as much as decompressing so many bytes: blocks count towards the limit as well.
_BLOCK_COST: Final = 512
_LARGE_BUFFER: Final = 1024 * 1024
_GZIP_PIECE: Final = 1024 * 1024

_INT32 = struct.Struct(">i")
_UINT32_LE = struct.Struct("<I")

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024
_XERIAL_MAGIC_AS_LENGTH: Final = struct.unpack(">i", _XERIAL_MAGIC[:4])[0]
_SNAPPY_MAX_RATIO: Final = 64  # a copy of 64 bytes takes at least two, so no valid block reaches it

# Magic, independent blocks without checksums, blocks of at most 64 KiB, and the checksum of these two bytes.
_LZ4_HEADER: Final = bytes.fromhex("04224d18604082")
_LZ4_MAGIC: Final = 0x184D2204
_LZ4_BLOCK: Final = 64 * 1024
_LZ4_BLOCK_SIZES: Final = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_LZ4_MAX_RATIO: Final = 255  # each byte of a match length adds at most as many
_LZ4_UNCOMPRESSED: Final = 0x80000000

_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_SKIPPABLE: Final = 0x184D2A50
_ZSTD_BLOCK: Final = 128 * 1024


class DecompressionLimitError(InvalidRecords):
    """Records take more work to decompress than the caller allows."""


def compress(codec: int, data: ReadableBuffer, level: int | None = None) -> bytes:
    """Compress a batch's records; `level` is on the codec's scale, None for its default."""
    if codec == CompressionType.NONE:
        return bytes(data)
    if codec == CompressionType.GZIP:
        return zlib.compress(data, GZIP_DEFAULT_LEVEL if level is None else level, wbits=31)
    if codec == CompressionType.SNAPPY:
        return _compress_snappy(memoryview(data))
    if codec == CompressionType.LZ4:
        return _compress_lz4(memoryview(data), LZ4_DEFAULT_LEVEL if level is None else level)
    if codec == CompressionType.ZSTD:
        return bytes(cramjam.zstd.compress(data, ZSTD_DEFAULT_LEVEL if level is None else level))
    raise _unknown_codec(codec)


def decompress(codec: int, data: ReadableBuffer, limit: int = MAX_DECOMPRESSED) -> Plain:
    """Decompress a batch's records; raise `DecompressionLimitError` where they can take more than `limit` bytes.

    Blocks count as 512 bytes at least, so that millions of empty ones are no way around the limit. Sizes are read off
    the structure of the frames where the codec has one, before anything is decompressed.
    """
    try:
        if codec == CompressionType.NONE:
            return bytes(data)
        with memoryview(data) as view:
            if codec == CompressionType.GZIP:
                return _decompress_gzip(view, limit)
            if codec == CompressionType.SNAPPY:
                return _decompress_snappy(view, limit)
            if codec == CompressionType.LZ4:
                return _decompress_lz4(view, limit)
            if codec == CompressionType.ZSTD:
                return _decompress_zstd(view, limit)
    except (zlib.error, cramjam.DecompressionError, struct.error) as error:
        raise _corrupt(f"{CompressionType(codec).name.lower()}: {error}") from None
    raise _unknown_codec(codec)


def _unknown_codec(codec: int) -> InvalidRecords:
    return InvalidRecords(ErrorCode.UNKNOWN_SERVER_ERROR, f"unknown compression type {codec}")


def _corrupt(reason: str) -> InvalidRecords:
    # Kafka answers UNKNOWN_SERVER_ERROR for records that do not decompress.
    return InvalidRecords(ErrorCode.UNKNOWN_SERVER_ERROR, f"failed to decompress records: {reason}")


def _too_large(limit: int) -> DecompressionLimitError:
    return DecompressionLimitError(
        ErrorCode.MESSAGE_TOO_LARGE, f"records take more than {limit} bytes when they are decompressed"
    )


def _buffer(size: int) -> bytearray | memoryview:
    """Return a buffer for plain bytes; map a large one, because Python holds its lock while it writes zeros."""
    return bytearray(size) if size <= _LARGE_BUFFER else memoryview(mmap.mmap(-1, size))


def _cut(buffer: bytearray | memoryview, size: int) -> bytearray | memoryview:
    if isinstance(buffer, memoryview):
        return buffer[:size]
    del buffer[size:]
    return buffer


def _decompress_gzip(data: memoryview, limit: int) -> Plain:
    if not data:
        raise _corrupt("gzip: no data")
    pieces: list[bytes] = []
    size = members = 0
    rest: memoryview | bytes = data
    while not members or (len(rest) > 1 and rest[0] == 0x1F and rest[1] == 0x8B):  # members may be concatenated
        member = zlib.decompressobj(wbits=31)
        members += 1
        while not member.eof:
            piece = member.decompress(rest, _GZIP_PIECE)
            rest = member.unconsumed_tail
            size += len(piece)
            if size + members * _BLOCK_COST > limit + _BLOCK_COST:
                raise _too_large(limit)
            if not piece and not member.eof:
                raise _corrupt("gzip: the stream is cut off")
            pieces.append(piece)
        rest = member.unused_data
    if len(pieces) == 1:
        return pieces[0]
    plain = _buffer(size)
    position = 0
    for piece in pieces:
        plain[position : position + len(piece)] = piece
        position += len(piece)
    return plain


def _compress_snappy(data: memoryview) -> bytes:
    pieces = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        pieces.append(_INT32.pack(len(block)))
        pieces.append(block)
    return b"".join(pieces)


def _decompress_snappy(data: memoryview, limit: int) -> Plain:
    if not data:
        raise _corrupt("snappy: no data")
    if bytes(data[:8]) != _XERIAL_MAGIC:
        blocks = [data]  # some clients write one raw block without framing, which Kafka reads
    else:
        blocks = _xerial_blocks(data, limit)
    sizes = []
    total = 0
    for block in blocks:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > len(block) * _SNAPPY_MAX_RATIO:
            raise _corrupt("snappy: a block claims more than it can hold")
        total += size
        if total > limit:
            raise _too_large(limit)
        sizes.append(size)
    plain = _buffer(total)
    position = 0
    with memoryview(plain) as output:
        for block, size in zip(blocks, sizes, strict=True):
            if size == 0:
                continue
            written = cramjam.snappy.decompress_raw_into(block, output[position : position + size])
            if written != size:
                raise _corrupt("snappy: a block is shorter than it claims")
            position += size
    return plain


def _xerial_blocks(data: memoryview, limit: int) -> list[memoryview]:
    blocks = []
    position = len(_XERIAL_HEADER)
    if len(data) < position:
        raise _corrupt("snappy: the header is cut off")
    while position < len(data):
        (size,) = _INT32.unpack_from(data, position)
        if size == _XERIAL_MAGIC_AS_LENGTH:  # streams may be concatenated
            position += len(_XERIAL_HEADER)
            continue
        position += 4
        if size < 0 or size > len(data) - position:
            raise _corrupt("snappy: a block is cut off")
        blocks.append(data[position : position + size])
        if len(blocks) * _BLOCK_COST > limit + _BLOCK_COST:
            raise _too_large(limit)
        position += size
    return blocks


def _compress_lz4(data: memoryview, level: int) -> bytes:
    pieces = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK):
        plain = data[start : start + _LZ4_BLOCK]
        if level == LZ4_DEFAULT_LEVEL:
            block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        else:
            block = bytes(
                cramjam.lz4.compress_block(plain, mode="high_compression", compression=level, store_size=False)
            )
        if len(block) < len(plain):
            pieces.append(_UINT32_LE.pack(len(block)))
            pieces.append(block)
        else:
            pieces.append(_UINT32_LE.pack(len(plain) | _LZ4_UNCOMPRESSED))
            pieces.append(bytes(plain))
    pieces.append(bytes(4))
    return b"".join(pieces)


def _decompress_lz4(data: memoryview, limit: int) -> Plain:
    bound, end = _lz4_bound(data, limit)
    plain = _buffer(min(bound, limit))
    try:
        written = cramjam.lz4.decompress_into(data[:end], plain)
    except cramjam.DecompressionError:
        if bound > limit:
            raise _too_large(limit) from None
        raise
    return _cut(plain, written)


def _lz4_bound(data: memoryview, limit: int) -> tuple[int, int]:
    """Return the largest size that a frame can decompress to, and its end; raise for a frame that Kafka cannot read."""
    if _UINT32_LE.unpack_from(data)[0] != _LZ4_MAGIC:
        raise _corrupt("lz4: not a frame")
    flags, block_descriptor = struct.unpack_from("BB", data, 4)
    if flags >> 6 != 1 or flags & 0x03:
        raise _corrupt("lz4: unknown frame version or reserved bits")
    if not flags & 0x20:
        raise _corrupt("lz4: dependent blocks are not supported")
    block_size = _LZ4_BLOCK_SIZES.get(block_descriptor >> 4)
    if block_size is None or block_descriptor & 0x0F:
        raise _corrupt("lz4: unknown block size or reserved bits")
    position = 7 + (8 if flags & 0x08 else 0)
    checksum = 4 if flags & 0x10 else 0
    bound = blocks = 0
    while True:
        (size,) = _UINT32_LE.unpack_from(data, position)
        position += 4
        if size == 0:
            break
        length = size & ~_LZ4_UNCOMPRESSED
        if length > block_size or length + checksum > len(data) - position:
            raise _corrupt("lz4: a block is too long or cut off")
        bound += length if size & _LZ4_UNCOMPRESSED else min(block_size, length * _LZ4_MAX_RATIO)
        position += length + checksum
        blocks += 1
        if blocks * _BLOCK_COST > limit + _BLOCK_COST:
            raise _too_large(limit)
    if flags & 0x04:
        position += 4
    return bound, position


def _decompress_zstd(data: memoryview, limit: int) -> Plain:
    bound = _zstd_bound(data, limit)
    plain = _buffer(min(bound, limit))
    try:
        written = cramjam.zstd.decompress_into(data, plain)
    except cramjam.DecompressionError:
        if bound > limit:
            raise _too_large(limit) from None
        raise
    return _cut(plain, written)


def _zstd_bound(data: memoryview, limit: int) -> int:
    """Return the largest size that frames can decompress to: their stated sizes, or what their blocks can hold."""
    if not data:
        raise _corrupt("zstd: no data")
    bound = frames = 0
    position = 0
    while position < len(data):
        frames += 1
        if frames * _BLOCK_COST > limit + _BLOCK_COST:
            raise _too_large(limit)
        (magic,) = _UINT32_LE.unpack_from(data, position)
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE:
            position += 8 + _UINT32_LE.unpack_from(data, position + 4)[0]
            continue
        if magic != _ZSTD_MAGIC:
            raise _corrupt("zstd: not a frame")
        frame, position = _zstd_frame_bound(data, position + 4, limit)
        bound += frame
    return bound


def _zstd_frame_bound(data: memoryview, position: int, limit: int) -> tuple[int, int]:
    (descriptor,) = struct.unpack_from("B", data, position)
    single_segment = bool(descriptor & 0x20)
    content_size_bytes = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    position += 1 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 0x03]
    content_size = int.from_bytes(data[position : position + content_size_bytes], "little")
    if content_size_bytes == 2:
        content_size += 256
    position += content_size_bytes
    bound = blocks = 0
    last = False
    while not last:
        blocks += 1
        if blocks * _BLOCK_COST > limit + _BLOCK_COST:
            raise _too_large(limit)
        low, high = struct.unpack_from("<HB", data, position)
        header = low | high << 16
        last = bool(header & 1)
        kind = header >> 1 & 3
        size = header >> 3
        position += 3 + (1 if kind == 1 else size)
        if position > len(data):
            raise _corrupt("zstd: a block is cut off")
        bound += _ZSTD_BLOCK if kind == 2 else size
    if descriptor & 0x04:
        position += 4
    return (min(bound, content_size) if content_size_bytes else bound), position
