"""The agent's decisions about transactions, over a real broker. The rules: `tests/unit/handlers/table/`."""

from __future__ import annotations

import pytest

from lakewarden.events import (
    Abort,
    Admitted,
    AlreadyCommitted,
    BatchCommitted,
    CommitGranted,
    ConflictDetected,
    GrantRenewed,
)
from tests.real.writers import World

pytestmark = [pytest.mark.real]


async def test_the_later_of_two_writers_of_a_file_group_is_aborted_before_it_requests_its_commit(
    scene: World,
) -> None:
    async with scene.agent():
        first, second = scene.writer("first"), scene.writer("second")
        await first.begin()
        await second.begin()
        await first.touch("x", "y")
        await second.touch("y", "z")
        abort = await second.wait_for(Abort)
        [detected] = await scene.wait_for(ConflictDetected)
        granted = await first.obtain_grant()
        await scene.settle()

    assert (abort.reason, abort.retriable) == ("conflict", True)
    [entry] = abort.conflicts
    assert (entry.partition, entry.file_group, entry.kind) == ("p", "y", "marker")
    assert (entry.other_transaction, entry.other_writer) == (first.transaction, "first")
    assert (detected.victim, detected.winner) == (second.transaction, first.transaction)
    assert granted.transaction == first.transaction
    assert scene.events(Abort, first.mine) == []
    assert len(scene.events(ConflictDetected)) == 1


async def test_a_committed_batch_is_never_granted_again(scene: World) -> None:
    async with scene.agent():
        once = scene.writer("job")
        await once.begin(batch_id=7)
        await once.touch("x")
        granted = await once.obtain_grant()
        await once.heartbeat()
        renewed = await once.wait_for(GrantRenewed)
        await once.complete(granted.grant, "snapshot-12")
        [entry] = await scene.wait_for(BatchCommitted)

        again = scene.writer("job")
        await again.send_intent(batch_id=7)
        done = await again.wait_for(AlreadyCommitted)

    assert (renewed.grant, renewed.seq) == (granted.grant, once.seq)
    assert (entry.batch_id, entry.transaction, entry.version) == (7, once.transaction, "snapshot-12")
    assert (done.committed_transaction, done.version) == (once.transaction, "snapshot-12")
    assert scene.events(Admitted, again.mine) == []


async def test_the_ledger_survives_a_restart_of_the_agent(scene: World) -> None:
    async with scene.agent():
        once = scene.writer("job")
        await once.begin(batch_id=7)
        await once.complete((await once.obtain_grant()).grant)
        await scene.wait_for(BatchCommitted)

    async with scene.agent():
        again = scene.writer("job")
        await again.send_intent(batch_id=7)
        done = await again.wait_for(AlreadyCommitted)

    assert done.committed_transaction == once.transaction


async def test_a_lapsed_grant_is_published_before_the_next_grant(scene: World) -> None:
    async with scene.agent(grant_seconds=2):
        silent, overlapping, next_one = scene.writer("silent"), scene.writer("over"), scene.writer("next")
        for each in (silent, overlapping, next_one):
            await each.begin(heartbeat_seconds=100)
        await silent.touch("x")
        await silent.obtain_grant()
        await next_one.request_commit()
        await next_one.wait_for(CommitGranted)
        await overlapping.touch("x")
        late = await overlapping.wait_for(Abort)

    assert late.reason == "outcome-unknown"
    lapsed = scene.events(Abort, silent.mine)
    assert [each.reason for each in lapsed] == ["outcome-unknown"]
    order = [each.event for each in scene.received if isinstance(each.event, Abort | CommitGranted)]
    assert order.index(lapsed[0]) < order.index(scene.events(CommitGranted, next_one.mine)[0])


async def test_a_silent_writer_is_lost_while_others_write_without_a_pause(scene: World) -> None:
    """A busy log always has unread events, which is not a lag."""
    async with scene.agent():
        silent = scene.writer("silent")
        await silent.begin(heartbeat_seconds=0.4)
        busy = scene.writer("busy", f"{scene.table}-busy")
        await busy.begin(heartbeat_seconds=100)
        sent = 0
        while not scene.events(Abort, silent.mine):
            await busy.touch(*(f"{sent}-{number}" for number in range(50)))
            sent += 1
            if sent % 20 == 0:
                await scene.poll(timeout_ms=0)
            assert sent < 20_000

    assert scene.events(Abort, silent.mine)[0].reason == "writer-lost"
