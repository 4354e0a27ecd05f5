"""Files of others are hostile: reading one is bounded, whatever it decompresses to."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import zlib
from contextlib import suppress
from decimal import Decimal
from typing import Any

import cramjam
import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyarrow import orc

from lakewarden.handlers import avro_blocks
from lakewarden.handlers.avro import read_avro
from lakewarden.handlers.avro_blocks import MAX_BYTES, MAX_RECORDS, _sized, _varint
from lakewarden.handlers.hudi.metadata import read_metadata as read_hudi
from lakewarden.handlers.hudi.timeline import UnreadableHudi
from lakewarden.handlers.iceberg.metadata import read_metadata
from lakewarden.handlers.observations import UnreadableCommit
from tests import recorded_iceberg
from tests.unit.handlers.avro_files import avro_file

SCHEMA = {"type": "record", "name": "entry", "fields": [{"name": "path", "type": "string"}]}
EMPTY = {"type": "record", "name": "entry", "fields": []}


def a_block(codec: str, count: int, block: bytes, schema: dict[str, Any] = SCHEMA) -> bytes:
    """A file with one block, which may have any content."""
    meta = {b"avro.schema": json.dumps(schema).encode(), b"avro.codec": codec.encode()}
    sized = [_sized(each) for pair in meta.items() for each in pair]
    return b"".join(
        [b"Obj\x01", _varint(len(meta)), *sized, b"\0", b"s" * 16, _varint(count), _sized(block), b"s" * 16]
    )


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard"])
def test_each_codec_of_the_formats_is_read(codec: str) -> None:
    records = [{"path": f"p/{number}" * 20} for number in range(500)]

    assert read_avro(avro_file(*records, codec=codec, sync_interval=1_000)) == records


def deflated(size: int) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(bytes(size)) + packer.flush()


HOSTILE: dict[str, bytes] = {
    "gigabytes in deflate": a_block("deflate", 1, deflated(MAX_BYTES + 1)),
    "gigabytes in zstd": a_block("zstandard", 1, bytes(cramjam.zstd.compress(bytes(MAX_BYTES + 1)))),
    "gigabytes in snappy": a_block("snappy", 1, b"\xff\xff\xff\xff\x0f" + bytes(20)),
    "empty records": a_block("null", MAX_RECORDS + 1, b"", EMPTY),
    "a number of records that no long has": a_block("null", 2**63, b"", EMPTY),
    "another codec": a_block("xz", 1, b"x"),
    "a length behind the end": a_block("null", 1, b"x")[:-17],
    "a number without an end": b"Obj\x01" + b"\xff" * 20,
    "nothing": b"",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_a_file_beyond_the_limits_is_unreadable(body: bytes) -> None:
    """291 KB took 573 MB. The watcher of all tables ended, and in a container the agent with it."""
    with pytest.raises(UnreadableCommit):
        read_avro(body)
    with pytest.raises(UnreadableHudi):
        read_hudi(body)


def a_schema(*fields: Any, **more: Any) -> dict[str, Any]:
    named = [{"name": f"f{at}", "type": each} for at, each in enumerate(fields)]
    return {"type": "record", "name": "e", "fields": named} | more


NULLS = {"type": "array", "items": "null"}
WITHOUT_BYTES: dict[str, tuple[Any, int, bytes]] = {
    "an array of nulls": (a_schema(NULLS), 1, _varint(200_000_000) + b"\0"),
    "a map of arrays of them": (a_schema({"type": "map", "values": NULLS}), 1, b""),
    "an array of records of nulls": (a_schema({"type": "array", "items": a_schema("null", "null", name="n")}), 1, b""),
    "one byte for 300 nulls": (a_schema({"type": "array", "items": ["int", a_schema(*["null"] * 300, name="n")]}), 1, b""),
    "records of 300 nulls": (a_schema(*["null"] * 300), 1_000_000, b""),
    "fixed values of no bytes": (a_schema({"type": "fixed", "name": "z", "size": 0}, "null"), 1_000_000, b""),
    "a record in itself": (a_schema(["null", "e"]), 1, b"\2" * 1_000_000 + b"\0"),
    "a record in another one's name": (
        a_schema(a_schema(["null", "x.e"], name="y.e"), name="x.e"), 1, b"\2" * 1_000_000 + b"\0",
    ),
    "fastavro's own mark": (a_schema(["null", "e"], __fastavro_parsed=True, __named_schemas={}), 1, b"\2" * 1_000_000),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "count", "block"), WITHOUT_BYTES.values(), ids=WITHOUT_BYTES)
def test_values_that_cost_no_bytes_are_counted_before_they_are_made(
    schema: Any, count: int, block: bytes
) -> None:
    with pytest.raises(UnreadableCommit, match=r"values without bytes|contains itself"):
        read_avro(a_block("null", count, block, schema))


def kinds(named: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Types, each with the strategy of its values. `$` stands for the number of a name."""
    plain: list[tuple[Any, Any]] = [
        ("null", st.none()), ("boolean", st.booleans()), ("long", st.integers(-9, 9)), ("double", st.just(1.5)),
        ("string", st.text("ab", max_size=2)), ("bytes", st.binary(max_size=2)),
        ({"type": "fixed", "name": "$", "size": 1}, st.binary(min_size=1, max_size=1)),
        ({"type": "enum", "name": "$", "symbols": ["A"]}, st.just("A")),
    ]  # fmt: skip
    return st.sampled_from(plain) | st.one_of(
        named.map(lambda of: ({"type": "array", "items": of[0]}, st.lists(of[1], max_size=9))),
        named.map(
            lambda of: ({"type": "map", "values": of[0]}, st.dictionaries(st.text("ab"), of[1], max_size=4))
        ),
        named.filter(lambda of: of[0] != "null" and not isinstance(of[0], list)).map(
            lambda of: (["null", of[0]], st.none() | of[1])
        ),
        st.lists(named, min_size=1, max_size=3).map(record),
    )


