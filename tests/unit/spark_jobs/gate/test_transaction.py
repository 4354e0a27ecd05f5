"""What a transaction reports while its intent, or its request for the grant, is not answered."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, cast, get_args

import pytest
from hypothesis import given, strategies as st

from lakewarden.events import (
    AbandonCause,
    Admitted,
    CommitIntent,
    CommitRequested,
    DecisionEventUnion,
    Marker,
    Topics,
    WriterEventUnion,
    WriterHeartbeat,
)
from lakewarden.spark_jobs import (
    AgentUnreachable,
    AsyncGate,
    BaseChanged,
    CommitAborted,
    GateError,
    GrantTimeout,
    InvalidArgument,
)
from lakewarden.spark_jobs.gate import waiting
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.errors import LostToGate
from lakewarden.spark_jobs.gate.event_publisher import Intent, Timing
from lakewarden.spark_jobs.gate.gate import TransactionGate, TransactionOptions, intent_of as intent_from
from lakewarden.spark_jobs.gate.grant import monotonic_seconds
from lakewarden.spark_jobs.gate.observer import GateEvent, Observer, cause_of
from lakewarden.spark_jobs.gate.scope import marker_of
from lakewarden.spark_jobs.gate.transaction import Transaction
from lakewarden.spark_jobs.gate.waiting import Waits
from tests.spark.fake_agent import aborted
from tests.spark.memory_channel import MemoryChannel
from tests.unit.events.building import E, made

TABLE = "s3://lake/t"
SCOPE = (Marker(partition="day=1", file_group="*", operation="merge"),)
TIMING = Timing(admission_timeout_seconds=0.01, queue_timeout_seconds=0.05)


@pytest.mark.parametrize(
    ("error", "touched", "cause"),
    [
        (None, False, "empty"),
        (None, True, "not-committed"),
        (ValueError("no such column"), True, "failed"),
        (GrantTimeout("no grant in 60 s"), True, "failed"),
        (BaseChanged("a file is gone"), True, "base-changed"),
        (LostToGate("a commit of the gate", lost_to="version 50"), True, "lost-to-gate"),
    ],
)
def test_the_cause_of_an_abandonment_is_data(error: BaseException | None, touched: bool, cause: str) -> None:
    """Readers of the log compare it: the class of an error may get another name."""
    assert cause_of(error, touched=touched) == cause
    assert cause in get_args(AbandonCause)


class SilentChannel(MemoryChannel):
    """A channel whose broker accepts everything. No agent runs, unless `answers` is set."""

    topics = Topics("air")
    bootstrap_servers = "kafka:9092"
    timeout = 1.0

    def __init__(
        self,
        *,
        answers: bool = False,
        turn: int | None = None,
        ahead: tuple[WriterEventUnion, ...] = (),
        agent_read: int | None = None,
        reading_error: str | None = None,
    ) -> None:
        """`ahead` are the events before the intent in `writers`. Each of their transactions is still open."""
        super().__init__()
        self._answers = answers
        self._turn = turn
        self.events = list(ahead)
        self._agent_read = agent_read
        self.reading_error = reading_error

    def answer(self, event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
        """Admit the transaction, if an agent answers."""
        if not self._answers or not isinstance(event, CommitIntent):
            return []
        return [event_of(Admitted, event.writer, event.transaction, turn=self._turn)]

    def read_back(self, _table: str, start: int, _timeout: float) -> list[WriterEventUnion]:
        """Return the events, and a heartbeat of each open transaction after the intent."""
        assert start == 0
        beats = [
            event_of(WriterHeartbeat, event.writer, event.transaction, seq=2)
            for event in self.events
            if isinstance(event, CommitIntent)
        ]
        return [*self.events, *beats]

    def agent_read_up_to(self, table: str) -> int | None:
        """Return what the decisions of an agent say."""
        assert table == TABLE
        return self._agent_read


class UnreadableChannel(SilentChannel):
    """A channel that can publish, and can't read back."""

    def read_back(self, _table: str, _start: int, _timeout: float) -> list[WriterEventUnion]:
        raise GateError("no answer")


def event_of(kind: type[E], writer: str, transaction: str, **fields: Any) -> E:
    return made(kind, table=TABLE, writer=writer, transaction=transaction, **fields)


