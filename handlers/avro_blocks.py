"""Decompresses a file of Avro records, within limits.

A writer of the table can put anything there, so memory is bounded before fastavro sees a byte: a file has at most
`MAX_BYTES` uncompressed, and `MAX_RECORDS` records, which may be empty. Each block is decompressed here, with the rest of that
limit, and passed on uncompressed.
"""

import io

from lakewarden.events.inflate import Codec, inflate_deflate, inflate_snappy, inflate_zstd

MAX_BYTES = 128 * 1024 * 1024
"""Limit of one file, uncompressed: twice the metadata of a commit of 100,000 files."""
MAX_RECORDS = 1_000_000
_MAGIC = b"Obj\x01"
_SYNC = 16


def _snappy(compressed: bytes, limit: int) -> bytes:
    return inflate_snappy(compressed[:-4], limit)  # a checksum follows


_CODECS: dict[str, Codec | None] = {
    "null": None,
    "deflate": inflate_deflate,
    "snappy": _snappy,
    "zstandard": inflate_zstd,
}


def uncompressed(body: bytes) -> bytes:
    """The same file without compression. Raises `ValueError`."""
    source = io.BytesIO(body)
    if source.read(4) != _MAGIC:
        raise ValueError("it begins otherwise")
    meta: dict[bytes, bytes] = {}
    while count := _number(source):
        if count < 0:
            _number(source)  # the size of the block
        for _ in range(abs(count)):
            key = _bytes(source)
            meta[key] = _bytes(source)
    sync = source.read(_SYNC)
    name = meta.pop(b"avro.codec", b"null").decode()
    if name not in _CODECS:
        raise ValueError(f"its codec {name} is not known")
    inflate = _CODECS[name]
    found = [
        _MAGIC,
        _varint(len(meta)),
        *(_sized(each) for pair in meta.items() for each in pair),
        b"\0",
        sync,
    ]
    left, records = MAX_BYTES, 0
    while source.tell() < len(body):
        count, block = _number(source), _bytes(source)
        records += count
        if count < 0 or records > MAX_RECORDS:
            raise ValueError(f"it has more than {MAX_RECORDS} records")
        content = block if inflate is None else inflate(block, left)
        left -= len(content)
        if source.read(_SYNC) != sync:
            raise ValueError("a block ends otherwise")
        found += [_varint(count), _sized(content), sync]
    return b"".join(found)


def _number(source: io.BytesIO) -> int:
    value = shift = 0
    while True:
        [byte] = source.read(1) or [0x100]
        if byte > 0xFF or shift > 63:
            raise ValueError("it ends too early")
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7


def _bytes(source: io.BytesIO) -> bytes:
    length = _number(source)
    found = source.read(max(0, length))
    if len(found) != length:
        raise ValueError("it ends too early")
    return found


def _varint(value: int) -> bytes:
    value <<= 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content
