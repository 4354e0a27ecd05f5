"""The agent's decisions about transactions, over a real broker. The rules: `tests/unit/handlers/table/`."""

import pytest

from lakewarden.events import (
    Abort,
    Admitted,
    AlreadyCommitted,
    BatchCommitted,
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


async def test_a_committed_batch_is_never_granted_again_also_after_a_restart(scene: World) -> None:
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
        await again.wait_for(AlreadyCommitted)

    async with scene.agent():
        restarted = scene.writer("job")
        await restarted.send_intent(batch_id=7)
        await restarted.wait_for(AlreadyCommitted)

    assert (renewed.grant, renewed.seq) == (granted.grant, once.seq)
    assert (entry.batch_id, entry.transaction, entry.version) == (7, once.transaction, "snapshot-12")
    done = {(each.committed_transaction, each.version) for each in scene.events(AlreadyCommitted)}
    assert done == {(once.transaction, "snapshot-12")}
    assert [each.transaction for each in scene.events(Admitted)] == [once.transaction]


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