def intent_of(writer: str, *scope: Marker) -> CommitIntent:
    """The intent of another writer's transaction."""
    return event_of(CommitIntent, writer, f"t-{writer}", admission="queued", scope=scope)


def opened(
    channel: SilentChannel,
    timing: Timing,
    *,
    may_queue: bool,
    scope: tuple[Marker, ...] = (),
    request: bool = False,
    observer: Observer | None = None,
    beside: Mapping[str, Waits] | None = None,
) -> None:
    """Open a transaction, perhaps request its grant, and wait until its report is written."""
    intent = Intent(
        table=TABLE, writer="w", batch_id=7, scope=scope, conflict_rule="ordered" if request else "file-group"
    )
    txn = Transaction(
        cast("Channel", channel),
        intent,
        timing,
        monotonic_seconds,
        observer,
        may_queue=may_queue,
        beside=beside,
    )
    try:
        txn.open()
        if request:
            txn.request_grant()
    finally:
        for thread in threading.enumerate():
            if thread.name == f"lakewarden-wait-{txn.id[:8]}":
                thread.join()


@pytest.fixture
def lines_of(caplog: pytest.LogCaptureFixture) -> Callable[[], list[Any]]:
    """A function that returns the lines so far, those of level info and worse ones."""
    caplog.set_level(logging.INFO, "lakewarden")
    return lambda: list(caplog.records)


ELSEWHERE = (Marker(partition="day=2", file_group="*", operation="merge"),)
NO_AGENT = "no agent that allows this table runs"
WAITS: dict[str, tuple[Callable[[], SilentChannel], tuple[Marker, ...], str, tuple[str, ...] | None, str]] = {
    # The job would wait for `queue_timeout_seconds`, ten minutes, without a word.
    "no agent runs": (SilentChannel, (), "gate.not-admitted-yet", None, NO_AGENT),
    # The usual reason of a long wait with `auto`. A warning that no agent runs would be false.
    "behind an open transaction": (
        lambda: SilentChannel(ahead=(intent_of("arrivals", *SCOPE), intent_of("elsewhere", *ELSEWHERE))),
        SCOPE, "gate.queued", ("arrivals",), "",
    ),
    # The agent may queue a writer that lost before, in partitions that only the agent knows.
    "a decision after the intent": (
        lambda: SilentChannel(agent_read=0), (), "gate.queued", (), "an agent has read the intent",
    ),
    # The agent ended after them.
    "decisions from before the intent": (
        lambda: SilentChannel(ahead=(intent_of("elsewhere", *ELSEWHERE),), agent_read=0),
        SCOPE, "gate.not-admitted-yet", None, NO_AGENT,
    ),
    # Its admission may have been published already.
    "decisions can't be read": (
        lambda: SilentChannel(ahead=(intent_of("arrivals", *SCOPE),), reading_error="token expired"),
        SCOPE, "gate.not-admitted-yet", None, "can't read decisions (token expired)",
    ),
    # Kafka doesn't answer, so nothing proves the queue.
    "the others' events can't be read": (
        UnreadableChannel, SCOPE, "gate.queue-unreadable gate.not-admitted-yet", None, NO_AGENT,
    ),
}  # fmt: skip
"""A channel, the scope of the intent, and the lines of the wait: their events, who is ahead, and a part of the detail."""


@pytest.mark.parametrize("case", WAITS)
def test_a_queued_transaction_that_is_not_answered_says_why_long_before_it_fails(
    case: str, lines_of: Callable[[], list[Any]]
) -> None:
    channel, scope, events, ahead, detail = WAITS[case]
    with pytest.raises(GrantTimeout):
        opened(channel(), TIMING, may_queue=True, scope=scope)

    *_, line = lines = lines_of()
    assert " ".join(each.event for each in lines) == events
    assert line.levelname == ("INFO" if events == "gate.queued" else "WARNING")
    fields = line.fields
    assert (fields["table"], fields["writer"], fields["batch_id"]) == (TABLE, "w", 7)
    assert (fields["waited_seconds"], fields["timeout_seconds"]) == (0.01, 0.05)
    assert fields.get("ahead") == ahead
    assert detail in fields.get("detail", "")
    if detail == NO_AGENT:
        assert (fields["topic_prefix"], fields["brokers"]) == ("air", "kafka:9092")
        assert "lakewarden status" in fields["detail"]