def record(columns: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    written = [{"name": f"f{at}", "type": kind} for at, (kind, _) in enumerate(columns)]
    values = st.fixed_dictionaries({f"f{at}": of for at, (_, of) in enumerate(columns)})
    return {"type": "record", "name": "$", "fields": written}, values


KINDS: st.SearchStrategy[tuple[Any, Any]] = st.deferred(lambda: kinds(KINDS))


def named(schema: Any) -> Any:
    """The schema with another name for each type, one of which is used again."""
    parts = json.dumps(schema).split('"$"')
    return json.loads("".join(f'{part}"n{at}"' for at, part in enumerate(parts[:-1])) + parts[-1])


def values_in(found: Any) -> int:
    """A map's keys count, too."""
    below = found if isinstance(found, list) else list(found.values()) if isinstance(found, dict) else []
    keys = sum(not key.startswith("f") for key in found) if isinstance(found, dict) else 0
    return 1 + keys + sum(map(values_in, below))


def only(value: Any, wanted: Any) -> Any:
    """The value with the wanted fields of its records, which are called f0, f1, f2."""
    if isinstance(value, list):
        return [only(each, wanted) for each in value]
    if isinstance(value, dict):
        is_record = any(each.startswith("f") for each in value)
        below = {key: each for key, each in value.items() if not is_record or wanted is None or key in wanted}
        return {
            key: only(each, wanted and wanted[key] if is_record else wanted) for key, each in below.items()
        }
    return value


WANTED = st.none() | st.dictionaries(st.sampled_from(["f0", "f1", "f2"]), st.none() | st.just({"f0": None}))


@given(st.lists(KINDS, min_size=1, max_size=3).map(record), WANTED, st.integers(1, 60), st.data())
def test_only_wanted_values_are_made_and_not_more_than_the_limit(
    kind: tuple[Any, Any], wanted: Any, most: int, data: st.DataObject
) -> None:
    records = data.draw(st.lists(kind[1], min_size=1, max_size=5))
    schema, body = named(kind[0]), io.BytesIO()
    fastavro.writer(body, schema, records)
    whole, found, why = [], None, ""
    with suppress(UnreadableCommit):  # values without bytes
        whole = read_avro(body.getvalue())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro_blocks, "MAX_VALUES", most)
        try:
            found = read_avro(body.getvalue(), wanted)
        except UnreadableCommit as error:
            why = str(error)
    if found is not None:
        assert found == [only(each, wanted) for each in whole]
        assert sum(map(values_in, found)) <= most
    elif whole:
        assert "more than" in why
        assert values_in(whole) > most or wanted is not None


def test_a_decimal_of_a_megabyte_is_read_as_bytes_and_a_short_one_as_a_number() -> None:
    long = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
    short = {"type": "fixed", "name": "d", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 2}

    [found] = read_avro(a_block("null", 1, _sized(b"\x7f" * 1_000_000) + b"\1\0", a_schema(long, short)))

    assert len(found["f0"]) == 1_000_000
    assert found["f1"] == Decimal("2.56")


JSON = {
    "objects": (b"[" + b"{}," * 5_000_000 + b"{}]", "more than 4,000,000 values"),
    "depth": (b"[" * 100_000, "nested too deeply"),
    "a number of a megabyte": (b"9" * 1_000_000, "of another type or form|no record"),
}


@pytest.mark.parametrize(("body", "why"), JSON.values(), ids=JSON)
def test_json_is_bounded(body: bytes, why: str) -> None:
    """58 KB of gzip took 1.3 GB."""
    with pytest.raises(UnreadableCommit, match=why):
        read_metadata(gzip.compress(body, 1))
    with pytest.raises(UnreadableHudi, match=why):
        read_hudi(body)


def test_metadata_packed_by_zstd_is_read() -> None:
    body = recorded_iceberg.recorded("metadata/v8.metadata.json")

    assert read_metadata(bytes(cramjam.zstd.compress(body))) == read_metadata(body)


def test_a_manifest_in_orc_is_read_and_one_in_parquet_says_so() -> None:
    rows = [{"_KIND": 0, "_PARTITION": b"\1", "_FILE": {"_FILE_NAME": "a"}}]
    body = io.BytesIO()
    orc.write_table(pa.Table.from_pylist(rows), body)

    assert read_avro(body.getvalue()) == rows
    with pytest.raises(UnreadableCommit, match="Parquet"):
        read_avro(b"PAR1")
    with pytest.raises(UnreadableCommit, match="the ORC file can't be read"):
        read_avro(body.getvalue()[:40])


def test_without_pyarrow_orc_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(UnreadableCommit, match="pip install pyarrow"):
        read_avro(b"ORC")


def test_gzipped_metadata_beyond_the_limit_are_unreadable() -> None:
    with pytest.raises(UnreadableCommit):
        read_metadata(gzip.compress(bytes(MAX_BYTES + 1)))


def test_the_watchers_memory_is_bounded() -> None:
    code = "from lakewarden.agent.watching.foreground import MEMORY_BYTES, limit_memory as f; f(); bytearray(MEMORY_BYTES)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stderr.rstrip().endswith("MemoryError")
