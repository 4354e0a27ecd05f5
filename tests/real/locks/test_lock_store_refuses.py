"""A store that refuses every request for about two leases: an expired session, as the S3 client sees it.

With a real agent, real writers, a real Kafka, and a fault proxy in front of a real store. The lease is shorter than the default,
and so is the time of the refusals: they stand for a minute.
"""

from __future__ import annotations

import anyio
import pytest

from lakewarden.events import Abort, CommitGranted, LockLost
from tests.real.chaos import PATIENCE_SECONDS, Chaos
from tests.servers.fault_proxy import CALM, Fault, Weather

pytestmark = [pytest.mark.real, pytest.mark.wide]
SHORT = {
    "validity_seconds": 12.0,
    "renew_seconds": 1.0,
    "request_timeout_seconds": 0.9,
    "margin_seconds": 5.0,
    "grant_seconds": 11.0,
    "hudi_validity_seconds": 30.0,
}
"""An unconfirmed lease counts as lost after 6.5 s, before the grant lapses."""
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
    await granted.heartbeat()

    proxy.weather = REFUSING
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


async def test_a_lasting_refusal_aborts_the_transaction_and_the_next_one_commits(lock_storm: Chaos) -> None:
    scene, proxy = lock_storm.scene, lock_storm.proxy
    await lock_storm.start_agent(**SHORT, refusal_seconds=5.0, lock_places=("s3://*=>usual",))
    proxy.weather = REFUSING
    refused = scene.writer("refused", lock_storm.table("t"))
    await refused.begin(heartbeat_seconds=100)
    await refused.request_commit()
    abort = await refused.wait_for(Abort)
    proxy.weather = CALM
    after = scene.writer("after", lock_storm.table("t"))
    await after.begin(heartbeat_seconds=100)
    await after.obtain_grant()

    assert (abort.reason, abort.retriable) == ("lock-refused", True)
    assert "ExpiredToken" in str(abort.detail)
    assert f"s3://{lock_storm.bucket}/locks/" in str(abort.detail)
