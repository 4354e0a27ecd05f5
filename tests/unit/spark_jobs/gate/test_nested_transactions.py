"""Several transactions, or several commits, in one body: safe, or refused at once with what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

import pytest

from lakewarden.events import Topics
from lakewarden.spark_jobs import AsyncGate, GateError
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.gate import TransactionGate
from lakewarden.spark_jobs.gate.transaction import Transaction
from tests.spark.fake_agent import grant_everything


class GrantingChannel:
    """A channel whose agent admits and grants everything."""

    topics = Topics("air")
    bootstrap_servers = "kafka:9092"
    timeout = 1.0

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._subscribers: dict[str, Callable[..., None]] = {}

    def subscribe(self, _table: str, txn: str, on_decision: Callable[..., None], **_facts: str) -> None:
        self._subscribers[txn] = on_decision

    def unsubscribe(self, txn: str) -> None:
        del self._subscribers[txn]

    def send(self, event: Any) -> int:
        self.events.append(event)
        for decision in grant_everything(event, len(self.events) - 1):
            self._subscribers[event.transaction](decision, len(self.events) - 1)
        return len(self.events) - 1

    def run(self, function: Callable[[], Coroutine[Any, Any, Any]], **_facts: Any) -> Any:
        return asyncio.run(function())

    async def publish(self, event: Any) -> Awaitable[int]:
        offset = asyncio.get_running_loop().create_future()
        offset.set_result(self.send(event))
        return offset

    def spawn(self, *_: Any, **__: Any) -> None:
        """Start no heartbeats."""

    def close(self) -> None:
        """Nothing is open."""

    def writers(self) -> set[str]:
        """Those of the transactions that were opened."""
        return {event.writer for event in self.events}


def granting_gate() -> tuple[GrantingChannel, TransactionGate]:
    channel, gate = GrantingChannel(), TransactionGate("kafka:9092")
    gate._channel = cast("Channel", channel)
    return channel, gate


A, B = "file:///lake/a", "file:///lake/b"


@pytest.mark.parametrize(
    ("outer", "inner", "options", "granted", "allowed"),
    [
        (A, B, {"admission": "queued"}, False, True),
        (B, A, {}, False, False),
        (A, A, {}, False, True),
        (A, A, {"admission": "queued"}, False, False),
        (A, B, {}, True, False),
    ],
    ids=["in order", "out of order", "one table", "one table, queued", "under a grant"],
)
def test_a_transaction_inside_another_one_is_refused_at_once_where_both_could_wait_for_ever(
    outer: str, inner: str, options: dict[str, Any], *, granted: bool, allowed: bool
) -> None:
    """Two jobs that write tables A, B and B, A waited for each other until both queries failed."""
    channel, gate = granting_gate()

    def open_inner() -> None:
        with gate.transaction(table=inner, writer="inner", **options) as txn, txn.commit():
            pass

    async def open_both_async() -> None:
        same = AsyncGate(gate)
        async with same.transaction(table=outer, writer="outer") as txn:
            if granted:
                async with txn.commit(), same.transaction(table=inner, writer="inner", **options):
                    pass
            async with same.transaction(table=inner, writer="inner", **options):
                pass

    def open_both() -> None:
        with gate.transaction(table=outer, writer="outer") as txn:
            if not granted:
                open_inner()
            with txn.commit():
                if granted:
                    open_inner()
        open_inner()  # after the other one has ended

    if allowed:
        open_both()
        asyncio.run(open_both_async())
    else:
        remedy = rf"open it after the other one has ended; .* outer: table={outer} writer=outer"
        with pytest.raises(GateError, match=remedy):
            open_both()
        with pytest.raises(GateError, match=remedy):
            asyncio.run(open_both_async())
        assert channel.writers() == {"outer"}


@pytest.mark.parametrize("recognises", [True, False])
def test_a_second_commit_says_that_the_first_one_stands(*, recognises: bool) -> None:
    """Two sinks in one transaction: after a restart, the second one's rows would be missing without a word."""
    channel, gate = granting_gate()

    def sink(txn: Transaction) -> None:
        if recognises:
            txn.recognise(lambda *_: None)
        with txn.commit():
            pass

    with (
        pytest.raises(
            GateError, match=rf"commits once, .* the first commit is in the table, .* table={A} writer=w "
        ),
        gate.transaction(table=A, writer="w", batch_id=1) as txn,
    ):
        sink(txn)
        sink(txn)

    assert channel.events[-1].type == "commit-completed"
    with pytest.raises(GateError, match="commits once, inside its block"):
        txn.request_grant()
