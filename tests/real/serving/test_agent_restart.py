"""What a restart, a crash and a second agent change: nothing that a writer could tell. One behaviour a test."""

from __future__ import annotations

import random
import signal
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2

from lakewarden.agent.serving.agent import KafkaSession
from lakewarden.events import (
    Abort,
    Admitted,
    AlreadyCommitted,
    CommitGranted,
    CommitIntent,
    LockAcquired,
    LockReleased,
    PartitionTaken,
    encode,
    partition_name,
)
from lakewarden.handlers.lease.lock_object import LockRecord, parse
from tests.kafka_fixture import KafkaServer
from tests.real.promises import check, transactions
from tests.real.writers import World, Writer, world

pytestmark = [pytest.mark.real]

BRISK = {
    "validity_seconds": 5.0,
    "renew_seconds": 0.5,
    "request_timeout_seconds": 0.45,
    "margin_seconds": 0.5,
    "grant_seconds": 4.0,
}


@pytest_asyncio.fixture
async def scene(kafka: KafkaServer, topic_prefix: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world(kafka.bootstrap_servers, topic_prefix, tmp_path) as made:
        yield made


async def test_an_agent_killed_while_a_grant_is_out_comes_back_with_the_same_verdicts(scene: World) -> None:
    committing, waiting, loser = scene.writer("committing"), scene.writer("waiting"), scene.writer("loser")
    with scene.process() as first:
        await first.ready()
        for each in (committing, waiting, loser):
            await each.begin(heartbeat_seconds=100)
        await committing.touch("x")
        await loser.touch("x")
        await loser.wait_for(Abort)
        granted = await committing.obtain_grant()
        await waiting.request_commit()
        await scene.settle()
        first.kill()
    owner = _lock(scene).owner

    with scene.process() as second:
        await second.ready()
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
    check(await _transactions(scene))


async def test_a_second_restart_still_knows_what_was_granted_before_the_first(scene: World) -> None:
    """The position in `decisions` must stay before the grant for as long as its transaction is open."""
    async with scene.agent(grant_seconds=8, validity_seconds=60, renew_seconds=6):
        open_one, granted_one = scene.writer("open"), scene.writer("granted")
        await open_one.begin(heartbeat_seconds=100)
        await granted_one.begin(heartbeat_seconds=100)
        await granted_one.obtain_grant()
    for _ in range(2):
        async with scene.agent(grant_seconds=8, validity_seconds=60, renew_seconds=6) as agent:
            # In the other partition, whose offset nothing holds back: once it is committed, so is this one's.
            later = scene.writer("later", _table_in_the_other_partition(scene))
            await later.begin()
            await _committed_to(scene, later)
            assert agent.ready.is_set()

    await scene.poll()
    assert len(scene.events(Admitted, open_one.mine)) == 1
    assert len(scene.events(Admitted, granted_one.mine)) == 1
    assert len(scene.events(CommitGranted, granted_one.mine)) == 1
    assert scene.events(Abort, open_one.mine) == []


async def test_the_state_rebuilt_from_the_log_is_the_state_before(
    scene: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[KafkaSession] = []
    opened = KafkaSession.open

    async def noting(self: KafkaSession, tasks: Any) -> None:
        sessions.append(self)
        await opened(self, tasks)

    monkeypatch.setattr(KafkaSession, "open", noting)
    quiet = {"heartbeat_seconds": 100}
    async with scene.agent():
        names = ("committed", "overlapping", "aborted", "queued", "waiting", "granted")
        done, over, lost, queued, waiting, granted = (scene.writer(name) for name in names)
        for each in (over, done, lost, waiting, granted):
            await each.begin(**quiet, batch_id=4)
        await over.touch("a", "b")
        await done.touch("c", "d")
        await lost.touch("a")
        await lost.wait_for(Abort)
        await done.complete((await done.obtain_grant()).grant, "5")
        await waiting.touch("e")
        await granted.obtain_grant()
        await waiting.request_commit()
        await queued.send_intent(**quiet, admission="queued", scope=over.event(CommitIntent).scope)
        await granted.heartbeat()
        await scene.settle()
        before = _state_of(sessions[-1])
        live = sessions[-1]
        for owner in live._owners.values():  # as a crash would: nothing is given back
            owner.locks._keepers.clear()

    async with scene.agent():
        after = _state_of(sessions[-1])

    assert len(sessions) == 2
    assert after == before


async def test_the_committed_offset_is_the_oldest_intent_that_a_replay_needs(scene: World) -> None:
    async with scene.agent(log_level="info"):
        gone, held = scene.writer("gone"), scene.writer("held")
        await gone.begin()
        await gone.complete((await gone.obtain_grant()).grant)
        sequence = await held.send_intent(heartbeat_seconds=100)
        await held.wait_for(Admitted)
        for _ in range(20):
            await held.heartbeat()
        partition = await _committed_to(scene, held)

    offset, metadata = (await scene.committed())[partition]
    [admitted] = [
        each for each in scene.received if isinstance(each.event, Admitted) and held.mine(each.event)
    ]
    assert offset == sequence
    assert 0 < metadata["decisions"] <= admitted.offset


async def test_a_restart_replays_only_from_the_committed_offset(scene: World) -> None:
    async with scene.agent():
        gone = scene.writer("gone")
        await gone.begin(batch_id=1)
        await gone.complete((await gone.obtain_grant()).grant)
        await scene.settle()
        await _committed_to(scene, gone, after=True)

    with scene.process() as process:
        await process.ready()
        lines = process.lines()

    assert [line["open"] for line in lines if line["event"] == "partition.live"] == [0, 0]
    assert [line["decisions_replayed"] for line in lines if line["event"] == "partition.live"] == [0, 0]


async def test_marks_that_a_transactional_producer_leaves_hold_up_no_replay_and_no_check(
    scene: World,
) -> None:
    """Kafka's own mark is the last record of the log then, and no consumer ever sees it."""
    silent = scene.writer("silent")
    producer = AIOKafkaProducer(bootstrap_servers=scene.bootstrap_servers, transactional_id=scene.prefix)
    async with producer, producer.transaction():
        intent = silent.event(CommitIntent, heartbeat_seconds=0.4)
        await producer.send_and_wait(f"{scene.prefix}.writers", encode(intent), key=silent.table.encode())

    async with scene.agent():
        await silent.wait_for(Admitted)
        abort = await silent.wait_for(Abort)

    assert abort.reason == "writer-lost"


async def test_sigterm_while_a_grant_runs_ends_in_order_and_leaves_the_lock(scene: World) -> None:
    with scene.process() as process:
        await process.ready()
        writer = scene.writer("committing")
        await writer.begin(heartbeat_seconds=100)
        await writer.obtain_grant()

        process.popen.send_signal(signal.SIGTERM)
        assert await process.ended() == 0

    assert not _lock(scene).expired
    assert process.lines()[-1]["event"] == "agent.stopped"


async def test_sigterm_without_a_grant_gives_the_lock_back(scene: World) -> None:
    with scene.process() as process:
        await process.ready()
        writer = scene.writer("computing")
        await writer.begin(heartbeat_seconds=100)
        await scene.wait_for(LockAcquired)

        process.popen.send_signal(signal.SIGTERM)
        assert await process.ended() == 0

    assert _lock(scene).expired
    await scene.wait_for(LockReleased)


async def test_sigterm_while_kafka_is_awaited_ends_the_agent(scene: World) -> None:
    with scene.process(bootstrap_servers="127.0.0.1:9") as process:
        waiting = await process.logged("kafka.waiting")
        assert "127.0.0.1:9" in str(waiting)

        process.popen.send_signal(signal.SIGTERM)
        assert await process.ended() == 0


async def test_two_agents_share_the_tables_and_one_may_go_at_any_time(scene: World) -> None:
    jobs = WriterJobs(scene)
    async with anyio.create_task_group() as consuming:
        consuming.start_soon(jobs.consume)
        with scene.process(**BRISK) as first, scene.process(**BRISK) as second:
            await first.ready()
            await second.ready()
            async with anyio.create_task_group() as burst:
                for number in range(6):
                    burst.start_soon(jobs.job, f"job-{number}", 8, random.Random(number))
                await jobs.wait_until_finished(20)
                second.popen.send_signal(signal.SIGTERM)
                assert await second.ended() == 0
                with scene.process(**BRISK) as third:
                    await third.ready()
                    await jobs.wait_until_finished(48)
        consuming.cancel_scope.cancel()

    found = await _transactions(scene)
    assert len(found) >= 48
    check(found)


@pytest.mark.timeout(600)  # it sleeps for longer than Kafka's shortest session timeout, 6 s, and then some
async def test_an_agent_that_slept_while_another_took_its_tables_over_changes_nothing(scene: World) -> None:
    jobs = WriterJobs(scene)
    async with anyio.create_task_group() as consuming:
        consuming.start_soon(jobs.consume)
        with scene.process(**BRISK, session_timeout_seconds=6) as sleeper:
            await sleeper.ready()
            async with anyio.create_task_group() as burst:
                for number in range(6):
                    burst.start_soon(jobs.job, f"job-{number}", 12, random.Random(number))
                await jobs.wait_until_finished(12)
                sleeper.popen.send_signal(signal.SIGSTOP)
                with scene.process(**BRISK, session_timeout_seconds=6) as second:
                    await second.ready()
                    await jobs.wait_until_finished(36)
                    await anyio.sleep(5)  # it has slept for longer now than any share of the timeout
                    sleeper.popen.send_signal(signal.SIGCONT)
                    slept = await sleeper.logged("kafka.waiting")
                    await jobs.wait_until_finished(72)
        consuming.cancel_scope.cancel()

    assert "was suspended" in slept["problem"]
    found = await _transactions(scene)
    assert len(found) >= 72
    check(found)


async def test_a_late_take_of_a_former_owner_makes_the_owner_begin_anew(scene: World) -> None:
    """Found by the simulation: the record was under way while the partitions moved. Nothing the owner says counts after it."""
    with scene.process(**BRISK) as process:
        await process.ready()
        before = scene.writer("before")
        await before.begin(heartbeat_seconds=100)
        partition = next(said.partition for said in scene.received if isinstance(said.event, Admitted))
        taken = PartitionTaken(
            event_id=uuid.uuid4().hex,
            table=partition_name(partition),
            at=datetime.now(UTC),
            agent="ghost",
            term="ghost",
        )
        await scene.producer.send_and_wait(
            scene.settings().topics.decisions, encode(taken), key=taken.table.encode(), partition=partition
        )
        waiting = await process.logged("kafka.waiting")
        await before.touch("x")
        grant = await before.obtain_grant()
        await before.complete(grant.grant)

    assert "took partition" in waiting["problem"]
    found = await _transactions(scene)
    assert found[before.transaction].decisions("commit-granted"), "the grant counts"
    check(found)


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_moment_the_agent_is_killed_at_every_promise_holds(scene: World, seed: int) -> None:
    """200 transactions of 8 jobs on two tables; kill -9 at four random moments."""
    chance = random.Random(seed)
    jobs = WriterJobs(scene)
    async with anyio.create_task_group() as consuming:
        consuming.start_soon(jobs.consume)
        async with anyio.create_task_group() as burst:
            for number in range(8):
                table = f"{scene.table}-{number % 2}"
                burst.start_soon(jobs.job, f"job-{number}", 25, random.Random(f"{seed}-{number}"), table)
            for kills in range(1, 5):
                with scene.process(**BRISK) as process:
                    await process.ready()
                    done = jobs.finished
                    with anyio.move_on_after(20):
                        await jobs.wait_until_finished(min(done + chance.randrange(5, 35), 40 * kills))
                    await anyio.sleep(chance.random() / 20)
                    process.kill()
            with scene.process(**BRISK) as process:
                await jobs.wait_until_finished(200)
        consuming.cancel_scope.cancel()

    print(f"seed {seed}: {jobs.outcomes}")
    found = await _transactions(scene)
    assert len(found) == 200
    assert jobs.outcomes["committed"] > 0
    check(found)


@dataclass
class WriterJobs:
    """One listener for many writers, and jobs that behave as writers must."""

    scene: World
    decisions: dict[str, list[Any]] = field(default_factory=dict)
    changed: anyio.Event = field(default_factory=anyio.Event)
    finished: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)

    async def consume(self) -> None:
        heard = 0
        while True:
            await self.scene.poll()
            for said in self.scene.received[heard:]:
                if said.topic.endswith(".decisions"):
                    self.decisions.setdefault(getattr(said.event, "transaction", ""), []).append(said.event)
            heard = len(self.scene.received)
            self._changed()

    def _changed(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def wait_until_finished(self, finished: int) -> None:
        with anyio.fail_after(150):
            while self.finished < finished:
                await self.changed.wait()

    async def wait_for_answer(self, writer: Writer, *kinds: type[Any]) -> Any:
        while True:
            for decision in self.decisions.get(writer.transaction, ()):
                if isinstance(decision, (*kinds, Abort)):
                    return decision
            await self.changed.wait()

    async def job(self, name: str, batches: int, chance: random.Random, table: str | None = None) -> None:
        for batch in range(batches):
            outcome = await self._attempt(self.scene.writer(name, table), batch, chance)
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
            self.finished += 1
            self._changed()

    async def _attempt(self, writer: Writer, batch: int, chance: random.Random) -> str:
        await writer.send_intent(batch_id=batch, heartbeat_seconds=100)
        if not isinstance(first := await self.wait_for_answer(writer, Admitted, AlreadyCommitted), Admitted):
            return _outcome(first)
        for _ in range(chance.randrange(1, 3)):
            await writer.touch(str(chance.randrange(12)))
            await anyio.sleep(chance.random() / 50)
        sent = time.monotonic()
        await writer.request_commit()
        answer = await self.wait_for_answer(writer, CommitGranted)
        if not isinstance(answer, CommitGranted):
            return _outcome(answer)
        if time.monotonic() > sent + answer.lease_seconds - 0.5:
            await writer.abandon()
            return "too-late"
        await writer.complete(answer.grant)
        return "committed"


def _outcome(decision: Any) -> str:
    return str(getattr(decision, "reason", decision.type))


def _lock(scene: World) -> LockRecord:
    record = parse(scene.lock_object().read_bytes())
    assert isinstance(record, LockRecord)
    return record


async def _transactions(scene: World) -> dict[str, Any]:
    log = await scene.read_log()
    settings = scene.settings()
    return transactions(log[settings.topics.writers], log[settings.topics.decisions])


async def _committed_to(scene: World, writer: Writer, *, after: bool = False) -> int:
    """Wait until the group's offset has come to this writer's first event, or past its last; its partition."""
    log = (await scene.read_log())[scene.settings().topics.writers]
    mine = [record for record in log if writer.transaction.encode() in record.value]
    wanted = mine[-1].offset + 1 if after else mine[0].offset
    with anyio.fail_after(60):
        while (await scene.committed()).get(mine[0].partition, (-1, {}))[0] < wanted:
            await anyio.sleep(0.2)
    return int(mine[0].partition)


def _table_in_the_other_partition(scene: World) -> str:
    def partition(table: str) -> int:
        return int(murmur2(table.encode()) & 0x7FFFFFFF) % scene.settings().partitions

    others = (f"{scene.table}-later-{number}" for number in range(100))
    return next(table for table in others if partition(table) != partition(scene.table))


def _state_of(session: KafkaSession) -> dict[str, Any]:
    """What the session's tables know, without clocks, and with moments as an order."""
    return {
        uri: {
            "transactions": [
                (
                    each.id,
                    each.phase,
                    each.sequence,
                    each.seq,
                    each.batch_id,
                    each.requested_id,
                    each.footprint,
                    each.grant and (each.grant.id, each.grant.lock_owner, each.grant.revoked),
                    [
                        (other.ended > each.began, other.requested > each.requested)
                        for other in state.transactions.values()
                    ],
                )
                for each in state.transactions.values()
            ],
            "ledger": state.ledger,
            "closed": state.closed,
            "losses": state.losses,
        }
        for owner in session._owners.values()
        for uri, state in owner.tables.items()
    }
