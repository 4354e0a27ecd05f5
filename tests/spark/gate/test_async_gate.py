"""The gate for asyncio on a real broker, with an agent that follows a script."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
import pytest_asyncio

from lakewarden.events import CommitIntent, DecisionEventUnion, Marker, WriterEventUnion
from lakewarden.spark_jobs import AsyncGate, CommitAborted
from tests.spark.fake_agent import At, FakeAgent, aborted, admitted, answer_nothing, grant_everything
from tests.spark.harness import Harness

pytestmark = pytest.mark.real

TABLE = "file:///lake/flights"
MINE = Marker(partition="month=1/day=3", file_group="*", operation="merge")
FOREVER = 100_000.0
"""Seconds that no test waits: what should end the wait would not."""


def abort_at(kind: str) -> At:
    """A script: the first event of this type is in conflict."""
    return At(kind, lambda event: [aborted(event, MINE)])


def admit_only(event: WriterEventUnion, _offset: int = 0) -> list[DecisionEventUnion]:
    """A script: no grant comes."""
    return [admitted(event)] if isinstance(event, CommitIntent) else []


@pytest_asyncio.fixture
async def gate(harness: Harness) -> AsyncIterator[AsyncGate]:
    """A gate that waits for as long as it takes."""
    options = {"admission_timeout_seconds": FOREVER, "grant_timeout_seconds": FOREVER}
    async with AsyncGate(harness.gate(**options)) as gate:
        yield gate


async def arrived(agent: FakeAgent, kind: str) -> Any:
    """The first event of a type, when it has arrived."""
    return (await asyncio.to_thread(agent.wait_for, kind))[0]


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel the task; it must end as cancelled."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def abort_of(agent: FakeAgent, gate: AsyncGate, body: Callable[[], Any]) -> CommitAborted:
    """Run `body` in a transaction that is aborted while it runs, and return the error."""
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(CommitAborted) as caught:
        async with gate.transaction(table=TABLE, writer="w"):
            intent = await arrived(agent, "commit-intent")
            asyncio.get_running_loop().call_later(0, agent.publish, aborted(intent, MINE))
            await body()
    assert task.cancelling() == 0, "the cancel was taken back"
    return caught.value


async def test_a_transaction_from_intent_to_completion(
    harness: Harness, gate: AsyncGate, agent: FakeAgent
) -> None:
    async with gate.transaction(table="/lake/flights", writer="departures", batch_id=3) as txn:
        await txn.touch("month=1/day=3", "*", "merge")
        async with txn.commit() as grant:
            grant.check()
            grant.version = "12"

    assert agent.types()[:3] == ["commit-intent", "marker-created", "commit-requested"]
    completed = await arrived(agent, "commit-completed")
    assert (completed.version, completed.transaction, grant.token) == ("12", txn.id, 1)
    intent = await arrived(agent, "commit-intent")
    assert (intent.table, intent.writer, intent.batch_id) == (TABLE, "departures", 3)
    assert harness.steps() == ["intent", "admitted", "markers", "requested", "granted", "completed"]


async def test_an_abort_cancels_what_the_body_awaits_once(gate: AsyncGate, agent: FakeAgent) -> None:
    """The clean-up of the body may await."""
    cleaned = []

    async def body() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(1)

    error = await abort_of(agent, gate, body)

    assert isinstance(error.__cause__, asyncio.CancelledError)
    assert (error.other_writers, cleaned) == (("arrivals:q2",), [1])
    assert agent.types() == ["commit-intent"], "it publishes nothing after the abort"


async def test_an_abort_cancels_the_child_tasks_of_the_body(gate: AsyncGate, agent: FakeAgent) -> None:
    ended = []

    async def child() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())

    await abort_of(agent, gate, body)

    assert ended == [1, 1]


async def test_an_abort_that_the_body_suppressed_is_raised_at_its_end(
    gate: AsyncGate, agent: FakeAgent
) -> None:
    async def body() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    await abort_of(agent, gate, body)


async def test_a_call_of_the_gate_raises_the_abort_and_later_awaits_go_on(
    harness: Harness, gate: AsyncGate
) -> None:
    agent = harness.agent(abort_at("marker-created"))
    with pytest.raises(CommitAborted) as caught:
        async with gate.transaction(table=TABLE, writer="w") as txn:
            with pytest.raises(CommitAborted):
                while True:  # until the abort has arrived
                    await txn.touch("month=1/day=3", "*", "merge")
            await asyncio.sleep(0.2)
            with pytest.raises(CommitAborted):
                async with txn.commit():
                    pytest.fail("it published")
            txn.check()

    assert caught.value.__cause__ is None
    assert "commit-requested" not in agent.types()


async def test_an_abort_in_a_child_task_is_raised_as_itself(harness: Harness, gate: AsyncGate) -> None:
    harness.agent(abort_at("marker-created"))
    with pytest.raises(CommitAborted) as caught:
        async with gate.transaction(table=TABLE, writer="w") as txn, asyncio.TaskGroup() as group:
            group.create_task(txn.touch("month=1/day=3", "*", "merge"))
            await asyncio.Event().wait()

    assert caught.value.conflicts


async def test_an_abort_ends_the_wait_for_the_grant(harness: Harness, gate: AsyncGate) -> None:
    harness.agent(abort_at("commit-requested"))
    with pytest.raises(CommitAborted) as caught:
        async with gate.transaction(table=TABLE, writer="w") as txn, txn.commit():
            pytest.fail("it published")
    assert caught.value.reason == "conflict"


async def test_a_cancel_from_outside_abandons_the_transaction(gate: AsyncGate, agent: FakeAgent) -> None:
    discarded = []

    async def discard() -> None:
        discarded.append(await asyncio.sleep(0, "files"))

    async def write() -> None:
        async with gate.transaction(table=TABLE, writer="w") as txn:
            txn.on_discard(discard)
            await txn.touch("month=1/day=3", "*", "merge")
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await arrived(agent, "marker-created")
    await cancelled(task)

    assert (await arrived(agent, "transaction-abandoned")).reason == "CancelledError"
    assert discarded == ["files"]


async def test_a_cancel_beside_an_abort_stays_a_cancel(gate: AsyncGate, agent: FakeAgent) -> None:
    computing, cleaning = asyncio.Event(), asyncio.Event()

    async def write() -> None:
        async with gate.transaction(table=TABLE, writer="w"):
            computing.set()
            try:
                await asyncio.Event().wait()
            finally:
                cleaning.set()
                await asyncio.Event().wait()  # the clean-up after the abort hangs

    task = asyncio.create_task(write())
    await computing.wait()
    agent.publish(aborted(await arrived(agent, "commit-intent"), MINE))
    await cleaning.wait()

    await cancelled(task)


async def test_a_cancel_ends_the_wait_for_the_admission(harness: Harness, gate: AsyncGate) -> None:
    agent = harness.agent(answer_nothing)

    async def write() -> None:
        async with gate.transaction(table=TABLE, writer="w"):
            pytest.fail("the body ran")

    task = asyncio.create_task(write())
    await arrived(agent, "commit-intent")
    await cancelled(task)

    assert "cancelled the wait for the admission" in (await arrived(agent, "transaction-abandoned")).reason


async def test_a_cancel_ends_the_wait_for_the_grant(harness: Harness, gate: AsyncGate) -> None:
    agent = harness.agent(admit_only)

    async def write() -> None:
        async with gate.transaction(table=TABLE, writer="w") as txn, txn.commit():
            pytest.fail("it published")

    task = asyncio.create_task(write())
    await arrived(agent, "commit-requested")
    await cancelled(task)

    assert (await arrived(agent, "transaction-abandoned")).reason == "CancelledError"


async def test_a_scope_of_anyio_ends_the_wait_for_the_grant(harness: Harness, gate: AsyncGate) -> None:
    """A web framework's requests run in such scopes, which cancel each await until they end."""
    agent = harness.agent(admit_only)
    async with anyio.create_task_group() as group:

        async def write() -> None:
            async with gate.transaction(table=TABLE, writer="w") as txn, txn.commit():
                pytest.fail("it published")

        group.start_soon(write)
        await arrived(agent, "commit-requested")
        group.cancel_scope.cancel()

    assert group.cancel_scope.cancelled_caught
    await arrived(agent, "transaction-abandoned")


