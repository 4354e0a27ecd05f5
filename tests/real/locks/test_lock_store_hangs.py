"""A store that hangs, for one lock or for all: which tables are delayed, and when a writer learns that its lease is lost.

With a real agent, real writers, a real Kafka, and a fault proxy in front of a real store.
"""

from __future__ import annotations

import pytest

from lakewarden.events import Abort, CommitGranted, LockLost
from tests.real.chaos import Chaos
from tests.real.writers import World, Writer

pytestmark = [pytest.mark.real, pytest.mark.wide]
ROOMY = {
    "validity_seconds": 40.0,
    "margin_seconds": 12.0,
    "grant_seconds": 30.0,
    "hudi_validity_seconds": 40.0,
}
"""An unconfirmed lease counts as lost after 27.5 s, 12.5 s before its end. Both times suit a busy machine."""


async def test_a_store_that_hangs_for_one_lock_delays_no_other_lock(
    lock_storm: Chaos,
) -> None:
    scene = lock_storm.scene
    await lock_storm.start_agent(**ROOMY)
    hung = scene.writer("hung", lock_storm.table("hung"))
    await hung.begin(heartbeat_seconds=100)
    await hung.obtain_grant()

    with lock_storm.proxy.hanging(lambda request: "/locks/warehouse-hung-" in request.path) as hang:
        await hang.first.wait()
        other = scene.writer("other", lock_storm.table("other"))
        await other.begin()
        await other.obtain_grant()
        assert hang.served_while_hanging, "requests for the other lock"
        assert scene.events(LockLost) == []
        await _receives_abort_before_lease_end(scene, hung)
    after = scene.writer("after", hung.table)
    await hung.abandon()
    await after.begin()
    await after.obtain_grant()


async def test_a_store_that_hangs_for_all_locks_delays_no_abort(
    lock_storm: Chaos,
) -> None:
    scene = lock_storm.scene
    await lock_storm.start_agent(**ROOMY)
    granted = scene.writer("granted", lock_storm.table("one"))
    await granted.begin(heartbeat_seconds=100)
    await granted.obtain_grant()

    with lock_storm.proxy.hanging() as hang:
        await hang.first.wait()
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
