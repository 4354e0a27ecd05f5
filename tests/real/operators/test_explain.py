"""`lakewarden explain` from the command line: the log of real agents, as text and as JSON."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from lakewarden.events import Abort, Admitted, CommitGranted, LockRefused
from lakewarden.handlers.lease.lock_object import LockRecord, render
from tests.printed import as_shown
from tests.real.writers import World, Writer, markers

pytestmark = [pytest.mark.real]


async def test_a_conflict_a_queue_and_a_restart_are_explained_while_no_agent_runs(scene: World) -> None:
    winner, loser, retry = scene.writer("winner"), scene.writer("loser"), scene.writer("loser")
    async with scene.agent(agent_id="agent-one"):
        await winner.begin(batch_id=7, heartbeat_seconds=100)
        first = await winner.touch("f", partition="day=1/a_b")
        await loser.begin(batch_id=3)
        met = await loser.touch("f", partition="day=1/a_b")
        await loser.wait_for(Abort)
        await loser.touch("late")
        scope = markers("f", partition="day=1/a_b")
        await retry.send_intent(batch_id=3, admission="queued", scope=scope, heartbeat_seconds=100)
        await scene.settle()
    async with scene.agent(agent_id="agent-two"):
        grant = await winner.obtain_grant()
        await winner.complete(grant.grant, "snapshot 12")
        await retry.wait_for(Admitted)
        await retry.complete((await retry.obtain_grant()).grant, "snapshot 13")
        await scene.settle()

    as_shown(
        "docs/explain.md",
        "lakewarden explain loser-3f0cb31b",
        await scene.answer("explain", loser.transaction),
    )
    text = await scene.answer("explain", loser.transaction, "--verbose")
    explanation = await _explanation(scene, loser)

    aborted = _step(explanation, "abort")["because"]
    (against,) = aborted["lost_conflicts"]
    assert against["winner"]["id"] == winner.transaction
    assert against["victim_rule"] == "sequence"
    assert (against["winner_event"]["record"]["offset"], against["victim_event"]["record"]["offset"]) == (
        first,
        met,
    )
    assert aborted["cause"]["record"]["offset"] == met
    # The agent acquires the lock when it can, on a busy machine while the loser is open.
    types = [each["type"] for each in explanation["steps"] if not each["type"].startswith("lock-")]
    assert types == ["commit-intent", "admitted", "marker-created", "abort", "marker-created"]
    assert [each["outcome"]["version"] for each in explanation["attempts"]] == [None, "snapshot 13"]
    assert (
        f"ABORTED (conflict) by agent agent-one, retriable, 1 conflict lost in a row: its marker-created at writers:{met} "
        f"touched day=1/a_b f (merge/merge), which winner ({winner.transaction}) had touched with marker-created "
        f"at writers:{first}" in text
    )
    assert "and the younger transaction loses" in text
    assert "1 marker-created without effect: it was aborted" in text
    assert f"  winner ({winner.transaction}): committed as version snapshot 12" in text
    assert f"  {retry.transaction} at writers:" in text

    text = await scene.answer("explain", retry.transaction, "--verbose")
    explanation = await _explanation(scene, retry)

    waiting = _step(explanation, "commit-intent")["because"]
    assert [each["transaction"]["id"] for each in waiting["waits_for"]] == [winner.transaction]
    admitted = _step(explanation, "admitted")["because"]
    assert admitted["freed_by"]["outcome"]["version"] == "snapshot 12"
    granted = _step(explanation, "commit-granted")
    assert granted["record"]["offset"] == _offset(scene, retry, CommitGranted)
    assert (
        f"waits for its admission, behind winner ({winner.transaction}), which is computing on day=1/a_b f"
        in text
    )
    assert "agent agent-two took over the partition" in text
    assert f"in the queue: winner ({winner.transaction}) committed as version snapshot 12" in text


async def test_a_lock_that_a_foreign_writer_holds_is_in_the_explanation(scene: World) -> None:
    foreign = LockRecord(expired=False, valid_until=round((time.time() + 3600) * 1000), owner="a-hudi-writer")
    scene.lock_object().parent.mkdir(parents=True)
    scene.lock_object().write_bytes(render(foreign))
    writer = scene.writer("patient")
    async with scene.agent():
        await writer.begin(heartbeat_seconds=100)
        await scene.wait_for(LockRefused)
        scene.lock_object().write_bytes(render(replace(foreign, expired=True)))
        await writer.complete((await writer.obtain_grant()).grant)
        await scene.settle()

    explanation = await _explanation(scene, writer)
    text = await scene.answer("explain", writer.transaction[:-2], "--verbose")

    assert [each["type"] for each in explanation["steps"] if each["type"].startswith("lock-")] == [
        "lock-refused",
        "lock-acquired",
    ]
    assert "could not acquire the table's lock, which owner a-hudi-writer holds until" in text
    assert text.splitlines()[3].startswith("outcome      committed as version 1 at writers:")


async def test_a_prefix_of_several_transactions_lists_them_with_exit_code_1(scene: World) -> None:
    attempts = [scene.writer("nightly") for _ in range(2)]
    other = scene.writer("nightly", f"file://{scene.root}/tables/other")
    other.transaction = attempts[0].transaction
    for each in (*attempts, other):
        await each.send_intent()

    done = await scene.run("explain", "nightly")
    same = await scene.run("explain", other.transaction)
    chosen = await scene.answer("explain", other.transaction, "--table", other.table)

    assert done.returncode == same.returncode == 1
    assert (
        done.stderr
        == "lakewarden: 3 transactions have an id that begins with 'nightly'; give more of the id\n"
    )
    assert same.stderr.endswith("choose the table with --table\n")
    assert {line.split()[0] for line in done.stdout.splitlines()} == {each.transaction for each in attempts}
    assert [line.split("table ")[1] for line in same.stdout.splitlines()] == [scene.table, other.table]
    assert "no agent has answered its intent yet" in chosen
    assert f"table        {other.table}" in chosen


async def test_an_unknown_transaction_suggests_similar_ones_with_exit_code_1(scene: World) -> None:
    empty = await scene.run("explain", "missing")
    writer = scene.writer("orders")
    await writer.send_intent()
    mistyped = writer.transaction[:-1] + "-"

    done = await scene.run("explain", mistyped)
    elsewhere = await scene.run("explain", writer.transaction, "--table", "/other/t")

    for each in (empty, done, elsewhere):
        assert each.returncode == 1
        assert each.stdout == ""
        assert len(each.stderr.splitlines()) == 1, each.stderr
    assert "holds no event at all" in empty.stderr
    for part in (
        f"did you mean {writer.transaction}?",
        "all 2 partitions",
        "back to 20",
        "retention",
        "$LAKEWARDEN_TOPIC_PREFIX",
    ):
        assert part in done.stderr
    assert f"it is one of {scene.table}" in elsewhere.stderr


def _offset(scene: World, writer: Writer, kind: type) -> int:
    (found,) = (
        each.offset for each in scene.received if isinstance(each.event, kind) and writer.mine(each.event)
    )
    return found


def _step(explanation: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in explanation["steps"] if each["type"] == kind)
    return found


async def _explanation(scene: World, writer: Writer) -> dict[str, Any]:
    explanation = json.loads(await scene.answer("explain", writer.transaction, "--output", "json"))
    assert isinstance(explanation, dict)
    assert (explanation["transaction"]["id"], explanation["table"]) == (writer.transaction, writer.table)
    return explanation