async def test_a_timeout_of_the_body_ends_the_wait_for_the_grant(harness: Harness, gate: AsyncGate) -> None:
    agent = harness.agent(admit_only)
    with pytest.raises(TimeoutError):
        async with gate.transaction(table=TABLE, writer="w") as txn, asyncio.timeout(0.2), txn.commit():
            pytest.fail("it published")

    assert (await arrived(agent, "transaction-abandoned")).reason.startswith("TimeoutError")


async def test_a_grant_that_a_cancelled_body_received_is_not_published(
    gate: AsyncGate, agent: FakeAgent
) -> None:
    """The grant arrives, and the table is looked up under it; then the cancel arrives."""
    lookups, proceed = [], asyncio.Event()

    async def committed(_writer: str, _batch_id: int) -> str | None:
        lookups.append(1)
        if len(lookups) == 2:
            await proceed.wait()
        return None

    async def write() -> None:
        async with gate.transaction(table=TABLE, writer="w", batch_id=1) as txn:
            await txn.recognise(committed)
            async with txn.commit():
                pytest.fail("it published")

    task = asyncio.create_task(write())
    while len(lookups) < 2:
        await asyncio.sleep(0.01)
    task.cancel()
    proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (await arrived(agent, "transaction-abandoned")).reason == "CancelledError"


