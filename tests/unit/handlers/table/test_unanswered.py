"""After a replay, the agent decides the intents that a crash left unanswered as if it had read them one by one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lakewarden.events import CommitIntent, CommitRequested
from lakewarden.handlers.table.ledger import CommittedBatch
from lakewarden.handlers.table.machine import EventRead, Replayed, replay_event, step
from lakewarden.handlers.table.state import MAX_CLOSED, TableSettings, TableState
from lakewarden.handlers.table.transactions import Phase
from lakewarden.handlers.table.verdicts import AbortTransaction, Admit, Effect
from tests.unit.handlers.table.world import m, world

TABLE = "file:///tables/t"
MAX_OPEN = 3


@pytest.mark.parametrize(
    "writers",
    ["abcdef", "aabbcc", "abcabc", "aaaaaa", "abcdefabcdef", "abc", "abcaaaadddd", "abcda", "abcdefghad"],
)
def test_the_answers_are_those_of_an_agent_that_did_not_crash(writers: str) -> None:
    """The agent died with a backlog. `max_open` and restarted writers are judged in the order of the log."""
    live, replayed = _state(), _state()
    expected: list[Effect] = []
    for offset, intent in enumerate(_intents(writers)):
        expected += step(live, EventRead(intent, offset, 0.0, 0.0))
        replay_event(replayed, intent, offset, 0.0)

    effects = step(replayed, Replayed(0.0, len(writers) - 1))

    for reason in ("not-allowed", "superseded"):
        assert _aborted(effects, reason) == _aborted(expected, reason)
    assert _open(replayed) == _open(live)
    assert len(_open(replayed)) <= MAX_OPEN


def test_transactions_admitted_before_the_crash_stay_open_with_a_smaller_max_open() -> None:
    """The operator restarts the agent with another configuration."""
    state = _state(max_open=4)
    intents = _intents("abcdef")
    for offset, intent in enumerate(intents[:4]):
        step(state, EventRead(intent, offset, 0.0, 0.0))
    state.settings = TableSettings(max_open=2)  # another configuration
    for offset, intent in enumerate(intents[4:], 4):
        replay_event(state, intent, offset, 0.0)

    effects = step(state, Replayed(0.0, 5))

    assert _aborted(effects, "not-allowed") == {"t4", "t5"}
    assert {each.phase for each in state.open()} == {Phase.ACTIVE}


@pytest.mark.parametrize("priorities", [(0, 1), (1, 0), (1, 1), (0, 0), (1, 0, 1, 0)])
def test_a_priority_above_the_limit_is_refused_and_supersedes_nothing(priorities: tuple[int, ...]) -> None:
    """Any client may name a priority. Above `max_priority` it would win every conflict."""
    live, replayed = _state(), _state()
    expected: list[Effect] = []
    for offset, (intent, priority) in enumerate(
        zip(_intents("a" * len(priorities)), priorities, strict=True)
    ):
        prior = intent.model_copy(update={"priority": priority})
        expected += step(live, EventRead(prior, offset, 0.0, 0.0))
        replay_event(replayed, prior, offset, 0.0)

    effects = step(replayed, Replayed(0.0, len(priorities) - 1))

    over = {f"t{number}" for number, priority in enumerate(priorities) if priority == 1}
    assert _aborted(effects, "not-allowed") == _aborted(expected, "not-allowed") == over
    refused = [each for each in expected if isinstance(each, AbortTransaction) and each.transaction in over]
    assert all("max_priority" in (each.detail or "") and not each.retriable for each in refused)
    assert _open(replayed) == _open(live)
    allowed = [f"t{number}" for number, priority in enumerate(priorities) if priority == 0]
    assert _open(live) == set(allowed[-1:])


def test_a_request_of_an_unknown_transaction_is_answered_once() -> None:
    """Its intent was removed, or is older than the checkpoint, and no agent ran. Its writer would wait for its own timeout."""
    w = world().request("gone")
    [request] = [each for each in w.log if isinstance(each, tuple)]

    first = w.rebuilt([request]).replayed()
    second = first.rebuilt().replayed()

    assert first.aborted == {"gone": "unknown-transaction"}
    assert first.one(AbortTransaction).retriable
    assert first.one(AbortTransaction).cause.event_id == request[0].event_id
    assert second.aborted == {}


def test_a_request_that_was_answered_is_not_answered_again() -> None:
    """The answer of a live agent stands, also where its reason is another one."""
    w = world().intent("A").intent("B").touch("A", m("p/f")).touch("B", m("p/f")).request("B")
    assert w.aborted == {"B": "conflict"}
    checkpoint = len(w.log) - 2

    assert w.rebuilt(w.log[checkpoint:]).replayed().aborted == {}


def test_an_admission_is_no_answer_to_a_request() -> None:
    """The log has lost the intent, and the replay reads the admission after the request."""
    w = world().intent("A").request("A")
    [admitted] = [each for each in w.log if isinstance(each, Admit)]
    *_, request = [each for each in w.log if isinstance(each, tuple)]

    assert w.rebuilt([request, admitted]).replayed().aborted == {"A": "unknown-transaction"}


@pytest.mark.parametrize("end", ["abandoned", "completed"])
def test_a_writer_that_has_ended_its_unknown_transaction_needs_no_answer(end: str) -> None:
    w = world().request("gone")
    w.abandon("gone") if end == "abandoned" else w.complete("gone")
    events = [each for each in w.log if isinstance(each, tuple)]

    assert w.rebuilt(events).replayed().aborted == {}


def test_a_repeated_request_of_the_last_committed_transaction_needs_no_answer() -> None:
    """A producer delivered it twice, and the checkpoint is after the commit."""
    w = world().request("done", writer="w")
    [request] = [each for each in w.log if isinstance(each, tuple)]
    rebuilt = world()
    rebuilt.state.ledger["w"] = CommittedBatch(3, "done", None)
    rebuilt.replay(request)

    assert rebuilt.replayed().aborted == {}


def test_the_unknown_requests_of_a_replay_are_bounded() -> None:
    """A client may publish any number of them."""
    flood = world()
    for number in range(MAX_CLOSED + 10):
        event = flood.event(CommitRequested, f"T{number}", seq=1)
        replay_event(flood.state, event, number, 0.0)

    assert len(flood.replayed().aborted) == MAX_CLOSED


def _state(max_open: int = MAX_OPEN) -> TableState:
    return TableState(TABLE, TableSettings(max_open=max_open))


def _intents(writers: str) -> list[CommitIntent]:
    return [
        CommitIntent(
            event_id=f"e{number}", table=TABLE, transaction=f"t{number}", writer=writer, at=datetime.now(UTC)
        )
        for number, writer in enumerate(writers)
    ]


def _aborted(effects: list[Effect], reason: str) -> set[str]:
    return {
        each.transaction for each in effects if isinstance(each, AbortTransaction) and each.reason == reason
    }


def _open(state: TableState) -> set[str]:
    return {each.id for each in state.open()}
