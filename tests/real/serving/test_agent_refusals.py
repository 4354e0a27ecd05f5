"""Events, locks and stores that the agent refuses. Everything else continues."""

import base64
import json
import time
from contextlib import ExitStack

import anyio
import pytest
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import MessageSizeTooLargeError
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition

from lakewarden.events import (
    MAX_EVENT_BYTES,
    Abort,
    Admitted,
    CommitGranted,
    CommitIntent,
    DeadLetter,
    LockAcquired,
    LockLost,
    LockRefused,
    MarkerCreated,
    encode,
)
from lakewarden.events.access import partition_of
from lakewarden.handlers.lease.lock_object import LockRecord, parse, render
from tests.kafka_fixture import administering
from tests.real.writers import World, Writer, markers
from tests.servers.proxy import Proxy
from tests.servers.s3 import S3Server
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.real]


async def test_an_undecodable_event_goes_to_the_dead_letters_and_other_events_are_served(
    scene: World,
) -> None:
    async with scene.agent():
        offset = await scene.send_raw(b"rubbish", scene.table.encode())
        writer = scene.writer("good")
        await writer.begin()
        [letter] = await scene.wait_for(DeadLetter)

    assert (letter.topic, letter.offset) == (f"{scene.prefix}.writers", offset)
    assert base64.b64decode(letter.value) == b"rubbish"
    assert letter.reason


async def test_records_in_every_compression_are_served_and_a_batch_that_cannot_be_read_is_refused(
    scene: World,
) -> None:
    """lz4, snappy and zstd are the usual settings of Java's and librdkafka's producers. Kafka keeps what it accepted for days."""
    async with scene.agent():
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            writer = scene.writer(codec)
            await send_batch(scene, codec, encode(writer.event(CommitIntent)))
            await writer.wait_for(Admitted)
        await send_batch(scene, "zstd", b" " * 100_000_000)
        await send_batch(scene, "none", b"bad header", header=b"\xff")
        letters = await scene.wait_for(DeadLetter, count=2)
        await scene.writer("good").begin()
    async with scene.agent():
        await scene.writer("after the replay").begin()

    assert ["can't be read" in each.reason for each in letters] == [True, True]


async def send_batch(scene: World, codec: str, value: bytes, *, header: bytes = b"h") -> None:
    """Publish a batch of one record as another client may: with any compression, and any name of a header."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=["none", "gzip", "snappy", "lz4", "zstd"].index(codec),
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    builder.append(
        0,
        timestamp=round(time.time() * 1000),
        key=scene.table.encode(),
        value=value,
        headers=[("~" * len(header), b"")],
    )
    batch = (
        bytes(builder.build()).replace(b"~" * len(header), header)
        if codec == "none"
        else bytes(builder.build())
    )
    batch = batch[:17] + calc_crc32c(batch[21:]).to_bytes(4) + batch[21:]
    name, client = f"{scene.prefix}.writers", scene.producer.client
    partitions = await scene.producer.partitions_for(name)
    topic = TopicPartition(name, partition_of(scene.table, len(partitions)))
    leader = client.cluster.leader_for_partition(topic)
    request = ProduceRequest(
        transactional_id=None,
        required_acks=-1,
        timeout=10_000,
        topics=[(topic.topic, [(topic.partition, batch)])],
    )
    response = await client.send(leader, request)
    [(_, [(_, error, *_)])] = response.topics
    assert error == 0


async def test_a_record_above_the_size_limit_is_refused(scene: World) -> None:
    await _allow_long_records(scene)
    async with scene.agent():
        writer = scene.writer("long")
        event = encode(writer.event(CommitIntent))
        await _send_once_allowed(scene, event[:-1] + b" " * 1_100_000 + b"}")
        await scene.writer("good").begin()
        [letter] = await scene.wait_for(DeadLetter)

    assert "at most 1048576 are read" in letter.reason
    assert len(base64.b64decode(letter.value)) == 1024


async def test_the_dead_letter_of_the_longest_possible_record_fits_into_a_record(scene: World) -> None:
    """A dead letter that Kafka rejects would end every session that consumes the record."""
    async with scene.agent():
        value = encode(scene.writer("bad").event(CommitIntent))
        key = b"k" * (MAX_EVENT_BYTES - len(value) - 150)
        offset = await scene.send_raw(value, key)
        [letter] = await scene.wait_for(DeadLetter)
        await scene.writer("good").begin()

    assert letter.offset == offset


@pytest.mark.parametrize(
    ("in_event", "in_key", "why"),
    [("", "-other", "is not the event's table"), ("/", "/", "not canonical")],
    ids=["another key", "no canonical URI"],
)
async def test_an_event_under_another_key_or_of_no_canonical_table_is_refused_and_its_transaction_aborted(
    scene: World, in_event: str, in_key: str, why: str
) -> None:
    async with scene.agent():
        writer, table = scene.writer("misrouted"), scene.table
        value = encode(writer.event(CommitIntent)).replace(table.encode(), f"{table}{in_event}".encode())
        await scene.send_raw(value, f"{table}{in_key}".encode())
        abort = await writer.wait_for(Abort)
        [letter] = await scene.wait_for(DeadLetter)

    assert (abort.reason, abort.retriable, abort.detail) == ("not-allowed", False, letter.reason)
    assert why in letter.reason


async def test_an_undecodable_event_aborts_its_open_transaction_for_good(scene: World) -> None:
    """A part of what it touches is unknown, so conflicts can't be detected. The abort is in the log for the next agent, too."""
    async with scene.agent():
        broken, other = scene.writer("broken"), scene.writer("other")
        await broken.begin(heartbeat_seconds=100)
        await broken.touch("x")
        fields = json.loads(encode(broken.event(MarkerCreated, markers=markers("y"))))
        fields["markers"] = "y"
        await scene.send_raw(json.dumps(fields).encode(), scene.table.encode())
        abort = await broken.wait_for(Abort)
        await other.begin(heartbeat_seconds=100)
        await other.touch("x")
        await broken.request_commit()
        await broken.wait_for(Abort, count=2)
        await other.obtain_grant()

    assert abort.reason == "not-allowed"
    assert scene.events(CommitGranted, broken.mine) == []
    assert scene.events(Abort, other.mine) == []


