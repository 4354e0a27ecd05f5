"""`lakewarden abort` and `lakewarden ledger`, against a real broker and agent."""

from __future__ import annotations

import json

import anyio
import pytest

from lakewarden.events import Abort, Admitted, AlreadyCommitted, BatchCommitted, CommitGranted
from tests.printed import as_shown
from tests.real.writers import World, Writer

pytestmark = [pytest.mark.real]

COMMANDS = "docs/commands.md"


async def test_an_operator_ends_a_transaction_and_sees_the_outcome(scene: World) -> None:
    """Its work hangs. The abort frees what it touched."""
    async with scene.agent():
        hung = scene.writer("shop")
        await hung.begin(batch_id=7)

        printed = await scene.answer("abort", hung.transaction[:-2], "--reason", "hangs", "--operator", "ann")
        abort = await hung.wait_for(Abort)
        again = await scene.run("abort", hung.transaction)
        explained = await scene.answer("explain", hung.transaction)

    assert (abort.reason, abort.retriable) == ("operator", True)
    assert printed == (
        f"transaction {hung.transaction} of writer shop, table {scene.table}, active: abort requested\n"
        "aborted (operator): requested by operator 'ann': hangs\n"
    )
    as_shown(COMMANDS, "lakewarden abort shop-3f0cb31b --reason hangs --operator ann", printed)
    assert again.returncode == 1
    assert f"transaction {hung.transaction} of writer shop, table {scene.table}, has ended" in again.stderr
    assert "operator ann requests its abort: hangs" in explained
    assert "ABORTED (operator)" in explained


async def test_the_grant_of_a_granted_transaction_is_withdrawn_and_the_command_waits_for_its_end(
    scene: World,
) -> None:
    """The writer may be publishing, so no other one is granted before the lease is over."""
    async with scene.agent():
        hung, other = scene.writer("hung"), scene.writer("other")
        await hung.begin()
        await other.begin()
        await hung.obtain_grant()
        await other.request_commit()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_renew, hung)
            done = await scene.run("abort", hung.transaction, "--output", "json")
            tasks.cancel_scope.cancel()
        aborts = await scene.wait_for(Abort, hung.mine, count=2)
        await other.wait_for(CommitGranted)

    outcome = json.loads(done.stdout)
    assert [each.reason for each in aborts] == ["lease-lost", "outcome-unknown"]
    assert (done.returncode, outcome["phase"], outcome["outcome"]) == (0, "granted", "outcome-unknown")


async def _renew(writer: Writer) -> None:
    """Renew the writer's grant until it is withdrawn, so that it doesn't end before the command has started."""
    while True:
        await writer.heartbeat()
        await anyio.sleep(1)


async def test_status_shows_a_withdrawn_grant_with_the_reason(scene: World) -> None:
    """Until its lease is over, it is why no other transaction is granted."""
    async with scene.agent(validity_seconds=300):
        hung = scene.writer("hung")
        await hung.begin()
        await hung.obtain_grant()
        ended = await scene.run("abort", hung.transaction, "--reason", "hangs", "--timeout", "1")
        await hung.wait_for(Abort)

        as_json = await scene.answer("status", "--output", "json")
        as_text = await scene.answer("status")

    [view] = json.loads(as_json)
    [shown] = view["transactions"]
    assert (shown["phase"], shown["revoked"].partition(":")[0]) == ("granted", "lease-lost")
    assert shown["granted"] is not None
    assert (
        "the grant of hung is withdrawn, its lease still runs: lease-lost: requested by operator" in as_text
    )
    assert ended.returncode == 1
    assert "no outcome within 1 s (--timeout); the request is in the log" in ended.stderr


async def test_an_unknown_transaction_cannot_be_aborted(scene: World) -> None:
    """A typing error."""
    async with scene.agent():
        done = await scene.run("abort", "nothing")

    assert done.returncode == 1
    assert "no transaction 'nothing' in all 2 partitions of" in done.stderr
    assert len(done.stderr.splitlines()) == 1


async def test_an_operator_corrects_the_ledger_also_beyond_a_restart(scene: World) -> None:
    """A mistaken batch id made the agent skip every later batch of a query."""
    async with scene.agent():
        mistaken = scene.writer("job:1")
        await mistaken.begin(batch_id=10**12)
        await mistaken.complete((await mistaken.obtain_grant()).grant)
        await scene.wait_for(BatchCommitted)

        shown = await scene.answer("ledger", "show", "job", "--output", "json")
        correction = ("--writer", "job:1", "--batch-id", "7", "--reason", "a mistake")
        corrected = await scene.answer("ledger", "correct", *correction)
        skipped = scene.writer("job:1")
        await skipped.send_intent(batch_id=7)
        answer = await skipped.wait_for(AlreadyCommitted)

    async with scene.agent():
        following = scene.writer("job:1")
        await following.send_intent(batch_id=8)
        edition = (await following.wait_for(Admitted)).edition
        text = await scene.answer("ledger", "show", scene.table)
        (backup := scene.root / "backup.json").write_text(shown)
        restore = ("ledger", "restore", str(backup), "--reason", "it was no mistake")
        restored = await scene.answer(*restore)
        backup.write_text(backup.read_text().replace(str(10**12), "6"))
        refused = await scene.run(*restore)
        lowered = await scene.run(*restore, "--lower", "--output", "json")

    [line] = json.loads(shown)
    assert (line["table"], line["writer"], line["batch_id"]) == (scene.table, "job:1", 10**12)
    assert corrected == (
        f"writer job:1, table {scene.table}: the last committed batch in the ledger was {10**12}, now it is 7\n"
    )
    command = "lakewarden ledger correct --writer job:1 --batch-id 7 --reason 'a mistake'"
    as_shown(COMMANDS, command, corrected)
    assert (answer.batch_id, answer.committed_batch_id) == (7, 7)
    assert answer.committed_transaction.startswith("ledger-corrected-")
    assert [line.split()[:3] for line in text.splitlines()[1:]] == [[scene.table, "job:1", "7"]]
    assert restored.splitlines()[-1] == f"1 writers are restored from {backup}"
    assert (refused.returncode, lowered.returncode) == (1, 0)
    assert edition is not None, "the batches after 7 are written, whatever the table has"
    assert json.loads(lowered.stdout)[0]["after"]["edition"] == edition, "a backup is no word about the table"
    assert f"batch {10**12} instead of 6; their batches would be written again" in refused.stderr


async def test_a_correction_needs_the_table_if_the_ledger_does_not_name_one(scene: World) -> None:
    """The ledger's key is table and writer."""
    async with scene.agent():
        correct = ("ledger", "correct", "--writer", "absent", "--batch-id", "none", "--reason", "test")
        done = await scene.run(*correct)
        with_table = await scene.answer(*correct, "--table", scene.table, "--output", "json")

    assert done.returncode == 1
    assert "the ledger has no entry of writer absent; check the name" in done.stderr
    assert json.loads(with_table)["before"] is None
    assert json.loads(with_table)["after"]["batch_id"] is None
