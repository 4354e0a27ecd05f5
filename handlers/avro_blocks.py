"""Reads files of Avro records, within limits.

A writer of the table can put anything there, so memory and time are bounded before fastavro sees a byte:

1. A file has at most `MAX_BYTES` uncompressed, and `MAX_RECORDS` records, which may be empty. Each block is decompressed here,
   with the rest of that limit, and passed on uncompressed.
2. A reader names the fields that it wants. fastavro skips all others: statistics of columns are most of a manifest.
3. At most `MAX_VALUES` wanted values are made, with their records. The schema says how many are in a record, and how many a byte
   of an array or a map can have at most. If that is too many, the values of the file are counted before they are made.
4. Values that cost no bytes (a null, a record without fields) are counted by the schema: at most `MAX_RECORDS` in all records.
   An array of such values is refused.
5. A type that contains itself is refused: fastavro follows it until the process ends. No table format has one.
6. Of logical types, only decimals and UUIDs of a fixed size are kept. Python's years end at 9999, and a decimal of a
   megabyte takes minutes.
"""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import fastavro

from lakewarden.events.inflate import Codec, InflateError, inflate_deflate, inflate_snappy, inflate_zstd
from lakewarden.handlers.unreadable import MAX_VALUES, Unreadable, json_of

MAX_BYTES = 128 * 1024 * 1024
"""Limit of one file, uncompressed: twice the metadata of a commit of 100,000 files."""
MAX_RECORDS = 1_000_000
MAX_SCHEMA_BYTES = 1024 * 1024
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


Wanted: TypeAlias = Mapping[str, Any]
"""The fields of a record that are read, each with those of the records in it. None: all."""


def fields(*names: str, **nested: Wanted) -> Wanted:
    """Return fields that are wanted as a whole, and those of whose records only some are."""
    return dict.fromkeys(names) | nested


def records_of(body: bytes, wanted: Wanted | None) -> Iterator[Any]:
    """Return the records of a file, with the wanted fields. Raises `ValueError`."""
    plain, schema = uncompressed(body, wanted)
    return iter(fastavro.reader(io.BytesIO(plain), reader_schema=schema))


def uncompressed(body: bytes, wanted: Wanted | None = None) -> tuple[bytes, Any]:
    """Return the same file without compression, and the schema of its wanted fields. Raises `ValueError`."""
    source = io.BytesIO(body)
    if source.read(4) != _MAGIC:
        raise Unreadable("it begins otherwise")
    meta: dict[bytes, bytes] = {}
    for _ in _items(source):
        key = _bytes(source)
        meta[key] = _bytes(source)
    sync = source.read(_SYNC)
    schema = BoundedSchema.of(meta.get(b"avro.schema", b""), wanted)
    meta[b"avro.schema"] = json.dumps(schema.written).encode()
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
    left, records, contents = MAX_BYTES, 0, list[tuple[int, bytes]]()
    while source.tell() < len(body):
        count, block = _number(source), _bytes(source)
        records += count
        if count < 0 or records * max(1, schema.costs.free) > MAX_RECORDS:
            raise Unreadable(f"it has more than {MAX_RECORDS:,} records, or values without bytes")
        try:
            content = block if inflate is None else inflate(block, left)
        except InflateError as error:
            raise Unreadable(f"a block is damaged, or the file has more than {MAX_BYTES:,} bytes") from error
        left -= len(content)
        if source.read(_SYNC) != sync:
            raise Unreadable("a block ends otherwise")
        contents.append((count, content))
        found += [_varint(count), _sized(content), sync]
    schema.require_few(contents)
    return b"".join(found), schema.read


class _Costs(NamedTuple):
    """What a value of a type costs."""

    least: int
    """Bytes at least."""
    free: int = 0
    """Values without bytes in it at most (rule 4)."""
    most: int = 1
    """Wanted values in it, with itself, but for those of arrays and maps."""
    density: float = 0.0
    """Wanted values for each byte of an array or a map in it at most (rule 3)."""