async def test_a_cancel_during_the_publish_leaves_the_outcome_unknown(
    harness: Harness, gate: AsyncGate, agent: FakeAgent
) -> None:
    publishing = asyncio.Event()
    transactions = []

    async def write() -> None:
        async with gate.transaction(table=TABLE, writer="w") as txn, txn.commit():
            transactions.append(txn)
            publishing.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await publishing.wait()
    await cancelled(task)

    assert agent.types() == ["commit-intent", "commit-requested"]
    assert harness.events[-1].detail["outcome"] == "unknown"
    assert not transactions[0].discardable


async def test_a_failed_publish_that_the_table_has_is_completed(gate: AsyncGate, agent: FakeAgent) -> None:
    answers = [None, None, "13"]

    async def committed(_writer: str, _batch_id: int) -> str | None:
        return await asyncio.sleep(0, answers.pop(0))

    async with gate.transaction(table=TABLE, writer="w", batch_id=3) as txn:
        await txn.recognise(committed)
        async with txn.commit():
            raise OSError("connection reset")

    assert (await arrived(agent, "commit-completed")).version == "13"


async def test_a_declared_outcome_is_reported(gate: AsyncGate, agent: FakeAgent) -> None:
    with pytest.raises(OSError, match="reset"):
        async with gate.transaction(table=TABLE, writer="first") as txn, txn.commit() as grant:
            await grant.published("9")
            raise OSError("connection reset")
    with pytest.raises(OSError, match="refused"):
        async with gate.transaction(table=TABLE, writer="second") as txn, txn.commit() as grant:
            grant.not_published()
            raise OSError("refused")

    assert (await arrived(agent, "commit-completed")).version == "9"
    assert (await arrived(agent, "transaction-abandoned")).writer == "second"


async def test_waiting_transactions_do_not_keep_another_from_its_end(
    harness: Harness, gate: AsyncGate
) -> None:
    """The loop's own pool has one thread, and more transactions wait than that."""

    def first_only(event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
        return grant_everything(event, offset) if event.writer == "first" else []

    agent = harness.agent(first_only)

    async def wait_in_vain(name: str) -> None:
        async with gate.transaction(table=TABLE, writer=name):
            pytest.fail("the body ran")

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    waiting = [asyncio.create_task(wait_in_vain(f"w{number}")) for number in range(3)]
    await asyncio.to_thread(agent.wait_for, "commit-intent", len(waiting))
    async with gate.transaction(table=TABLE, writer="first") as txn, txn.commit() as grant:
        grant.version = "1"
    await arrived(agent, "commit-completed")
    for task in waiting:
        await cancelled(task)


async def test_the_footprint_of_an_aborted_transaction_is_the_scope_of_its_retry(
    harness: Harness, gate: AsyncGate
) -> None:
    agent = harness.agent(abort_at("marker-created"))
    with pytest.raises(CommitAborted):
        async with gate.transaction(table=TABLE, writer="w") as txn:
            await txn.touch("month=1/day=3", "*", "merge")
            await asyncio.Event().wait()
    scope = await txn.footprint(timeout=60)

    async with (
        gate.transaction(table=TABLE, writer="w", admission="queued", scope=scope) as again,
        again.commit() as grant,
    ):
        grant.version = "2"

    intents = await asyncio.to_thread(agent.wait_for, "commit-intent", 2)
    assert intents[1].scope == (MINE,)
