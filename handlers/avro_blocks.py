"""Decompresses a file of Avro records, within limits.

A writer of the table can put anything there, so memory and time are bounded before fastavro sees a byte:

1. A file has at most `MAX_BYTES` uncompressed, and `MAX_RECORDS` records, which may be empty. Each block is decompressed here,
   with the rest of that limit, and passed on uncompressed.
2. Values that cost no bytes (a null, a record without fields) are counted by the schema: at most `MAX_RECORDS` in all records.
   An array of such values is refused.
3. A type that contains itself is refused: fastavro follows it until the process ends. No table format has one.
4. Of logical types, only decimals and UUIDs of a fixed size are kept. Python's years end at 9999, and a decimal of a
   megabyte takes minutes.
"""

import io
import json
from typing import Any

import fastavro

from lakewarden.events.inflate import Codec, inflate_deflate, inflate_snappy, inflate_zstd
from lakewarden.handlers.unreadable import Unreadable

MAX_BYTES = 128 * 1024 * 1024
"""Limit of one file, uncompressed: twice the metadata of a commit of 100,000 files."""
MAX_RECORDS = 1_000_000
MAX_FIXED = 16
"""Bytes of a decimal or a UUID."""
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
        raise Unreadable("it begins otherwise")
    meta: dict[bytes, bytes] = {}
    while count := _number(source):
        if count < 0:
            _number(source)  # the size of the block
        for _ in range(abs(count)):
            key = _bytes(source)
            meta[key] = _bytes(source)
    sync = source.read(_SYNC)
    schema, free = bounded_schema(meta.get(b"avro.schema", b""))
    meta[b"avro.schema"] = json.dumps(schema).encode()
    name = meta.pop(b"avro.codec", b"null").decode()
    if name not in _CODECS:
        raise Unreadable(f"its codec {name} is not known")
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
        if count < 0 or records * max(1, free) > MAX_RECORDS:
            raise Unreadable(f"it has more than {MAX_RECORDS:,} records, or values without bytes")
        content = block if inflate is None else inflate(block, left)
        left -= len(content)
        if source.read(_SYNC) != sync:
            raise Unreadable("a block ends otherwise")
        found += [_varint(count), _sized(content), sync]
    return b"".join(found)


def bounded_schema(text: bytes) -> tuple[Any, int]:
    """Return a schema, and how many values without bytes are in one of its records. Raises `ValueError` if it has no bound."""
    schema = _plain(json.loads(text))
    return schema, _costs(fastavro.parse_schema(schema), {})[1]


def _plain(schema: Any) -> Any:
    """Rule 4. What begins with `__` is fastavro's own, by which a file could pass for one that it has checked."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    size = schema.get("size") if schema.get("type") == "fixed" else None
    is_short = isinstance(size, int) and size <= MAX_FIXED
    return {
        key: _plain(value)
        for key, value in schema.items()
        if not key.startswith("__") and (is_short or key != "logicalType")
    }


def _costs(schema: Any, named: dict[str, tuple[int, int] | None]) -> tuple[int, int]:
    """Return how many bytes a value has at least, and how many values without bytes are in it at most (rules 2 and 3)."""
    if isinstance(schema, list):
        kinds = [_costs(each, named) for each in schema]
        return 1 + min(least for least, _ in kinds), max(0, *(free - 1 for _, free in kinds))
    if isinstance(schema, str):
        if schema in named:
            found = named[schema]
            if found is None:
                raise Unreadable("it has a type that contains itself")
            return found
        return (0, 1) if schema == "null" else (1, 0)
    kind = schema["type"]
    match kind:
        case "record" | "error":
            named[schema["name"]] = None  # until it is complete
            fields = [_costs(each["type"], named) for each in schema["fields"]]
            least = sum(each for each, _ in fields)
            found = least, sum(free for _, free in fields) + (not least)
            named[schema["name"]] = found
            return found
        case "array" | "map":
            least, free = _costs(schema["items" if kind == "array" else "values"], named)
            if free > least + (kind == "map"):
                raise Unreadable("it has an array of values without bytes")
            return 1, 0
        case "fixed":
            named[schema["name"]] = found = (schema["size"], int(not schema["size"]))
            return found
        case "enum":
            named[schema["name"]] = (1, 0)
            return 1, 0
        case _:
            return _costs(kind, named)


def _number(source: io.BytesIO) -> int:
    value = shift = 0
    while True:
        [byte] = source.read(1) or [0x100]
        if byte > 0xFF or shift > 63:
            raise Unreadable("it ends too early")
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7


def _bytes(source: io.BytesIO) -> bytes:
    length = _number(source)
    found = source.read(max(0, length))
    if len(found) != length:
        raise Unreadable("it ends too early")
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
