"""A restart, a crash or a second agent changes nothing for the writers."""

import random
import signal
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from aiokafka import AIOKafkaProducer

from lakewarden.events import (
    Abort,
    Admitted,
    AlreadyCommitted,
    CommitGranted,
    CommitIntent,
    LockAcquired,
    LockRefused,
    LockReleased,
    encode,
)
from lakewarden.events.access import partition_of
from lakewarden.handlers.lease.lock_object import LockRecord, render
from tests.real.promises import check
from tests.real.writers import World, Writer
from tests.servers.s3 import S3Server
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.real]

BRISK = {"validity_seconds": 5.0}
LONG_LEASES = {"validity_seconds": 600.0}
"""Longer than a test waits for anything."""
SESSION_SECONDS = 6.0
"""The minimum that a broker allows."""
JOBS_PATIENCE_SECONDS = 400.0
"""A time limit that ends a test which hangs."""


async def test_an_agent_that_was_killed_during_a_grant_resumes_with_the_same_decisions(scene: World) -> None:
    committing, waiting, loser = scene.writer("committing"), scene.writer("waiting"), scene.writer("loser")
    async with scene.running() as first:
        for each in (committing, waiting, loser):
            await each.begin(heartbeat_seconds=100)
        await committing.touch("x")
        await loser.touch("x")
        await loser.wait_for(Abort)
        granted = await committing.obtain_grant()
        await waiting.request_commit()
        await scene.settle()
        first.kill()
    owner = scene.lock_record().owner

    async with scene.running():
        await scene.wait_for(LockAcquired, lambda lock: lock.owner != owner)
        assert scene.events(CommitGranted) == [granted]
        await committing.complete(granted.grant)
        await waiting.wait_for(CommitGranted)
        await waiting.complete()
        await scene.wait_for(LockReleased)

    assert [each.transaction for each in scene.events(CommitGranted)] == [
        committing.transaction,
        waiting.transaction,
    ]
    assert [each.reason for each in scene.events(Abort, loser.mine)] == ["conflict"]
    assert scene.events(Abort, committing.mine) == []
    assert len(scene.events(Admitted)) == 3
    check(await scene.transactions())


@pytest.mark.world(**LONG_LEASES)
async def test_a_killed_agents_locks_are_taken_over_at_once_and_no_others(
    scene: World, s3_credentials: S3Server
) -> None:
    """Under one lock a grant runs, under the other none. A third one is held by a program without an agent."""
    bucket = s3_credentials.bucket()
    scene.overrides |= {
        "tables": (f"s3://{bucket}/*",),
        "lock_root": None,
        "s3_endpoint": s3_credentials.endpoint,
    }
    tables = [f"s3://{bucket}/t{number}" for number in range(3)]
    running, idle, after = (scene.writer(f"w{n}", tables[place]) for n, place in enumerate((0, 1, 0)))
    excluded = scene.writer("excluded", tables[2])
    foreign = LockRecord(expired=False, valid_until=_in_ms(3600.0), owner=str(uuid.uuid4()))
    place = scene.settings().placement().location(tables[2], hudi=False)
    lock = getattr(place, "uri", "")
    s3_credentials.put(lock, render(foreign))
    async with scene.running() as first:
        for each in (running, idle):
            await each.begin(heartbeat_seconds=100)
        grant = await running.obtain_grant()
        former = await scene.wait_for(LockAcquired, count=2)
        first.kill()

    async with scene.running():
        await excluded.begin(heartbeat_seconds=100)
        await excluded.request_commit()
        await scene.wait_for(LockRefused, lambda lock: lock.holder == foreign.owner)
        await idle.obtain_grant()
        await idle.complete()
        await running.complete(grant.grant)
        await after.begin(heartbeat_seconds=100)
        await after.obtain_grant()
        await after.complete()

    assert s3_credentials.get(lock) == render(foreign)
    taken = scene.events(LockAcquired, lambda lock: lock.fenced)
    assert {each.adopted for each in taken} == {each.owner for each in former}
    assert scene.events(CommitGranted, excluded.mine) == []
    check(await scene.transactions(), answered=lambda writer: writer != "excluded")


