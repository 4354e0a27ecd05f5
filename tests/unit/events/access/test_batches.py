from __future__ import annotations

import struct
import subprocess
import sys
import tomllib
from pathlib import Path

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBase, DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

from lakewarden.events import DECISION_RECORD, Undecodable, decode
from lakewarden.events.access import batches
from lakewarden.events.access.batches import MAX_BATCH, readable_batches, readable_topics

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
HEADER = DefaultRecordBase.HEADER_STRUCT
ROOT = Path(__file__).parents[4]


def batch(codec: str = "none", values: tuple[bytes, ...] = (b"one", b"two"), offset: int = 7) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=CODECS[codec],
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for delta, value in enumerate(values):
        builder.append(delta, timestamp=1_000 + delta, key=b"k", value=value, headers=[("h", b"v")])
    return at(bytes(builder.build()), offset)


def at(made: bytes, offset: int) -> bytes:
    return struct.pack(">q", offset) + made[8:]


def altered(made: bytes, *, attributes: int | None = None, records: bytes | None = None) -> bytes:
    """With another codec or other records, and a right checksum: as a client may send it."""
    fields = list(HEADER.unpack_from(made))
    records = made[HEADER.size :] if records is None else records
    fields[1] = HEADER.size - 12 + len(records)
    fields[5] = fields[5] if attributes is None else attributes
    made = HEADER.pack(*fields) + records
    return made[:17] + struct.pack(">I", calc_crc32c(made[21:])) + made[21:]


def read(content: bytes) -> list[tuple[int, bytes | None]]:
    records, found = MemoryRecords(content), []
    while records.has_next():
        each = records.next_batch()
        assert each is not None
        assert each.validate_crc()
        found += [(record.offset, record.value) for record in each]
    return found


def readable(content: bytes) -> list[tuple[int, bytes | None]]:
    return read(readable_batches(content)[0])


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_of_each_codec_is_read(codec: str) -> None:
    values = (b"one", b"x" * 200_000, b"", bytes(range(256)) * 4_000)
    content = batch(codec, values) + batch("none", (b"last",), offset=11)

    assert readable(content) == [*enumerate(values, 7), (11, b"last")]


def test_what_java_writes_as_snappy_and_as_several_gzip_members_is_read() -> None:
    plain = batch()[HEADER.size :]
    blocks = [bytes(cramjam.snappy.compress_raw(part)) for part in (plain[:10], plain[10:])]
    java = (
        b"\x82SNAPPY\x00"
        + struct.pack(">ii", 1, 1)
        + b"".join(struct.pack(">i", len(each)) + each for each in blocks)
    )
    members = b"".join(bytes(cramjam.gzip.compress(part)) for part in (plain[:10], plain[10:]))

    assert readable(altered(batch(), attributes=CODECS["snappy"], records=java)) == [(7, b"one"), (8, b"two")]
    assert readable(altered(batch(), attributes=CODECS["gzip"], records=members)) == [
        (7, b"one"),
        (8, b"two"),
    ]


def test_uncompressed_batches_are_passed_on_as_they_are() -> None:
    content = batch() + batch(offset=9)

    assert readable_batches(content)[0] is content


def unreadable() -> dict[str, bytes]:
    plain = batch()
    bad_header = plain[HEADER.size :].replace(b"\x02h\x02v", b"\x02\xff\x02v")
    bomb = bytes(cramjam.zstd.compress(bytes(100_000_000)))
    snappy_bomb = b"\xff\xff\xff\xff\x07" + b"\0" * 20
    lz4_bomb = bytes(cramjam.lz4.compress(bytes(MAX_BATCH + 1)))
    gzip_bomb = bytes(cramjam.gzip.compress(bytes(MAX_BATCH + 1)))
    damaged = {
        f"damaged {codec}": altered(batch(codec), records=batch(codec)[HEADER.size : -5]) for codec in CODECS
    }
    rubbish = {f"no {codec}": altered(plain, attributes=CODECS[codec]) for codec in CODECS if codec != "none"}
    return {
        **damaged,
        **rubbish,
        "a header that isn't UTF-8": altered(plain, records=bad_header),
        "an unknown codec": altered(plain, attributes=6),
        "30 times the limit in zstd": altered(plain, attributes=CODECS["zstd"], records=bomb),
        "a size beyond the limit in snappy": altered(plain, attributes=CODECS["snappy"], records=snappy_bomb),
        "beyond the limit in lz4": altered(plain, attributes=CODECS["lz4"], records=lz4_bomb),
        "beyond the limit in gzip": altered(plain, attributes=CODECS["gzip"], records=gzip_bomb),
        "more bytes than records": altered(plain, records=plain[HEADER.size :] + b"\0\0\0"),
    }


