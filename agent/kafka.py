"""Kafka, as far as more than one module needs it: topics made and checked, a span of a topic read to its end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import anyio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
    for_code,
)
from aiokafka.structs import ConsumerRecord, OffsetAndMetadata

from lakewarden.agent.errors import AgentError, KafkaRefusedError, KafkaUnreachableError, SettingsError
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events import MAX_EVENT_BYTES, Topics

FETCH_BYTES = 4 * 1024 * 1024
"""A partition's share of one fetch: some 400 events of 100 markers, so that a replay is not bound by round trips."""
_TOPIC_EXISTS = 36
_FORBIDDEN = (TopicAuthorizationFailedError.errno, ClusterAuthorizationFailedError.errno)
STOP_TIMEOUT_SECONDS = 1.0
PROBE_SECONDS = 5.0
START_TIMEOUT_SECONDS = 15.0
"""For a client to reach a broker; after that the brokers are named and the caller decides."""


def producer(settings: KafkaSettings) -> AIOKafkaProducer:
    """A producer that keeps the order and loses nothing that it acknowledged."""
    return AIOKafkaProducer(
        **settings.kafka_client(),
        acks="all",
        enable_idempotence=True,
        max_request_size=MAX_EVENT_BYTES,
        max_batch_size=262_144,
    )


def reader(settings: KafkaSettings, **more: Any) -> AIOKafkaConsumer:
    """A consumer outside any group."""
    return AIOKafkaConsumer(
        **settings.kafka_client(),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=FETCH_BYTES,
        **more,
    )


async def start_client(client: Any, settings: KafkaSettings) -> None:
    """Start a client in bounded time.

    `KafkaRefusedError` where a broker answers and refuses us, `KafkaUnreachableError` where none answers.
    """
    try:
        with anyio.fail_after(START_TIMEOUT_SECONDS):
            await client.start()
    except (TimeoutError, KafkaConnectionError, OSError) as error:
        await stop_client(client)
        if (refusal := await _refusal(settings)) is not None:
            raise KafkaRefusedError(refusal) from error
        raise KafkaUnreachableError(
            f"no Kafka broker answers at {settings.bootstrap_servers}; check the address (--bootstrap-servers), the network, "
            f"and that it speaks {settings.kafka_security_protocol} there (kafka_security_protocol)"
        ) from error
    except BaseException:
        await stop_client(client)
        raise


async def _refusal(settings: KafkaSettings) -> str | None:
    """Why a broker refuses us, if one does: aiokafka's clients tell a wrong password from a dead broker in their log only."""
    given = settings.kafka_client()
    where = given.pop("bootstrap_servers")
    for host, port, _ in collect_hosts(where):
        try:
            with anyio.fail_after(PROBE_SECONDS):
                connection = await create_conn(host, port, **given)
            connection.close()
        except (SaslAuthenticationFailed, AuthenticationFailedError, UnsupportedSaslMechanismError) as error:
            why = str(error.args[0] if error.args else error).rstrip(".")
            return (
                f"Kafka at {host}:{port} refuses user {settings.kafka_sasl_username}: {why}; check kafka_sasl_username, "
                f"kafka_sasl_password and kafka_sasl_mechanism ({settings.kafka_sasl_mechanism})"
            )
        except ssl.SSLCertVerificationError as error:
            return (
                f"the certificate of Kafka at {host}:{port} is not trusted: {error.verify_message}; "
                "name its authority's PEM file (kafka_ssl_cafile)"
            )
        except (TimeoutError, KafkaError, OSError):
            continue
    return None


def missing_right(problem: BaseException | None, settings: KafkaSettings) -> str | None:
    """Which right is missing, where that is what went wrong, or what led to it."""
    who = settings.kafka_sasl_username or "this agent"
    while problem is not None:
        match problem:
            case TopicAuthorizationFailedError():
                topics = problem.args[0] if problem.args else f"below {settings.topic_prefix}"
                names = (
                    ", ".join(sorted(topics))
                    if isinstance(topics, set | frozenset | list | tuple)
                    else topics
                )
                return (
                    f"Kafka forbids {who} the topic {names}: grant it read, write and describe on {settings.topic_prefix}.*, "
                    "and create where the topics are not there yet"
                )
            case GroupAuthorizationFailedError():
                return f"Kafka forbids {who} the consumer group {settings.group}: grant it read on the group"
            case ClusterAuthorizationFailedError():
                return f"Kafka forbids {who} to make topics: grant it create on {settings.topic_prefix}.*, or make them for it"
            case _:
                problem = problem.__cause__
    return None


async def stop_client(client: Any, seconds: float = STOP_TIMEOUT_SECONDS) -> None:
    """Stop a client, in bounded time, also while we are being cancelled.

    In a task of its own: a consumer whose fetch was about to be tried again, as when its broker has gone, lets the cancellation
    of that fetch escape from its `stop`; in our task that would be a cancellation of ours.
    """
    stop = client.close if isinstance(client, AIOKafkaAdminClient) else client.stop
    stopping = asyncio.ensure_future(stop())
    with anyio.move_on_after(seconds, shield=True):
        await asyncio.wait([stopping])
    if stopping.cancel() or stopping.cancelled():
        connections = client.client if isinstance(client, AIOKafkaProducer) else client._client  # noqa: SLF001
        with anyio.move_on_after(seconds, shield=True):
            await connections.close()  # to which its `stop` did not come
    else:
        stopping.result()


