"""A store that hangs, for one lock or for all: which tables are delayed, and when a writer learns that its lease is lost.

With a real agent, real writers, a real Kafka, and a fault proxy in front of a real store.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from lakewarden.events import Abort, CommitGranted, LockLost
from tests.real.chaos import PATIENCE_SECONDS, Chaos
from tests.real.writers import World, Writer
from tests.servers.proxy import CALM, Fault, Weather
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.wide]

ROOMY = {"validity_seconds": 60.0, "hudi_validity_seconds": 60.0}
"""An unconfirmed lease counts as lost after 55.5 s, 4.5 s before its end. Both times suit a busy machine."""


@asynccontextmanager
async def alive(writer: Writer) -> AsyncIterator[None]:
    """Heartbeats each second, which extend the grant as long as the lock's lease allows."""
    async with anyio.create_task_group() as tasks:

        async def beat() -> None:
            while True:
                await writer.heartbeat()
                await anyio.sleep(1)

        tasks.start_soon(beat)
        yield
        tasks.cancel_scope.cancel()


async def test_a_store_that_hangs_for_one_lock_delays_no_other_lock(lock_storm: Chaos) -> None:
    scene = lock_storm.scene
    await lock_storm.start_agent(**ROOMY)
    hung = scene.writer("hung", lock_storm.table("hung"))
    await hung.begin(heartbeat_seconds=100)
    await hung.obtain_grant()

    hanging = lock_storm.proxy.hanging(lambda request: "/locks/warehouse-hung-" in request.path)
    async with alive(hung):
        with hanging as hang:
            await until(lambda: bool(hang.caught))
            other = scene.writer("other", lock_storm.table("other"))
            await other.begin()
            await other.obtain_grant()
            assert hang.served_meanwhile, "requests for the other lock"
            assert scene.events(LockLost) == []
            await _receives_abort_before_lease_end(scene, hung)
    after = scene.writer("after", hung.table)
    await hung.abandon()
    await after.begin()
    await after.obtain_grant()


async def test_a_store_that_hangs_for_all_locks_delays_no_abort(lock_storm: Chaos) -> None:
    scene = lock_storm.scene
    await lock_storm.start_agent(**ROOMY)
    granted = scene.writer("granted", lock_storm.table("one"))
    await granted.begin(heartbeat_seconds=100)
    await granted.obtain_grant()

    async with alive(granted):
        with lock_storm.proxy.hanging() as hang:
            await until(lambda: bool(hang.caught))
            elder, younger = (scene.writer(name, lock_storm.table("two")) for name in ("elder", "younger"))
            for writer in (elder, younger):
                await writer.begin(heartbeat_seconds=100)
                await writer.touch("x")
            assert (await younger.wait_for(Abort)).reason == "conflict"
            await elder.request_commit()
            assert scene.events(LockLost) == []
            await _receives_abort_before_lease_end(scene, granted)
            assert scene.events(CommitGranted, elder.mine) == []
    await elder.wait_for(CommitGranted)


async def _receives_abort_before_lease_end(scene: World, writer: Writer) -> None:
    abort = await writer.wait_for(Abort)
    [lost] = await scene.wait_for(LockLost)

    assert abort.reason == "lease-lost"
    assert lost.table == writer.table
    # The agent's time of the abort: when this process reads it depends on the machine's load.
    assert abort.at.timestamp() * 1000 < lost.valid_until


# A store that refuses every request for about two leases: an expired session, as the S3 client sees it. The lease is shorter than
# the default, and so is the time of the refusals: they stand for a minute.

SHORT = {"validity_seconds": 12.0}
"""An unconfirmed lease counts as lost after 10.7 s."""
REFUSING = Weather(share=1.0, faults=(Fault.EXPIRED,))
REFUSALS = 20
"""After the loss of the lease, one to two a second: with the time before it, about two leases."""


async def test_refusals_for_two_leases_end_no_transaction_that_waits(lock_storm: Chaos) -> None:
    """The granted transaction loses its lease, and may begin again. The others wait, and are granted afterwards."""
    scene, proxy = lock_storm.scene, lock_storm.proxy
    await lock_storm.start_agent(**SHORT)
    granted, other = (scene.writer(name, lock_storm.table("t")) for name in ("granted", "other"))
    await granted.begin(heartbeat_seconds=100)
    await other.begin(heartbeat_seconds=100)
    await granted.obtain_grant()
    await other.request_commit()

    proxy.weather = REFUSING
    async with alive(granted):
        abort = await granted.wait_for(Abort)
    [lost] = await scene.wait_for(LockLost)
    late = scene.writer("late", lock_storm.table("t"))
    await late.begin(heartbeat_seconds=100)
    await late.request_commit()
    refused = proxy.injected[Fault.EXPIRED]
    with anyio.fail_after(PATIENCE_SECONDS):
        while proxy.injected[Fault.EXPIRED] < refused + REFUSALS:
            await scene.poll()
    assert scene.events(CommitGranted, other.mine) == []
    proxy.weather = CALM
    await granted.abandon()

    for writer in (other, late):
        grant = await writer.wait_for(CommitGranted)
        await writer.complete(grant.grant)
        assert scene.events(Abort, writer.mine) == []
    assert (abort.reason, abort.retriable) == ("lease-lost", True)
    assert "ExpiredToken" in str(abort.detail)
    assert "ExpiredToken" in str(lost.detail)
