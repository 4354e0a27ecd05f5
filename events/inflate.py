"""Decompress what others have written, up to a limit: a few bytes can stand for gigabytes."""

import gzip
import io
import struct
import zlib
from collections.abc import Callable
from typing import TypeAlias

import cramjam

FIRST_GUESS = 64 * 1024
GROWTH = 8
"""A buffer that is too small is tried again with this many times its size."""

Codec: TypeAlias = Callable[[bytes, int], bytes]
"""Returns the decompressed bytes. Raises `InflateError` if they are damaged, or more than the limit."""

_XERIAL = b"\x82SNAPPY\x00"
"""Begins what Java's snappy writes: blocks, each with its size before it."""
_XERIAL_HEADER = 16


class InflateError(ValueError):
    """What is compressed is damaged, or larger than the limit."""


def inflate_gzip(compressed: bytes, limit: int) -> bytes:
    """All members of a gzip file."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(compressed)) as file:
            return _within(file.read(limit + 1), limit)
    except (EOFError, OSError, zlib.error) as error:
        raise InflateError(f"damaged: {error}") from error


def inflate_deflate(compressed: bytes, limit: int) -> bytes:
    """Deflate without a header, as in Avro."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        found = inflater.decompress(compressed, limit + 1)
    except zlib.error as error:
        raise InflateError(f"damaged: {error}") from error
    if not inflater.eof and len(found) <= limit:
        raise InflateError("damaged: it ends too early")
    return _within(found, limit)


def inflate_snappy(compressed: bytes, limit: int) -> bytes:
    """One raw block, or the blocks that Java writes."""
    if not compressed.startswith(_XERIAL):
        return _snappy_block(compressed, limit)
    blocks, size, position = [], 0, _XERIAL_HEADER
    while position < len(compressed):
        if position + 4 > len(compressed):
            raise InflateError("damaged: it ends in the size of a block")
        (length,) = struct.unpack_from(">i", compressed, position)
        position += 4
        if not 0 < length <= len(compressed) - position:
            raise InflateError("damaged: a block ends behind it")
        blocks.append(_snappy_block(compressed[position : position + length], limit - size))
        size += len(blocks[-1])
        position += length
    return b"".join(blocks)


def inflate_lz4(compressed: bytes, limit: int) -> bytes:
    """A frame of lz4."""
    return _inflate_into(cramjam.lz4.decompress_into, compressed, limit)


def inflate_zstd(compressed: bytes, limit: int) -> bytes:
    """The frames of zstd."""
    return _inflate_into(cramjam.zstd.decompress_into, compressed, limit)


def _within(found: bytes, limit: int) -> bytes:
    if len(found) > limit:
        raise InflateError(f"it has more than {limit} bytes")
    return found


def _snappy_block(compressed: bytes, limit: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(compressed) > limit:
            raise InflateError(f"it has more than {limit} bytes")
        return bytes(cramjam.snappy.decompress_raw(compressed))
    except (cramjam.DecompressionError, OSError) as error:
        raise InflateError(f"damaged: {error}") from error


def _inflate_into(decompress_into: Callable[[bytes, bytearray], int], compressed: bytes, limit: int) -> bytes:
    """The data doesn't have its size: with a buffer that grows up to the limit."""
    size = max(FIRST_GUESS, GROWTH * len(compressed))
    while True:
        buffer = bytearray(min(size, limit))
        try:
            return bytes(memoryview(buffer)[: decompress_into(compressed, buffer)])
        except (cramjam.DecompressionError, OSError) as error:
            if size >= limit:
                raise InflateError(f"damaged, or more than {limit} bytes") from error
        size *= GROWTH