async def test_a_table_that_is_not_allowed_is_never_touched(scene: World) -> None:
    outside = f"file://{scene.root}/elsewhere/t"
    async with scene.agent():
        writer = scene.writer("stranger", outside)
        await writer.send_intent()
        abort = await writer.wait_for(Abort)
        await scene.wait_for(DeadLetter)
        await writer.request_commit()
        await scene.wait_for(DeadLetter, count=2)

    assert abort.reason == "not-allowed"
    assert "--tables" in str(abort.detail)
    assert not (scene.root / "elsewhere").exists()
    assert not scene.lock_object(scene.table).exists()
    assert len(scene.events(Abort, writer.mine)) == 1


async def test_a_folder_that_can_not_be_created_refuses_only_its_own_lock(scene: World) -> None:
    """The operator named a place for the lock below a file."""
    (scene.root / "tables" / "file").write_text("not a folder")
    places = (f"file://{scene.root}/tables/blocked=>file://{scene.root}/tables/file/locks/lock.json",)
    async with scene.agent(lock_places=places, refusal_seconds=1.0):
        blocked, good = scene.writer("blocked", f"file://{scene.root}/tables/blocked"), scene.writer("good")
        await blocked.begin(heartbeat_seconds=100)
        await blocked.request_commit()
        abort = await blocked.wait_for(Abort)
        await good.begin(heartbeat_seconds=100)
        await good.obtain_grant()

    assert abort.reason in ("lock-refused", "not-allowed")
    assert "tables/file" in str(abort.detail)


async def test_an_object_that_is_no_lock_record_is_not_changed_and_its_writers_get_an_abort(
    scene: World,
) -> None:
    lock = scene.lock_object()
    lock.parent.mkdir(parents=True)
    lock.write_bytes(b"a text file")
    async with scene.agent():
        writer = scene.writer("waiting")
        await writer.send_intent(heartbeat_seconds=100)
        await writer.request_commit()
        abort = await writer.wait_for(Abort)
        await scene.wait_for(LockRefused)

    assert (abort.reason, abort.retriable) == ("not-allowed", False)
    assert "not a lock record" in str(abort.detail)
    assert lock.read_bytes() == b"a text file"


async def test_no_transaction_is_granted_while_a_foreign_writer_holds_the_lock(scene: World) -> None:
    """The lock object has the bytes and the location of a Java Hudi writer's."""
    lock = scene.root / "tables/t/.hoodie/.locks/table_lock.json"
    lock.parent.mkdir(parents=True)
    (scene.root / "tables/t/.hoodie/hoodie.properties").write_text("hoodie.table.name=t")
    held = LockRecord(expired=False, valid_until=_in_ms(3600), owner="0f8fad5b-d9cb-469f-a165-70867728950e")
    lock.write_bytes(render(held))
    lease = {"hudi_validity_seconds": 30}
    async with scene.agent(**lease):
        writer = scene.writer("patient")
        await writer.send_intent(lock=f"file://{lock}", heartbeat_seconds=100)
        await writer.wait_for(Admitted)
        await writer.request_commit()
        [refused] = await scene.wait_for(LockRefused)
        await scene.settle()
        assert scene.events(CommitGranted) == []
        assert lock.read_bytes() == render(held)

        lock.write_bytes(render(LockRecord(expired=True, valid_until=held.valid_until, owner=held.owner)))
        grant = await writer.wait_for(CommitGranted)

    assert refused.holder == held.owner
    assert grant.transaction == writer.transaction


