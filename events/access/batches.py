"""Read every batch that a broker accepts, whatever its compression and its content.

aiokafka ends a consumer's read at a batch that it can't read: a codec whose library is missing, damaged compressed data, or a
header whose name isn't UTF-8. The broker keeps such a batch for days, and every read would end there.

1. Compressed batches are decompressed here, with all codecs of Kafka, and passed on as uncompressed ones.
2. A batch that can't be read, or that has more than `MAX_BATCH` bytes uncompressed, becomes one record in its place. Its value is
   `UNREADABLE` and the reason, so `decode` refuses it like any record that is no event.
3. Of one response, about `MAX_RESPONSE` bytes are decompressed. The batches behind that are left out; the next fetch has them.
4. A batch whose checksum is wrong is passed on, and aiokafka raises: the network or the broker's disk has damaged it, and another
   read may succeed.
"""

import gzip
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cramjam
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.default_records import DefaultRecordBase, DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from lakewarden.events.codec import UNREADABLE
from lakewarden.events.inflate import (
    Codec,
    InflateError,
    inflate_gzip,
    inflate_lz4,
    inflate_snappy,
    inflate_zstd,
)

MAX_BATCH = 16 * 1024 * 1024
"""Uncompressed bytes of a batch: 16 of the largest events. A compressed batch of 1 MB could have 30 GB."""
MAX_RESPONSE = 2 * MAX_BATCH
"""Uncompressed bytes of the batches of one response that were compressed."""

_HEADER = DefaultRecordBase.HEADER_STRUCT
_OVERHEAD = struct.calcsize(">qi")
_CRC, _ATTRIBUTES = DefaultRecordBase.CRC_OFFSET, DefaultRecordBase.ATTRIBUTES_OFFSET


class _UnreadableError(Exception):
    """The batch can't be read."""


def readable_codecs() -> tuple[str, ...]:
    """The compressions of Kafka that this process reads, each tried."""
    compressed: dict[str, Callable[[], Any]] = {
        "gzip": lambda: gzip.compress(b"x"),
        "snappy": lambda: cramjam.snappy.compress_raw(b"x"),
        "lz4": lambda: cramjam.lz4.compress(b"x"),
        "zstd": lambda: cramjam.zstd.compress(b"x"),
    }
    found = []
    for name, inflate in _CODECS.values():
        with suppress(InflateError, AttributeError):  # a build of the library without this codec
            inflate(bytes(compressed[name]()), 1)
            found.append(name)
    return tuple(found)


def read_every_batch(consumer: Any) -> None:
    """Let a consumer read every batch. aiokafka has no hook for it, so what its inner client returns is replaced."""
    connections = consumer._client  # noqa: SLF001
    send = connections.send

    async def send_and_read(node_id: Any, request: Any, **more: Any) -> Any:
        response = await send(node_id, request, **more)
        if isinstance(request, FetchRequest):
            response.topics = readable_topics(response.topics)
        return response

    connections.send = send_and_read


def readable_topics(topics: Any) -> Any:
    """The topics of a fetch response with readable batches. The batches are the last field of each partition."""
    left = MAX_RESPONSE
    found = []
    for topic, partitions in topics or ():
        answers = []
        for *fields, batches in partitions:
            readable, used = readable_batches(batches or b"", left)
            left -= used
            answers.append((*fields, readable))
        found.append((topic, answers))
    return found


def readable_batches(batches: bytes, left: int = MAX_RESPONSE) -> tuple[bytes, int]:
    """The batches of one partition, uncompressed, and how many bytes were decompressed; those after `left` bytes are left out."""
    found: list[bytes] = []
    position = used = 0
    changed = False
    while position + _HEADER.size <= len(batches):
        (length,) = struct.unpack_from(">i", batches, position + 8)
        end = position + _OVERHEAD + length
        if length < _HEADER.size - _OVERHEAD or end > len(batches):
            break  # cut off by the broker, or of the format before Kafka 0.11
        batch = batches[position:end]
        magic, attributes = batch[16], _HEADER.unpack_from(batch)[5]
        if magic == 2 and not attributes & DefaultRecordBase.CONTROL_MASK:
            compressed = bool(attributes & DefaultRecordBase.CODEC_MASK)
            if compressed and used >= left:
                return b"".join(found), used
            readable = _readable(batch)
            used += len(readable) if compressed else 0
            changed = changed or readable is not batch
            batch = readable
        found.append(batch)
        position = end
    return (b"".join([*found, batches[position:]]) if changed else batches), used


def _readable(batch: bytes) -> bytes:
    if not DefaultRecordBatch(batch).validate_crc():
        return batch
    header = _HEADER.unpack_from(batch)
    codec = header[5] & DefaultRecordBase.CODEC_MASK
    try:
        plain = batch if codec == DefaultRecordBase.CODEC_NONE else _uncompressed(batch, codec)
        for _ in DefaultRecordBatch(plain):
            pass
    except _UnreadableError as error:
        return _refused(batch, str(error))
    except Exception:  # noqa: BLE001 - whatever aiokafka makes of a record that it can't parse
        return _refused(batch, "a record in it is malformed, or the name of a header isn't UTF-8")
    return plain


def _uncompressed(batch: bytes, codec: int) -> bytes:
    name, decompress = _CODECS.get(codec, (f"codec {codec}", None))
    if decompress is None:
        raise _UnreadableError(f"its compression, {name}, is not one of Kafka's")
    try:
        records = decompress(batch[_HEADER.size :], MAX_BATCH)
    except InflateError:
        raise _UnreadableError(
            f"what is compressed with {name} in it is damaged, or has more than {MAX_BATCH} bytes"
        ) from None
    fields = list(_HEADER.unpack_from(batch))
    fields[1] = _HEADER.size - _OVERHEAD + len(records)
    fields[5] &= ~DefaultRecordBase.CODEC_MASK
    return _with_checksum(_HEADER.pack(*fields) + records)


def _with_checksum(batch: bytes) -> bytes:
    checksum = struct.pack(">I", calc_crc32c(batch[_ATTRIBUTES:]))
    return batch[:_CRC] + checksum + batch[_ATTRIBUTES:]


def _refused(batch: bytes, reason: str) -> bytes:
    """A batch in the place of one that can't be read, with one record that has the reason."""
    fields = _HEADER.unpack_from(batch)
    offset, last_delta, time, count = fields[0], fields[6], fields[8], fields[12]
    text = f"a batch of {count} records, at the offsets {offset} to {offset + last_delta}, can't be read: {reason}"
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2 * len(text) + 1024,
    )
    builder.append(0, timestamp=max(time, 0), key=b"", value=UNREADABLE + text.encode(), headers=[])
    made = bytes(builder.build())
    own = list(_HEADER.unpack_from(made))
    own[0], own[6] = offset, last_delta
    return _with_checksum(_HEADER.pack(*own) + made[_HEADER.size :])


_CODECS: dict[int, tuple[str, Codec]] = {
    DefaultRecordBase.CODEC_GZIP: ("gzip", inflate_gzip),
    DefaultRecordBase.CODEC_SNAPPY: ("snappy", inflate_snappy),
    DefaultRecordBase.CODEC_LZ4: ("lz4", inflate_lz4),
    DefaultRecordBase.CODEC_ZSTD: ("zstd", inflate_zstd),
}