async def ensure_topics(settings: KafkaSettings, topics: Topics, partitions: int, replication: int) -> int:
    """Create the topics that are missing; the number of partitions that `writers`, `decisions` and `ledger` share."""
    admin = AIOKafkaAdminClient(**settings.kafka_client())
    await start_client(admin, settings)
    try:
        present = set(await admin.list_topics())
        missing = [each for each in topics.settings(partitions) if each.name not in present]
        if missing:
            existing = (
                await _partition_count(admin, topics.writers) if topics.writers in present else partitions
            )
            response = await admin.create_topics(
                [
                    NewTopic(
                        each.name,
                        min(each.partitions, existing) if each.partitions == 1 else existing,
                        replication,
                        replica_assignments={} if replication == -1 else None,  # else aiokafka refuses -1
                        topic_configs=each.config,
                    )
                    for each in missing
                ]
            )
            for name, code, *rest in response.topic_errors:
                if code in _FORBIDDEN:
                    raise for_code(code)(name)
                if (
                    code == _TOPIC_EXISTS
                ):  # made by another agent just now, or hidden from us: then this says so
                    await _partition_count(admin, name)
                elif code != 0:
                    raise KafkaError(f"topic {name} could not be created: error {code} {rest}")
        counts = {}
        for name in (topics.writers, topics.decisions, topics.ledger):
            counts[name] = await _partition_count(admin, name)
    finally:
        await stop_client(admin)
    if len(set(counts.values())) != 1:
        told = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise SettingsError(
            f"topics must have one number of partitions: {told}; add partitions to the smaller ones"
        )
    return counts[topics.writers]


async def partitions_of(settings: KafkaSettings, topic: str) -> list[TopicPartition]:
    """All partitions of a topic; `AgentError` where there is no such topic."""
    admin = AIOKafkaAdminClient(**settings.kafka_client())
    await start_client(admin, settings)
    try:
        if topic not in await admin.list_topics():
            raise AgentError(
                f"there is no topic {topic} at {settings.bootstrap_servers}; start an agent there first, "
                "or name its prefix ($LAKEWARDEN_TOPIC_PREFIX)"
            )
        return [TopicPartition(topic, number) for number in range(await _partition_count(admin, topic))]
    finally:
        await stop_client(admin)


def partitions_known(consumer: AIOKafkaConsumer, topic: str) -> int | None:
    """How many partitions a topic has, as far as a consumer has heard; it does not ask."""
    return len(consumer.partitions_for_topic(topic) or ()) or None


async def _partition_count(admin: AIOKafkaAdminClient, topic: str) -> int:
    with anyio.fail_after(START_TIMEOUT_SECONDS):
        while True:
            found = [each for each in await admin.describe_topics([topic]) if each["topic"] == topic]
            if found and found[0]["error_code"] in _FORBIDDEN:
                raise TopicAuthorizationFailedError(topic)
            if found and found[0]["error_code"] == 0 and found[0]["partitions"]:
                return len(found[0]["partitions"])
            await anyio.sleep(0.1)


async def committed_offsets(settings: KafkaSettings, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """What the group has committed, with the metadata that aiokafka's consumer does not show."""
    admin = AIOKafkaAdminClient(**settings.kafka_client())
    await start_client(admin, settings)
    try:
        return dict(await admin.list_consumer_group_offsets(group))
    finally:
        await stop_client(admin)


async def read_to_end(
    settings: KafkaSettings, starts: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, list[ConsumerRecord]]:
    """Every record from each start (None: the beginning) to the end as it is now."""
    found: dict[TopicPartition, list[ConsumerRecord]] = {partition: [] for partition in starts}
    async with aclosing(batches_to_end(settings, starts)) as batches:
        async for partition, records in batches:
            found[partition].extend(records)
    return found


async def batches_to_end(
    settings: KafkaSettings, starts: Mapping[TopicPartition, int | None]
) -> AsyncGenerator[tuple[TopicPartition, list[ConsumerRecord]]]:
    """The same a batch at a time, for a topic that is too long to be kept. To be closed (`aclosing`)."""
    if not starts:
        return
    consumer = reader(settings)
    await start_client(consumer, settings)
    try:
        consumer.assign(list(starts))
        beginnings = await consumer.beginning_offsets(list(starts))
        ends = await consumer.end_offsets(list(starts))
        for partition, start in starts.items():
            consumer.seek(partition, max(start or 0, beginnings[partition]))
        unread = {each for each in starts if ends[each] > max(starts[each] or 0, beginnings[each])}
        while unread:
            for partition, records in (await consumer.getmany(*unread, timeout_ms=500)).items():
                yield partition, [record for record in records if record.offset < ends[partition]]
            unread = {each for each in unread if await consumer.position(each) < ends[each]}
    finally:
        await stop_client(consumer)