async def test_an_acquisition_by_a_foreign_writer_during_a_grant_aborts_the_granted_transaction(
    scene: World,
) -> None:
    async with scene.agent():
        writer = scene.writer("overtaken")
        await writer.begin(heartbeat_seconds=100)
        await writer.obtain_grant()
        lock = scene.lock_object()
        lock.write_bytes(render(LockRecord(expired=False, valid_until=_in_ms(3600), owner="another-owner")))
        abort = await writer.wait_for(Abort)
        [lost] = await scene.wait_for(LockLost)

    assert abort.reason == "lease-lost"
    assert lost.holder == "another-owner"
    assert b"another-owner" in lock.read_bytes()


async def test_a_table_and_a_lock_root_with_a_space_in_the_name_work(scene: World) -> None:
    """`Path.as_uri()` writes %20 for a folder of locks, and so does `lakewarden dev`. A table's URI has the blank."""
    root = scene.root / "my locks"
    async with scene.agent(lock_root=root.as_uri()):
        writer = scene.writer("spacious", f"file://{scene.root}/tables/my table 50%")
        await writer.begin()
        await writer.obtain_grant()
        [acquired] = await scene.wait_for(LockAcquired)

    assert "%20" in acquired.lock
    assert [each.suffix for each in (root / "locks").iterdir() if each.suffix == ".json"] == [".json"]


async def test_locks_can_be_in_a_bucket(scene: World, s3_credentials: S3Server) -> None:
    bucket = s3_credentials.bucket()
    given = {"tables": (f"s3://{bucket}/*",), "lock_root": None, "s3_endpoint": s3_credentials.endpoint}
    async with scene.agent(**given):
        writer = Writer(scene, "cloud", f"s3://{bucket}/warehouse/t", "cloud-1")
        await writer.begin()
        grant = await writer.obtain_grant()
        [acquired] = await scene.wait_for(LockAcquired)
        record = parse(s3_credentials.get(acquired.lock))
        await writer.complete(grant.grant)

    assert isinstance(record, LockRecord)
    assert (record.owner, record.expired) == (grant.lock_owner, False)


async def test_an_agent_waits_for_a_store_that_does_not_answer_at_its_start(
    scene: World, s3_credentials: S3Server
) -> None:
    bucket = s3_credentials.bucket()
    values = {"tables": (f"s3://{bucket}/warehouse/*",), "lock_root": f"s3://{bucket}/locks"}
    with (
        Proxy(s3_credentials.endpoint, keep_alive=False) as proxy,
        ExitStack() as store_down,
        scene.process(**values, s3_endpoint=proxy.endpoint) as process,
    ):
        store_down.enter_context(proxy.hanging())
        waiting = await process.logged("store.waiting", count=2)
        assert not any(line["event"] == "agent.ready" for line in process.lines())

        store_down.close()
        await process.ready()
        writer = scene.writer("w", f"s3://{bucket}/warehouse/t")
        await writer.begin(heartbeat_seconds=100)
        await writer.obtain_grant()

    assert waiting["store"] == f"s3://{bucket}/locks"
    assert "no answer shows whether this store can hold locks" in waiting["problem"]
    assert waiting["retry_seconds"] > 0


async def test_a_store_that_refuses_access_ends_the_start_with_one_line(
    scene: World, s3_credentials: S3Server
) -> None:
    values = {"lock_root": "s3://no-such-bucket-anywhere/locks", "s3_endpoint": s3_credentials.endpoint}
    with scene.process(**values, log_level="error") as process:
        assert await process.ended() == 1

    [line] = process.log.read_text().splitlines()
    assert "this store can't be read or written to" in line
    assert "NoSuchBucket" in line


async def _allow_long_records(scene: World) -> None:
    async with administering(scene.bootstrap_servers) as admin:
        topic = ConfigResource(
            ConfigResourceType.TOPIC, f"{scene.prefix}.writers", {"max.message.bytes": "3000000"}
        )
        await admin.alter_configs([topic])


async def _send_once_allowed(scene: World, value: bytes) -> None:
    """Retry until the broker has applied the topic's new limit, which it does asynchronously."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            try:
                await scene.send_raw(value, scene.table.encode())
            except MessageSizeTooLargeError:
                await anyio.sleep(0.05)
            else:
                return


def _in_ms(seconds: float) -> int:
    return round((time.time() + seconds) * 1000)