@pytest.mark.wide
async def test_a_grant_survives_two_restarts(scene: World) -> None:
    """The checkpoint's position in `decisions` must stay before the grant while its transaction is open."""
    async with scene.agent(grant_seconds=8, validity_seconds=60, renew_seconds=6):
        open_one, granted_one = scene.writer("open"), scene.writer("granted")
        await open_one.begin(heartbeat_seconds=100)
        await granted_one.begin(heartbeat_seconds=100)
        await granted_one.obtain_grant()
    for _ in range(2):
        async with scene.agent(grant_seconds=8, validity_seconds=60, renew_seconds=6) as agent:
            # In the other partition, whose checkpoint no open transaction holds back: both are committed together.
            later = scene.writer("later", _table_in_the_other_partition(scene))
            await later.begin()
            await _committed_to(scene, later)
            assert agent.ready.is_set()

    await scene.poll()
    assert len(scene.events(Admitted, open_one.mine)) == 1
    assert len(scene.events(Admitted, granted_one.mine)) == 1
    assert len(scene.events(CommitGranted, granted_one.mine)) == 1
    assert scene.events(Abort, open_one.mine) == []


@pytest.mark.wide
async def test_a_restart_replays_only_from_the_checkpoint(scene: World) -> None:
    async with scene.agent():
        gone = scene.writer("gone")
        await gone.begin(batch_id=1)
        await gone.complete((await gone.obtain_grant()).grant)
        await scene.settle()
        await _committed_to(scene, gone, after=True)

    async with scene.running() as process:
        lines = process.lines()

    assert [line["open"] for line in lines if line["event"] == "partition.live"] == [0, 0]
    assert [line["decisions_replayed"] for line in lines if line["event"] == "partition.live"] == [0, 0]


@pytest.mark.wide
async def test_the_markers_of_a_transactional_producer_delay_neither_replay_nor_check(scene: World) -> None:
    """The last record of the log is then Kafka's marker, which no consumer gets. An event counts whether committed or not."""
    silent = scene.writer("silent")
    producer = AIOKafkaProducer(bootstrap_servers=scene.bootstrap_servers, transactional_id=scene.prefix)
    async with producer:
        await producer.begin_transaction()
        intent = silent.event(CommitIntent, heartbeat_seconds=0.4)
        await producer.send_and_wait(f"{scene.prefix}.writers", encode(intent), key=silent.table.encode())
        await producer.abort_transaction()

    async with scene.agent():
        await silent.wait_for(Admitted)
        abort = await silent.wait_for(Abort)

    assert abort.reason == "writer-lost"


@pytest.mark.wide
async def test_sigterm_during_a_grant_stops_in_order_and_does_not_release_the_lock(scene: World) -> None:
    async with scene.running() as process:
        writer = scene.writer("committing")
        await writer.begin(heartbeat_seconds=100)
        await writer.obtain_grant()

        await process.stop()

    assert not scene.lock_record().expired
    assert process.lines()[-1]["event"] == "agent.stopped"


async def test_sigterm_without_a_grant_releases_the_lock(scene: World) -> None:
    async with scene.running() as process:
        writer = scene.writer("computing")
        await writer.begin(heartbeat_seconds=100)
        await scene.wait_for(LockAcquired)

        await process.stop()

    assert scene.lock_record().expired
    await scene.wait_for(LockReleased)


@pytest.mark.wide
async def test_sigterm_while_the_agent_waits_for_kafka_stops_it(scene: World) -> None:
    with scene.process(bootstrap_servers="127.0.0.1:9") as process:
        waiting = await process.logged("kafka.waiting")
        assert "127.0.0.1:9" in str(waiting)

        await process.stop()


async def test_an_agent_that_was_suspended_during_a_take_over_of_its_tables_changes_nothing(
    scene: World,
) -> None:
    jobs = WriterJobs(scene)
    async with (
        scene.consuming(),
        scene.running(**BRISK, session_timeout_seconds=SESSION_SECONDS) as suspended,
        anyio.create_task_group() as burst,
    ):
        for number in range(6):
            burst.start_soon(jobs.job, f"job-{number}", 12, random.Random(number))
        await jobs.wait_until_finished(12)
        suspended.popen.send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        async with scene.running(**BRISK, session_timeout_seconds=SESSION_SECONDS):
            await jobs.wait_until_finished(36)
            # The suspension must be longer than the session timeout; on most machines it is already.
            await anyio.sleep(max(0.0, stopped_at + 2 * SESSION_SECONDS - time.monotonic()))
            suspended.popen.send_signal(signal.SIGCONT)
            waiting = await suspended.logged("kafka.waiting")
            await jobs.wait_until_finished(72)

    assert "was suspended" in waiting["problem"]
    found = await scene.transactions()
    assert len(found) >= 72
    check(found)


