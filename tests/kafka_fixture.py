"""The `kafka` fixture: one real broker for each test session, started before the first test that needs it.

It is the broker that `LAKEWARDEN_TEST_KAFKA` names (host:port), else the embedded broker of the product.
"""

from __future__ import annotations

import gc
import hashlib
import os
import re
import shutil
import tempfile
import uuid
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)
from aiokafka.structs import ConsumerRecord, OffsetAndMetadata

from lakewarden.agent.embedded.kafka import EmbeddedKafka
from lakewarden.agent.log import Log
from lakewarden.agent.settings import KafkaSettings

VARIABLE = "LAKEWARDEN_TEST_KAFKA"
MEMORY = Path("/dev/shm")
ROOMY_BYTES = 1 << 30
"""Far more than a run needs: 100 tests leave 12 MB."""
COMPACTION_SOON = {"log.cleaner.backoff.ms": "1000"}
"""Kafka looks every second instead of every 15 for a topic to compact."""


@dataclass(frozen=True, slots=True)
class KafkaServer:
    """A broker that tests share; `topic_prefix` keeps their topics apart."""

    bootstrap_servers: str
    used: str
    """Which broker this is, for the line that the suite prints at its start."""


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A running broker."""
    if named := os.environ.get(VARIABLE):
        yield KafkaServer(named, f"the broker named in {VARIABLE}: {named}")
        return
    kept = tmp_path_factory.mktemp("kafka")
    with tempfile.TemporaryDirectory(prefix="lakewarden-kafka-", dir=_roomy_memory() or kept) as folder:
        with EmbeddedKafka(Path(folder), properties=COMPACTION_SOON) as broker:
            yield KafkaServer(
                broker.bootstrap_servers, f"the embedded {broker.version} at {broker.bootstrap_servers}"
            )
        shutil.copy(Path(folder) / "broker.log", kept)


def _roomy_memory() -> Path | None:
    """A file system in memory, if there is one with room. A container's usually has 64 MB.

    Each test creates topics, 55 files of Kafka's. On disk they cost the broker twice the CPU time, and deleting the 80,000 of a
    whole run took three minutes.
    """
    try:
        return MEMORY if shutil.disk_usage(MEMORY).free >= ROOMY_BYTES else None
    except OSError:
        return None


@pytest.fixture
def topic_prefix(request: pytest.FixtureRequest) -> str:
    """A prefix for the topics of this test alone; it contains the test's name, which then appears in the broker's log."""
    name = re.sub(r"[^A-Za-z0-9_]+", "-", request.node.name)[:60]
    return f"{name}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def swept() -> Iterator[None]:
    """Collect what aiokafka leaves of a connection that it was opening when its client was stopped.

    For tests that stop Kafka while clients use it, or stop clients that connect again and again. Python warns of the open
    socket when it collects it; without this fixture that warning fails a later test.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


TAKES_KAFKA_AWAY = [pytest.mark.usefixtures("swept"), pytest.mark.filterwarnings("ignore::ResourceWarning")]
"""Marks of a module whose tests stop Kafka while clients use it."""


@asynccontextmanager
async def administering(bootstrap_servers: str) -> AsyncGenerator[AIOKafkaAdminClient]:
    """An administrator's client, while the block runs."""
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def read_to_end(
    settings: KafkaSettings, starts: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, list[ConsumerRecord]]:
    """All records of these partitions, from their start offsets on."""
    async with Log(settings) as log:
        return await log.read(starts)


@contextmanager
def counted_reads() -> Iterator[Counter[tuple[str, int, int]]]:
    """How often each record is read, by topic, partition and offset. The last record before a checkpoint is looked up besides."""
    read: Counter[tuple[str, int, int]] = Counter()
    batches = Log.batches

    async def counting(log: Log, starts: Any, stops: Any = None, **more: Any) -> AsyncGenerator[Any]:
        async with aclosing(batches(log, starts, stops, **more)) as found:
            async for partition, records in found:
                if stops is None:
                    read.update((*partition, each.offset) for each in records)
                yield partition, records

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "batches", counting)
        yield read


async def committed_offsets(settings: KafkaSettings) -> dict[TopicPartition, OffsetAndMetadata]:
    """Those of the agents' group."""
    async with Log(settings) as log:
        return await log.committed()


class _Altered(Response):  # type: ignore[misc]  # aiokafka has no type annotations
    API_KEY = 51
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            CompactArray(
                ("user", CompactString()),
                ("error_code", Int16),
                ("error_message", CompactString()),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _Alter(RequestStruct):  # type: ignore[misc]
    API_KEY = 51
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Altered
    SCHEMA = Schema(
        ("deletions", CompactArray(("name", CompactString()), ("mechanism", Int8), ("tags", TaggedFields))),
        (
            "upsertions",
            CompactArray(
                ("name", CompactString()),
                ("mechanism", Int8),
                ("iterations", Int32),
                ("salt", CompactBytes),
                ("salted_password", CompactBytes),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _AlterScramCredentials(Request[_Alter]):  # type: ignore[misc]
    API_KEY: ClassVar[int] = 51

    def __init__(self, user: str, password: str) -> None:
        self.user, self.password = user, password

    def build(self, request_struct_class: type[_Alter]) -> _Alter:
        salt, iterations, sha256 = os.urandom(16), 4096, 1
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), salt, iterations)
        return request_struct_class([], [(self.user, sha256, iterations, salt, salted, {})], {})


async def set_scram_password(bootstrap_servers: str, user: str, password: str) -> None:
    """A user of SCRAM-SHA-256, new or not. Kafka's own tool isn't among the jars of a broker."""
    async with administering(bootstrap_servers) as admin:
        answer = await admin._send_request(_AlterScramCredentials(user, password))
        assert [(code, text) for _, code, text, _ in answer.results] == [(0, None)]
