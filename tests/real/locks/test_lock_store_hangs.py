"""A store that answers nobody, or not for one lock: who is held up, who is not, and who hears of what in time.

Real agents and writers, a real Kafka, a proxy in front of a real store.
"""

from __future__ import annotations

import time

import pytest

from lakewarden.events import Abort, CommitGranted, LockLost
from tests.real.chaos import Chaos
from tests.real.writers import World, Writer

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
OVERTAKEN = 16
"""Requests for one lock while a request for another hangs: some eight grants."""
ROOMY = {
    "validity_seconds": 15.0,
    "margin_seconds": 5.0,
    "grant_seconds": 14.0,
    "hudi_validity_seconds": 16.0,
}
"""A lease in doubt is given up 5.5 s before its end: room for a slow machine to bring the word to the writer."""


async def test_a_store_that_hangs_for_one_lock_delays_no_other_and_its_writer_hears_of_the_loss_in_time(
    lock_storm: Chaos,
) -> None:
    scene = lock_storm.scene
    await lock_storm.start_agent(**ROOMY)
    hung = scene.writer("hung", lock_storm.table("hung"))
    await hung.begin(heartbeat_seconds=100)
    await hung.obtain_grant()

    with lock_storm.proxy.hanging(lambda request: "/locks/warehouse-hung-" in request.path) as hang:
        await hang.first.wait()
        while hang.served_while_hanging < OVERTAKEN:
            assert scene.events(LockLost) == []
            other = scene.writer("other", lock_storm.table("other"))
            await other.begin()
            await other.obtain_grant()
            await other.complete()
        assert scene.events(LockLost) == []
        await _receives_abort_before_lease_end(scene, hung)
    after = scene.writer("after", hung.table)
    await hung.abandon()
    await after.begin()
    await after.obtain_grant()


async def test_a_store_that_hangs_for_everybody_delays_no_abort_and_no_word_of_a_loss(
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
    heard_ms = time.time() * 1000
    [lost] = await scene.wait_for(LockLost)

    assert abort.reason == "lease-lost"
    assert lost.table == writer.table
    assert heard_ms < lost.valid_until
