"""Reading the topics of one prefix: one consumer and one admin client, opened when they are first used.

Take-over, the commands and the page read through it, so a question opens two connections, however many topics it looks at.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from typing import Self, TypeAlias, TypeVar

import anyio
import anyio.lowlevel
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord, OffsetAndMetadata

from lakewarden.agent.errors import AgentError, LogCutError
from lakewarden.agent.kafka import START_TIMEOUT_SECONDS, admin_client, partition_count, reader, start_client
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events.access import stop_client

T = TypeVar("T")

POLL_MS = 500
SILENT_SECONDS = 120.0
"""Limit for Kafka to return a record that it has by its own word."""
READ_AT_ONCE = 2_000
"""Records that are folded before other tasks run, about 50 ms."""
ANSWER_MS = 50
"""How long a broker may keep a fetch of a partition without records. It answers the requests of a connection one after the
other, so a question behind such a fetch waits for it."""


Reader: TypeAlias = tuple[int | None, Callable[[ConsumerRecord], None]]
"""From which offset on (None: the beginning) it wants the records of a partition, and what gets them."""
Readers: TypeAlias = Mapping[TopicPartition, Reader]


class Log:
    """The open connection. One task reads at a time: each reading method moves the consumer to its partitions."""

    def __init__(self, settings: KafkaSettings, *, follows: bool = False) -> None:
        """`follows`: mostly to wait for new records, so a broker may keep a fetch for longer."""
        self.settings = settings
        self._wait_ms = POLL_MS if follows else ANSWER_MS
        self.topics = settings.topics
        self._admin: AIOKafkaAdminClient | None = None
        self._consumer: AIOKafkaConsumer | None = None
        self._present: set[str] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for client in (self._consumer, self._admin):
            if client is not None:
                await stop_client(client)
        self._consumer = self._admin = None

    async def admin(self) -> AIOKafkaAdminClient:
        if self._admin is None:
            client = admin_client(self.settings)
            await start_client(client, self.settings)
            self._admin = client
        return self._admin

    async def consumer(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            client = reader(self.settings, fetch_max_wait_ms=self._wait_ms)
            await start_client(client, self.settings)
            self._consumer = client
        return self._consumer

    async def exists(self, topic: str) -> bool:
        """Whether Kafka has a topic and shows it to this user."""
        if self._present is None or topic not in self._present:
            self._present = set(await (await self.admin()).list_topics())
        return topic in self._present

    async def partitions(self, *topics: str) -> list[TopicPartition]:
        """All partitions of these topics; raises `AgentError` if one does not exist."""
        found: list[TopicPartition] = []
        for topic in topics:
            if not await self.exists(topic):
                raise AgentError(
                    f"there is no topic {topic} at {self.settings.bootstrap_servers}; start an agent there first, "
                    "set its prefix ($LAKEWARDEN_TOPIC_PREFIX), or grant this user read or describe on it: Kafka hides topics "
                    "from users without a right"
                )
            count = await partition_count(await self.admin(), topic)
            found += [TopicPartition(topic, number) for number in range(count)]
        return found

    async def committed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of the agents' group with their metadata, which aiokafka's consumer does not return."""
        admin = await self.admin()
        return dict(await with_coordinator(lambda: admin.list_consumer_group_offsets(self.settings.group)))

    async def cluster_id(self) -> str | None:
        found: str | None = (await (await self.admin()).describe_cluster()).get("cluster_id")
        return found

    async def beginnings(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the first record of each of these partitions."""
        return dict(await (await self.consumer()).beginning_offsets(list(partitions))) if partitions else {}

    async def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the next record of each of these partitions."""
        return dict(await (await self.consumer()).end_offsets(list(partitions))) if partitions else {}

    async def offsets_at(
        self, partitions: Iterable[TopicPartition], since_ms: int
    ) -> dict[TopicPartition, int | None]:
        """The first record of each of these partitions that is not older than `since_ms`. A partition without one is left out."""
        found = await (await self.consumer()).offsets_for_times(dict.fromkeys(partitions, since_ms))
        return {partition: at.offset for partition, at in found.items() if at is not None}

    async def starts_at(
        self, partitions: Collection[TopicPartition], since_ms: int
    ) -> dict[TopicPartition, int | None]:
        """As `offsets_at`, and the end of a partition without such a record."""
        return {**await self.ends(partitions), **await self.offsets_at(partitions, since_ms)}

    async def seek(self, starts: Mapping[TopicPartition, int | None]) -> AIOKafkaConsumer:
        """The consumer at these offsets (None: the beginning) of these partitions."""
        consumer = await self.consumer()
        consumer.assign(list(starts))
        for partition, start in starts.items():
            if start is None:
                await consumer.seek_to_beginning(partition)
            else:
                consumer.seek(partition, start)
        return consumer

    async def follow(
        self, starts: Mapping[TopicPartition, int | None]
    ) -> AsyncGenerator[Mapping[TopicPartition, list[ConsumerRecord]]]:
        """The records from these offsets on, in batches; never ends. Close the generator (`aclosing`)."""
        consumer = await self.seek(starts)
        try:
            while True:
                yield await consumer.getmany(timeout_ms=POLL_MS)
        finally:
            consumer.unsubscribe()  # it fetches nothing until the next reading

    async def read(
        self, starts: Mapping[TopicPartition, int | None], stops: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """All records of each partition, from its start offset (None: the beginning) to its current end, or before its stop."""
        found: dict[TopicPartition, list[ConsumerRecord]] = {partition: [] for partition in starts}
        async with aclosing(self.batches(starts, stops)) as batches:
            async for partition, records in batches:
                found[partition].extend(records)
        return found

    async def read_once(self, *readers: Readers) -> dict[TopicPartition, int]:
        """Read each partition once, from where the first of these readers wants it, to its current end. Return where that is."""
        wanted: dict[TopicPartition, list[Reader]] = {}
        for each in readers:
            for partition, one in each.items():
                wanted.setdefault(partition, []).append(one)
        starts = {each: min(start or 0 for start, _ in found) for each, found in wanted.items()}
        beginnings = await self.beginnings(starts)
        ends = {each: max(start, beginnings[each]) for each, start in starts.items()}
        async with aclosing(self.batches(starts, max_records=READ_AT_ONCE)) as batches:
            async for partition, records in batches:
                for record in records[-1:]:
                    ends[partition] = record.offset + 1
                for start, take in wanted[partition]:
                    for record in records:
                        if record.offset >= (start or 0):
                            take(record)
                await anyio.lowlevel.checkpoint()  # the page answers between two batches
        return ends

    async def read_into(
        self, starts: Mapping[TopicPartition, int | None], take: Callable[[ConsumerRecord], None]
    ) -> None:
        """Read these partitions to their current ends. `take` gets each record."""
        await self.read_once({each: (start, take) for each, start in starts.items()})

    async def batches(
        self,
        starts: Mapping[TopicPartition, int | None],
        stops: Mapping[TopicPartition, int] | None = None,
        *,
        max_records: int | None = None,
        complete: bool = False,
    ) -> AsyncGenerator[tuple[TopicPartition, list[ConsumerRecord]]]:
        """As `read`, one batch at a time, for a topic too long for memory. Close the generator (`aclosing`).

        `max_records`: the most records of all batches that are fetched together. `complete`: a partition must still have its
        start. Raises `LogCutError` if it hasn't, or if Kafka loses the end of a partition during the reading.
        """
        if not starts:
            return
        consumer = await self.consumer()
        consumer.assign(list(starts))
        try:
            beginnings, ends = await self.beginnings(starts), await self.ends(starts)
            ends = {each: min(end, (stops or {}).get(each, end)) for each, end in ends.items()}
            for partition, start in starts.items():
                if complete and start is not None and start < beginnings[partition]:
                    raise LogCutError(
                        f"topic {partition.topic} begins at offset {beginnings[partition]} of partition "
                        f"{partition.partition}, and is needed from {start} on: records were removed before they were read"
                    )
                consumer.seek(partition, max(start or 0, beginnings[partition]))
            unread = {each for each in starts if ends[each] > max(starts[each] or 0, beginnings[each])}
            async with aclosing(self.up_to({each: ends[each] for each in unread}, max_records)) as found:
                async for partition, records in found:
                    yield partition, [record for record in records if record.offset < ends[partition]]
        finally:
            consumer.unsubscribe()  # likewise

    async def up_to(
        self, ends: Mapping[TopicPartition, int], max_records: int | None = None
    ) -> AsyncGenerator[tuple[TopicPartition, list[ConsumerRecord]]]:
        """The next records of these partitions, in batches, until each has reached its end. Close the generator (`aclosing`)."""
        consumer = await self.consumer()
        unread = {each for each, end in ends.items() if await consumer.position(each) < end}
        silent_at = anyio.current_time() + SILENT_SECONDS
        while unread:
            batches = await consumer.getmany(*unread, timeout_ms=POLL_MS, max_records=max_records)
            for each in batches.items():
                yield each
            if batches:
                silent_at = anyio.current_time() + SILENT_SECONDS
            else:
                _require_ends({each: ends[each] for each in unread}, await self.ends(unread))
            if anyio.current_time() > silent_at:
                first = min(unread)
                raise LogCutError(
                    f"{first.topic} ends at offset {ends[first]} of partition {first.partition}, and Kafka returns no record "
                    "before it"
                )
            unread = {each for each in unread if await consumer.position(each) < ends[each]}


def _require_ends(expected: Mapping[TopicPartition, int], found: Mapping[TopicPartition, int]) -> None:
    for partition, end in expected.items():
        if found[partition] < end:
            raise LogCutError(
                f"topic {partition.topic} ends at offset {found[partition]} of partition {partition.partition}, and had reached "
                f"{end} when this began to read it: Kafka has lost records; start it again to find out which"
            )


async def with_coordinator(request: Callable[[], Awaitable[T]]) -> T:
    """Repeat a request about a group until the group has a coordinator.

    The first use of any group creates Kafka's own topic for them. Until it exists, there is none.
    """
    end = anyio.current_time() + START_TIMEOUT_SECONDS
    while True:
        try:
            return await request()
        except KafkaError as error:
            if not error.retriable or anyio.current_time() > end:
                raise
        await anyio.sleep(0.1)
