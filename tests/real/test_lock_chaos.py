"""The lock under everything at once, on a real store and a real Kafka: agents, writers and foreign holders as processes.

Every conclusion is drawn from evidence outside of the agents. Nothing here is a statement about speed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import anyio
import pytest
from aiokafka.structs import ConsumerRecord

from lakewarden.events import AUDIT_EVENT, Abort, CommitGranted, LockLost, Undecodable, decode
from lakewarden.handlers import lock_audit
from tests.kafka_fixture import KafkaServer
from tests.real import evidence, promises
from tests.real.chaos import TIGHT, Chaos, chaos
from tests.real.writers import World, Writer
from tests.servers.fault_proxy import CALM, CHANCE_FAULTS, Fault, Weather
from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SEED_VARIABLE = "LAKEWARDEN_CHAOS_SEED"
STORMY = Weather(share=0.12, burst=0.35)
SHORTEST_SECONDS = 60.0
"""Of the storm."""
TABLES = {"plain": False, "other": False, "hudi": True}
"""And whether a table's lock is shared with foreign holders."""
HOLDERS = 3
OVERTAKEN = 16
"""Requests for one lock while a request for another hangs: some eight grants."""
ROOMY = {
    "validity_seconds": 15.0,
    "margin_seconds": 5.0,
    "grant_seconds": 14.0,
    "hudi_validity_seconds": 16.0,
}
"""A lease in doubt is given up 5.5 s before its end: room for a slow machine to bring the word to the writer."""


@pytest.fixture
def seed() -> int:
    """Another one each time; that of a failed run is in its output."""
    chosen = int(os.environ.get(SEED_VARIABLE, "") or random.SystemRandom().randrange(1_000_000))
    print(f"{SEED_VARIABLE}={chosen}")
    return chosen


@pytest.fixture
async def storm(
    kafka: KafkaServer, topic_prefix: str, tmp_path: Path, s3_credentials: S3Server, seed: int
) -> AsyncIterator[Chaos]:
    async with chaos(kafka.bootstrap_servers, topic_prefix, tmp_path, s3_credentials, seed) as made:
        yield made


async def test_a_minute_of_faults_on_every_side_makes_no_two_holders_and_loses_no_word(storm: Chaos) -> None:
    async with storm.listening():
        await _rage(storm)

    print(f"injected: {dict(storm.proxy.injected)} of {storm.proxy.requests}; done: {dict(storm.deeds)}")
    assert all(storm.proxy.injected[fault] for fault in (*CHANCE_FAULTS, Fault.HANG))
    for name in TABLES:
        _check_that_nobody_met(storm, name)
    log = await storm.scene.everything()
    topics = storm.scene.settings().topics
    promises.check(promises.stories(log[topics.writers], log[topics.decisions]))
    _check_the_audit(log[topics.audit])
    _check_that_losses_were_heard(storm, log[topics.writers], log[topics.decisions], log[topics.audit])


async def test_a_store_that_hangs_for_one_lock_delays_no_other_and_its_writer_hears_of_the_loss_in_time(
    storm: Chaos,
) -> None:
    scene = storm.scene
    await storm.start_agent(**ROOMY)
    hung = scene.writer("hung", storm.table("hung"))
    await hung.begin(heartbeat_seconds=100)
    await hung.granted()

    with storm.proxy.hanging(lambda request: "/locks/warehouse-hung-" in request.path) as hang:
        await hang.first.wait()
        while hang.overtaken < OVERTAKEN:
            assert scene.heard(LockLost) == []
            other = scene.writer("other", storm.table("other"))
            await other.begin()
            await other.granted()
            await other.complete()
        assert scene.heard(LockLost) == []
        await _hears_of_its_loss_in_time(scene, hung)
    after = scene.writer("after", hung.table)
    await hung.abandon()
    await after.begin()
    await after.granted()