@pytest.mark.wide
async def test_a_suspended_agent_that_resumes_in_an_empty_group_moves_no_checkpoint_back(
    scene: World,
) -> None:
    """Kafka accepts a commit of any client while a group has no members, also that of an agent that has lost its partitions."""
    jobs = WriterJobs(scene)
    tables = [f"s3://lake/{number}" for number in range(6)]

    async def burst(table: str, batches: int) -> None:
        await jobs.job(f"job-of-{table}", batches, random.Random(table), table)

    async def bursts(batches: int) -> None:
        async with anyio.create_task_group() as running:
            for table in tables:
                running.start_soon(burst, table, batches)

    async with (
        scene.consuming(),
        scene.running(**BRISK, session_timeout_seconds=SESSION_SECONDS) as suspended,
    ):
        await bursts(1)
        suspended.popen.send_signal(signal.SIGSTOP)
        async with scene.running(**BRISK, session_timeout_seconds=SESSION_SECONDS) as second:
            await bursts(3)
            await second.stop()
        before = await scene.committed()
        suspended.popen.send_signal(signal.SIGCONT)
        await bursts(1)
        after = await scene.committed()
    moved = {
        partition: (offset, after[partition][0])
        for partition, (offset, metadata) in before.items()
        if after[partition][0] < offset or after[partition][1]["decisions"] < metadata["decisions"]
    }
    assert moved == {}
    check(await scene.transactions())


@dataclass
class WriterJobs:
    """Writers that follow the protocol."""

    scene: World
    finished: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)

    async def wait_until_finished(self, finished: int) -> None:
        with anyio.fail_after(JOBS_PATIENCE_SECONDS):
            while self.finished < finished:
                await self.scene.changed.wait()

    async def job(self, name: str, batches: int, chance: random.Random, table: str | None = None) -> None:
        for batch in range(batches):
            outcome = await self._attempt(self.scene.writer(name, table), batch, chance)
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
            self.finished += 1
            self.scene.notify()

    async def _attempt(self, writer: Writer, batch: int, chance: random.Random) -> str:
        await writer.send_intent(batch_id=batch, heartbeat_seconds=100)
        if not isinstance(first := (await writer.answer(Admitted, AlreadyCommitted)).event, Admitted):
            return _outcome(first)
        for _ in range(chance.randrange(1, 3)):
            await writer.touch(str(chance.randrange(12)))
            await anyio.sleep(chance.random() / 50)
        sent = time.monotonic()
        await writer.request_commit()
        answer = (await writer.answer(CommitGranted)).event
        if not isinstance(answer, CommitGranted):
            return _outcome(answer)
        if time.monotonic() > sent + answer.lease_seconds - 0.5:
            await writer.abandon()
            return "too-late"
        await writer.complete(answer.grant)
        return "committed"


def _outcome(decision: Any) -> str:
    return str(getattr(decision, "reason", decision.type))


def _in_ms(seconds: float) -> int:
    return round((time.time() + seconds) * 1000)


async def _committed_to(scene: World, writer: Writer, *, after: bool = False) -> int:
    """Wait until the committed offset has reached this writer's first event, or passed its last one. Return the partition."""
    log = (await scene.read_log())[scene.settings().topics.writers]
    mine = [record for record in log if writer.transaction.encode() in record.value]
    wanted = mine[-1].offset + 1 if after else mine[0].offset
    with anyio.fail_after(PATIENCE_SECONDS):
        while (await scene.committed()).get(mine[0].partition, (-1, {}))[0] < wanted:
            await anyio.sleep(0.2)
    return int(mine[0].partition)


def _table_in_the_other_partition(scene: World) -> str:
    count = scene.settings().partitions
    others = (f"{scene.table}-later-{number}" for number in range(100))
    return next(table for table in others if partition_of(table, count) != partition_of(scene.table, count))