def test_a_transaction_that_fails_at_that_moment_says_it_only_once(caplog: pytest.LogCaptureFixture) -> None:
    """The error has the same advice."""
    with pytest.raises(AgentUnreachable, match="start an agent"):
        opened(SilentChannel(), Timing(admission_timeout_seconds=0.01), may_queue=False)

    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_a_transaction_that_is_admitted_at_once_logs_nothing(lines_of: Callable[[], list[Any]]) -> None:
    """The usual case."""
    opened(SilentChannel(answers=True), Timing(), may_queue=True)

    assert lines_of() == []


def requested_by(writer: str) -> CommitRequested:
    """The request of another writer's transaction for its grant."""
    return event_of(CommitRequested, writer, f"t-{writer}", seq=1)


@pytest.mark.parametrize("wait", ["admission", "grant"])
@pytest.mark.parametrize(
    ("ahead", "holding"),
    [((), False), ((), True), (("arrivals",), False), (("arrivals",), True)],
    ids=["nothing known", "holds others", "behind a writer", "behind a writer, and holds others"],
)
def test_a_wait_in_vain_names_both_sides_and_is_retriable_where_they_may_wait_for_each_other(
    ahead: tuple[str, ...], wait: str, *, holding: bool
) -> None:
    """Two jobs that wrote two tables waited for each other; both failed, and their errors suspected a missing agent.

    Who was ahead may have ended by its own timeout a moment before.
    """
    before: list[WriterEventUnion] = [intent_of(name, *SCOPE) for name in ahead]
    if wait == "grant":
        before += [requested_by(name) for name in ahead]
    channel = SilentChannel(ahead=tuple(before), answers=wait == "grant")
    held = Transaction(
        cast("Channel", SilentChannel(answers=True)),
        Intent(table=TABLE, writer="outer"),
        Timing(),
        monotonic_seconds,
        None,
        may_queue=False,
    )
    if holding:
        held.open()

    timing = Timing(admission_timeout_seconds=0.01, queue_timeout_seconds=0.05, grant_timeout_seconds=0.05)
    with pytest.raises(GrantTimeout) as caught:
        opened(
            channel,
            timing,
            may_queue=True,
            scope=SCOPE,
            request=wait == "grant",
            beside={held.id: held.waits},
        )

    both = bool(ahead) and holding
    assert caught.value.retriable is holding
    assert ("waits for writer 'arrivals'" in str(caught.value)) == both
    assert (f"table={TABLE} writer=outer" in str(caught.value)) == holding
    assert ("no agent runs" in str(caught.value)) == (wait == "admission" and not both)


def ordered(writer: str, *scope: Marker) -> CommitIntent:
    """The intent of another writer's `ordered` transaction."""
    return intent_of(writer, *scope).model_copy(update={"conflict_rule": "ordered"})


def requested_in_vain(channel: SilentChannel, monkeypatch: pytest.MonkeyPatch) -> list[GateEvent]:
    """Request the grant of an `ordered` transaction. Return its steps."""
    monkeypatch.setattr(waiting, "UNANSWERED_SECONDS", 0.01)
    steps: list[GateEvent] = []
    timing = Timing(grant_timeout_seconds=0.5)
    with pytest.raises(GrantTimeout):
        opened(channel, timing, may_queue=False, scope=SCOPE, request=True, observer=steps.append)
    return steps