async def test_a_store_that_hangs_for_everybody_delays_no_abort_and_no_word_of_a_loss(storm: Chaos) -> None:
    scene = storm.scene
    await storm.start_agent(**ROOMY)
    granted = scene.writer("granted", storm.table("one"))
    await granted.begin(heartbeat_seconds=100)
    await granted.granted()

    with storm.proxy.hanging() as hang:
        await hang.first.wait()
        elder, younger = (scene.writer(name, storm.table("two")) for name in ("elder", "younger"))
        for writer in (elder, younger):
            await writer.begin(heartbeat_seconds=100)
            await writer.touch("x")
        assert (await younger.heard(Abort)).reason == "conflict"
        await elder.ask()
        assert scene.heard(LockLost) == []
        await _hears_of_its_loss_in_time(scene, granted)
        assert scene.heard(CommitGranted, elder.mine) == []
    await elder.heard(CommitGranted)


async def _hears_of_its_loss_in_time(scene: World, writer: Writer) -> None:
    abort = await writer.heard(Abort)
    heard_ms = time.time() * 1000
    [lost] = await scene.hear(LockLost)

    assert abort.reason == "lease-lost"
    assert lost.table == writer.table
    assert heard_ms < lost.valid_until


async def _rage(storm: Chaos) -> None:
    await storm.start_agent()
    await storm.start_agent()
    for name, shared in TABLES.items():
        storm.start_writers(name, shared=shared)
    await storm.everybody_commits()

    for _ in range(HOLDERS):
        storm.start_holder("hudi")
    storm.proxy.weather = STORMY
    until = time.monotonic() + SHORTEST_SECONDS
    await storm.pause_owner("plain")
    await storm.kill_owner("other")
    await storm.kill_holder("hudi")
    await storm.lose_a_running_lease("plain")
    await storm.pause_owner("hudi")
    await anyio.sleep(max(0.0, until - time.monotonic()))
    storm.proxy.weather = CALM

    await storm.stop_holders()
    await storm.everybody_commits()
    await storm.finish()


def _check_that_nobody_met(storm: Chaos, name: str) -> None:
    lines = storm.writers[name].lines
    relied = evidence.publishes(lines)
    print(
        f"{name}: {len(relied)} publishes, {sum(line['what'] == 'stopped' for line in lines)} of them stopped"
    )
    if TABLES[name]:
        foreign = [
            interval
            for number, holder in enumerate(storm.holders)
            for interval in evidence.holdings(holder.lines, storm.holders_killed.get(number))
        ]
        turns = evidence.turns(relied, foreign)
        print(f"{name}: {len(foreign)} foreign holdings, {turns} hand-overs between them and the writers")
        assert turns >= 2
        relied += foreign
    assert evidence.overlapping(relied) == []
    assert evidence.tokens_rise(lines)


def _check_the_audit(audit: Iterable[ConsumerRecord]) -> None:
    events = []
    for record in audit:
        event = decode(AUDIT_EVENT, record.value)
        assert not isinstance(event, Undecodable), event
        events.append((lock_audit.Position(record.partition, record.offset), event))
    drifts = lock_audit.Drifts(TIGHT["drift_seconds"] * 1000, TIGHT["hudi_drift_seconds"] * 1000)
    report = lock_audit.check(events, drifts)
    assert [overlap for lock in report.locks for overlap in lock.overlaps] == []
    assert report.violations == 0
    assert len(report.locks) == len(TABLES)
    assert all(lock.acquisitions > 1 for lock in report.locks)


def _check_that_losses_were_heard(
    storm: Chaos,
    writers: Iterable[ConsumerRecord],
    decisions: Iterable[ConsumerRecord],
    audit: Iterable[ConsumerRecord],
) -> None:
    notes = [line for witness in storm.writers.values() for line in witness.lines]
    losses = evidence.losses_under_a_grant(writers, decisions, audit, notes, storm.killed)
    print(f"{len(losses)} leases lost under a running grant")
    assert [loss for loss in losses if loss.told is None] == []
    assert [loss for loss in losses if (loss.last_wall_ms or 0) > loss.valid_until] == []
    provoked = {line["transaction"] for line in notes if line["what"] == "stopped" and line["long"]}
    assert provoked & {loss.transaction for loss in losses}
