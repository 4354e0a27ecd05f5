"""Files of others are hostile: reading one is bounded, whatever it decompresses to."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zlib
from typing import Any

import cramjam
import pytest

from lakewarden.handlers.avro import read_avro
from lakewarden.handlers.avro_blocks import MAX_BYTES, MAX_RECORDS, _sized, _varint
from lakewarden.handlers.hudi.metadata import read_metadata as read_hudi
from lakewarden.handlers.hudi.timeline import UnreadableHudi
from lakewarden.handlers.iceberg.metadata import read_metadata
from lakewarden.handlers.observations import UnreadableCommit
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


def test_gzipped_metadata_beyond_the_limit_are_unreadable() -> None:
    with pytest.raises(UnreadableCommit):
        read_metadata(gzip.compress(bytes(MAX_BYTES + 1)))


def test_the_watchers_memory_is_bounded() -> None:
    code = "from lakewarden.agent.watching.foreground import MEMORY_BYTES, limit_memory as f; f(); bytearray(MEMORY_BYTES)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stderr.rstrip().endswith("MemoryError")