def test_an_ordered_transaction_names_the_writers_for_whose_turns_it_waits(
    lines_of: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the log and to the observer, once."""
    channel = SilentChannel(answers=True, turn=1, ahead=(ordered("arrivals", *SCOPE),))

    steps = requested_in_vain(channel, monkeypatch)

    (line,) = lines_of()
    assert (line.event, line.levelname) == ("gate.waits-for-turn", "INFO")
    (waits,) = [step for step in steps if step.what == "waits-for-turn"]
    assert (waits.writer, waits.batch_id, waits.detail["ahead"]) == ("w", 7, ("arrivals",))
    assert (waits.detail["waited_seconds"], waits.detail["timeout_seconds"]) == (0.01, 0.5)
    assert [step.what for step in steps] == ["intent", "admitted", "requested", "waits-for-turn"]


@pytest.mark.parametrize(
    "channel",
    [
        SilentChannel(answers=True, turn=0, ahead=(ordered("arrivals", *SCOPE),)),
        SilentChannel(answers=True, turn=1, ahead=(intent_of("arrivals", *SCOPE),)),
    ],
    ids=["none was open at its admission", "the other one isn't ordered"],
)
def test_a_wait_for_another_reason_is_not_called_a_turn(
    channel: SilentChannel, lines_of: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit under another transaction's grant, for example."""
    requested_in_vain(channel, monkeypatch)

    assert lines_of() == []


# Several transactions, or several commits, in one body: safe, or refused at once with what to do.


def granting_gate() -> tuple[MemoryChannel, TransactionGate]:
    channel, gate = MemoryChannel(), TransactionGate("kafka:9092")
    gate._channel = cast("Channel", channel)
    return channel, gate


def test_an_aborted_transaction_ends_after_a_slow_observer_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what its caller reports of the attempt comes last."""
    told: list[str] = []
    channel, gate = granting_gate()

    def slow(event: GateEvent) -> None:
        if event.what == "abort":
            time.sleep(0.2)
        told.append(event.what)

    gate.observer = slow
    monkeypatch.setattr(channel, "answer", lambda event, _offset: [aborted(event, reason="not-allowed")])
    with pytest.raises(CommitAborted), gate.transaction(table=A, writer="w", batch_id=1):
        pass

    assert told == ["intent", "abort"]


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
        assert {event.writer for event in channel.events} == {"outer"}


@pytest.mark.parametrize(("first", "second", "allowed"), [(0, 1, True), (1, 0, False)])
def test_two_commits_inside_each_other_are_refused_out_of_order(
    first: int, second: int, *, allowed: bool
) -> None:
    """Two jobs that hold one grant and wait for the other's keep all writers of both tables waiting."""
    _, gate = granting_gate()

    def commit_both() -> None:
        with gate.transaction(table=A, writer="a") as one, gate.transaction(table=B, writer="b") as two:
            both = (one, two)
            with both[first].commit(), both[second].commit():
                pass

    async def commit_both_async() -> None:
        same = AsyncGate(gate)
        async with same.transaction(table=A, writer="a") as one, same.transaction(table=B, writer="b") as two:
            both = (one, two)
            async with both[first].commit(), both[second].commit():
                pass

    for run in (commit_both, lambda: asyncio.run(commit_both_async())):
        with nullcontext() if allowed else pytest.raises(GateError, match=f"outer: table={B} writer=b"):
            run()


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


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.binary(max_size=4),
    st.text(max_size=4),
    st.builds(object),
    st.sampled_from(["auto", "typo", "s3://", "a\nb", "x" * 3_000, b"day=1"]),
)


@given(
    st.sampled_from(sorted(TransactionOptions.__annotations__)),
    st.one_of(
        ANYTHING, st.lists(ANYTHING, max_size=3), st.dictionaries(st.text(max_size=2), ANYTHING, max_size=2)
    ),
)
def test_an_argument_of_any_type_is_taken_or_refused_by_name_in_one_line(name: str, value: Any) -> None:
    arguments: Any = {"table": TABLE, "writer": "w", name: value}
    try:
        assert getattr(intent_from(**arguments), name) is not None or value is None
    except InvalidArgument as refused:
        assert str(refused).startswith(("partition=", f"{name}="))  # noqa: PT017
        assert str(refused).isprintable()  # noqa: PT017


@given(ANYTHING, ANYTHING, ANYTHING)
def test_a_marker_of_any_types_is_taken_or_refused_by_name_in_one_line(
    partition: Any, file_group: Any, operation: Any
) -> None:
    try:
        assert marker_of(partition, file_group, operation).partition == partition
    except InvalidArgument as refused:
        assert str(refused).startswith(("partition=", "file_group=", "operation="))  # noqa: PT017
        assert str(refused).isprintable()  # noqa: PT017


def test_a_partition_in_a_scope_stands_for_all_of_its_files() -> None:
    assert intent_from(table=TABLE, writer="w", scope=["day=1", *SCOPE]).scope == SCOPE
