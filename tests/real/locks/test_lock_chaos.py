"""The lock under faults on every side, with a real store and a real Kafka: agents and writers as processes.

All checks use evidence from outside of the agents. None depends on the speed of the machine.
"""

import time
from collections.abc import Iterable, Sequence

import anyio
import pytest
from aiokafka.structs import ConsumerRecord

from lakewarden.events import AUDIT_EVENT, Undecodable, decode
from tests.lock_audit import Drifts, LockAudit
from tests.real import evidence, promises
from tests.real.chaos import TIGHT, Chaos
from tests.servers.proxy import CALM, CHANCE_FAULTS, Fault, Weather

pytestmark = [pytest.mark.real, pytest.mark.wide, pytest.mark.timeout(1_800)]
STORMY = Weather(share=0.12, burst=0.35)
LEAST_SECONDS = 60.0
"""Of the faults."""
TABLES = {"plain": False, "other": False, "hudi": True}
"""The tables, and whether their lock is where Hudi has its own."""


async def test_a_minute_of_faults_causes_no_two_holders_and_every_loss_is_published(
    lock_storm: Chaos,
) -> None:
    async with lock_storm.scene.consuming():
        await _run_faults(lock_storm)

    print(
        f"injected: {dict(lock_storm.proxy.injected)} of {lock_storm.proxy.requests.total()}; done: {dict(lock_storm.faults)}"
    )
    assert all(lock_storm.proxy.injected[fault] for fault in (*CHANCE_FAULTS, Fault.HANG))
    for name in TABLES:
        _check_that_no_two_relied_on_the_lock(lock_storm, name)
    log = await lock_storm.scene.read_log()
    topics = lock_storm.scene.settings().topics
    promises.check(promises.transactions(log[topics.writers], log[topics.decisions]))
    _check_the_audit(log[topics.audit])
    _check_that_every_loss_led_to_an_abort(
        lock_storm, log[topics.writers], log[topics.decisions], log[topics.audit]
    )


async def _run_faults(storm: Chaos) -> None:
    await storm.start_agent()
    await storm.start_agent()
    for name, shared in TABLES.items():
        storm.start_writers(name, shared=shared)
    await storm.wait_for_commits()

    storm.proxy.weather = STORMY
    until = time.monotonic() + LEAST_SECONDS
    await storm.pause_owner("plain")
    await storm.kill_owner("other")
    await storm.lose_a_running_lease("plain")
    await storm.pause_owner("hudi")
    await anyio.sleep(max(0.0, until - time.monotonic()))
    storm.proxy.weather = CALM

    await storm.wait_for_commits()
    await storm.finish()


def _check_that_no_two_relied_on_the_lock(storm: Chaos, name: str) -> None:
    lines = storm.writers[name].lines
    relied = evidence.publishes(lines)
    print(
        f"{name}: {len(relied)} publishes, {sum(line['what'] == 'stopped' for line in lines)} of them stopped"
    )
    assert evidence.overlapping(relied) == []
    assert evidence.tokens_rise(lines)


def _check_the_audit(audit: Iterable[ConsumerRecord]) -> None:
    drift_ms = TIGHT["drift_seconds"] * 1000
    checked = LockAudit(Drifts(drift_ms, 2 * drift_ms))
    for record in audit:
        event = decode(AUDIT_EVENT, record.value)
        assert not isinstance(event, Undecodable), event
        checked.add(event)
    assert [overlap for lock in checked.acquisitions for overlap in checked.overlaps(lock)] == []
    assert len(checked.acquisitions) == len(TABLES)
    assert all(count > 1 for count in checked.acquisitions.values())


def _check_that_every_loss_led_to_an_abort(
    storm: Chaos,
    writers: Iterable[ConsumerRecord],
    decisions: Sequence[ConsumerRecord],
    audit: Iterable[ConsumerRecord],
) -> None:
    lines = [line for writers in storm.writers.values() for line in writers.lines]
    losses = evidence.losses_under_a_grant(writers, decisions, audit, lines, storm.killed)
    print(f"{len(losses)} leases lost under a running grant")
    assert [loss for loss in losses if loss.reason is None] == []
    assert [loss for loss in losses if (loss.last_wall_ms or 0) > loss.valid_until] == []
    provoked = {line["transaction"] for line in lines if line["what"] == "stopped" and line["long"]}
    assert provoked & {loss.transaction for loss in losses}