@pytest.mark.parametrize("bad", unreadable().values(), ids=unreadable())
def test_a_batch_that_cannot_be_read_is_one_refused_record_and_the_others_are_read(bad: bytes) -> None:
    content = batch("zstd", (b"before",), offset=6) + bad + batch("lz4", (b"after",), offset=9)

    before, (offset, value), after = readable(content)

    assert (before, offset, after) == ((6, b"before"), 7, (9, b"after"))
    refused = decode(DECISION_RECORD, value)
    assert isinstance(refused, Undecodable)
    assert refused.reason.startswith("a batch of 2 records, at the offsets 7 to 8, can't be read: ")
    [made] = [DefaultRecordBatch(part) for part in [readable_batches(bad)[0]]]
    assert made.next_offset == 9


def test_a_batch_with_a_wrong_checksum_is_left_to_aiokafka() -> None:
    content = batch("lz4")[:-1] + b"?"

    assert readable_batches(content)[0] == content


def test_a_batch_that_the_broker_has_cut_off_stays_cut_off() -> None:
    content = batch("lz4") + batch("lz4", offset=9)[:-3]

    assert readable(content) == [(7, b"one"), (8, b"two")]


def test_one_response_is_decompressed_in_bounded_memory_and_the_next_one_has_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "MAX_RESPONSE", 1_000_000)
    large = [batch("zstd", (bytes([number]) * 900_000,), offset=number) for number in range(5)]

    [(_, [(_, _, first), (_, _, second)])] = readable_topics(
        [("t", [(0, 0, b"".join(large[:4])), (1, 0, large[4])])]
    )

    assert [offset for offset, _ in read(first)] == [0, 1]
    assert second == b""


ALONE = """
import sys
from importlib import abc, metadata
allowed = set(sys.argv[1].split(","))
names = {top: set(each.lower().replace("_", "-") for each in found) for top, found in metadata.packages_distributions().items()}
class Finder(abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        found = names.get(name.partition(".")[0])
        if found and not found & allowed:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Finder())
from lakewarden.events.access.batches import readable_batches
from aiokafka.codec import has_lz4, has_snappy, has_zstd
assert has_lz4() and has_snappy() and has_zstd()
content = sys.stdin.buffer.read()
sys.stdout.buffer.write(readable_batches(content)[0])
"""


@pytest.mark.parametrize("extra", [None, "agent"])
def test_every_codec_is_read_with_nothing_but_what_is_installed_with_the_package_or_in_the_image(
    extra: str | None,
) -> None:
    assert extra is None or f"--no-dev --extra {extra} " in (ROOT / "Dockerfile").read_text()
    content = b"".join(batch(codec, offset=7 + 2 * number) for number, codec in enumerate(CODECS))

    alone = subprocess.run(
        [sys.executable, "-c", ALONE, ",".join(locked(extra))],
        input=content,
        capture_output=True,
        check=False,
    )

    assert alone.returncode == 0, alone.stderr.decode()
    assert [offset for offset, _ in read(alone.stdout)] == list(range(7, 17))


def locked(extra: str | None) -> set[str]:
    """The packages that `uv sync --no-dev` installs, with this extra."""
    packages = {each["name"]: each for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    found: set[str] = set()
    asked = [("lakewarden", [] if extra is None else [extra])]
    while asked:
        name, extras = asked.pop()
        needed = list(packages[name].get("dependencies", []))
        needed += [
            each
            for wanted in extras
            for each in packages[name].get("optional-dependencies", {}).get(wanted, [])
        ]
        new = name not in found or extras
        found.add(name)
        asked += [(each["name"], each.get("extra", [])) for each in needed if new]
    return found