@dataclass(slots=True)
class BoundedSchema:
    """The schema of a file, with the rules of this module."""

    written: Any
    parsed: Any
    """As fastavro knows it."""
    read: Any
    """With the wanted fields only. None: with all."""
    costs: _Costs
    _named: dict[str, Any] = field(repr=False)
    """Its types that have names, by these."""

    @classmethod
    def of(cls, text: bytes, wanted: Wanted | None) -> "BoundedSchema":
        """Raises `ValueError` if the schema has no bound."""
        if len(text) > MAX_SCHEMA_BYTES:
            raise Unreadable(f"its schema has more than {MAX_SCHEMA_BYTES:,} bytes")
        written = _plain(json_of(text))
        named: dict[str, Any] = {}
        parsed = fastavro.parse_schema(written, named)
        costs = _costs(parsed, wanted, {})
        read = None if wanted is None else _wanted(parsed, wanted, named, set())
        return cls(written, parsed, read, costs, named)

    def require_few(self, blocks: list[tuple[int, bytes]]) -> None:
        """Raise `Unreadable` if blocks of records have too many values (rule 3)."""
        records, size = sum(count for count, _ in blocks), sum(len(content) for _, content in blocks)
        if records * self.costs.most + size * self.costs.density <= MAX_VALUES:
            return
        left = MAX_VALUES if self.costs.density else 0
        for count, content in blocks:
            source = io.BytesIO(content)
            for _ in range(count):
                left = self._walk(source, self.parsed, left)

    def _walk(self, source: io.BytesIO, schema: Any, left: int) -> int:
        """Pass over a value. Returns `left` without the values that are in it."""
        if not left:
            raise Unreadable(f"it has more than {MAX_VALUES:,} values")
        left -= 1
        if isinstance(schema, list):
            schema = schema[_number(source)]
        if isinstance(schema, str):
            schema = self._named.get(schema, schema)
        kind = schema if isinstance(schema, str) else schema["type"]
        match kind:
            case "int" | "long" | "enum":
                _number(source)
            case "bytes" | "string":
                _bytes(source)
            case "null" | "boolean" | "float" | "double" | "fixed":
                source.read(schema["size"] if kind == "fixed" else _SIZES[kind])
            case "record" | "error":
                for each in schema["fields"]:
                    left = self._walk(source, each["type"], left)
            case "array" | "map":
                items = schema["items" if kind == "array" else "values"]
                for _ in _items(source):
                    if kind == "map":
                        left = self._walk(source, "string", left)
                    left = self._walk(source, items, left)
            case _:
                left = self._walk(source, kind, left)
        return left


_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def _items(source: io.BytesIO) -> Iterator[None]:
    """Yield as often as an array or a map has items."""
    while count := _number(source):
        if count < 0:
            _number(source)  # the size of the block
        yield from repeat(None, abs(count))


def _wanted(schema: Any, wanted: Wanted | None, named: Mapping[str, Any], known: set[str]) -> Any:
    """Return a schema with the wanted fields. `known`: the named types that it has already."""
    if isinstance(schema, list):
        return [_wanted(each, wanted, named, known) for each in schema]
    if isinstance(schema, str):
        return (
            schema if schema in known or schema not in named else _wanted(named[schema], wanted, named, known)
        )
    known.update([schema["name"]] if "name" in schema else ())
    match schema["type"]:
        case "record" | "error":
            kept = [each for each in schema["fields"] if wanted is None or each["name"] in wanted]
            below = [_wanted(each["type"], wanted and wanted[each["name"]], named, known) for each in kept]
            columns = [{"name": each["name"], "type": kind} for each, kind in zip(kept, below, strict=True)]
            return {"type": schema["type"], "name": schema["name"], "fields": columns}
        case "array":
            return {"type": "array", "items": _wanted(schema["items"], wanted, named, known)}
        case "map":
            return {"type": "map", "values": _wanted(schema["values"], wanted, named, known)}
        case _:
            return schema


def _plain(schema: Any) -> Any:
    """Rule 6. What begins with `__` is fastavro's own, by which a file could pass for one that it has checked."""
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


def _costs(schema: Any, wanted: Wanted | None, named: dict[str, _Costs | None]) -> _Costs:
    if isinstance(schema, list):
        kinds = [_costs(each, wanted, named) for each in schema]
        free = max(0, *(each.free - 1 for each in kinds))
        most, density = max(each.most for each in kinds), max(each.density for each in kinds)
        return _Costs(1 + min(each.least for each in kinds), free, most, density)
    if isinstance(schema, str):
        if schema in named:
            found = named[schema]
            if found is None:
                raise Unreadable("it has a type that contains itself")
            return found
        return _Costs(0, 1) if schema == "null" else _Costs(1)
    kind = schema["type"]
    match kind:
        case "record" | "error":
            named[schema["name"]] = None  # until it is complete
            columns = [
                (each["name"], _costs(each["type"], wanted and wanted.get(each["name"]), named))
                for each in schema["fields"]
            ]
            kept = [each for name, each in columns if wanted is None or name in wanted]
            least = sum(each.least for _, each in columns)
            found = _Costs(
                least,
                sum(each.free for _, each in columns) + (not least),
                1 + sum(each.most for each in kept),
                max((each.density for each in kept), default=0.0),
            )
            named[schema["name"]] = found
            return found
        case "array" | "map":
            is_map = kind == "map"
            item = _costs(schema["values" if is_map else "items"], wanted, named)
            if item.free > item.least + is_map:
                raise Unreadable("it has an array of values without bytes")
            density = (item.most + is_map) / max(1, item.least + is_map)
            return _Costs(1, density=max(density, item.density))
        case "fixed":
            named[schema["name"]] = found = _Costs(schema["size"], int(not schema["size"]))
            return found
        case "enum":
            named[schema["name"]] = found = _Costs(1)
            return found
        case _:
            return _costs(kind, wanted, named)


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
