"""The table core against random writers. Hypothesis finds the histories and shrinks failures (`random_table.py`)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from unittest.mock import patch

import pytest
from hypothesis import settings as hypothesis_settings

from lakewarden.events import Abort, Admitted, Marker
from lakewarden.handlers.table import detection
from lakewarden.handlers.table.conflicts import may_conflict
from lakewarden.handlers.table.transactions import Touch
from tests.unit.handlers.table.random_table import WRITERS, Table
from tests.unit.handlers.table.world import facts, m, world

TestTable = Table.TestCase
TestTable.settings = hypothesis_settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_a_reservation_that_a_crash_left_as_the_last_decision_is_part_of_the_footprint() -> None:
    """The agent publishes the admission of a protected writer, and is killed before it publishes the abort that follows."""
    table = Table()
    table.start(
        early=True, policy="first-intent", hold="while-active", max_losses=1, format_records_batches=True
    )
    place = (Marker(partition="p", file_group="1", operation="merge"),)
    for writer in (0, 1):
        _begin(table, writer)
        table.touch(index=0, found=place)
        table.read_all()
    assert table.w.state.losses == {"w1": 1}
    _begin(table, 1, read=False)

    table.crash(published=1)

    assert [each.reserved for each in table.w.log if isinstance(each, Admitted)][-1] != ()
    assert table.w.aborted == {"t0": "conflict"}
    table.teardown()


def _begin(table: Table, writer: int, *, read: bool = True) -> None:
    table.begin(
        writer=writer, admission="optimistic", conflict_rule="file-group", priority=0, scope=(), killed=True
    )
    if read:
        table.read_all()
        table.receive(index=0)


# Seeded histories of a table among random writers (`random_table.py`).


def random_markers(rng: random.Random) -> tuple[Marker, ...]:
    return tuple(
        Marker(
            partition=rng.choice(["", "p", "q", "", "p", "q", "*"]),
            file_group=rng.choice(["1", "10", "2", "3", "*"]),
            operation=rng.choice(["append", "merge", "delete"]),
        )
        for _ in range(rng.randint(1, 3))
    )


def random_action(rng: random.Random) -> Callable[[Table], object]:
    """Draw one action. The weights are those of a busy table: mostly work, some silence, some faults."""
    index = rng.randint(0, 7)
    actions: list[tuple[int, Callable[[Table], object]]] = [
        (
            10,
            lambda t: t.begin(
                writer=rng.randrange(WRITERS),
                admission=rng.choice(["optimistic", "optimistic", "queued"]),
                conflict_rule=rng.choice(["file-group", "file-group", "deleted-file", "ordered"]),
                priority=rng.choice([0, 0, 0, 1, -1]),
                scope=rng.choice([(), random_markers(rng)]),
                killed=rng.random() < 0.5,
            ),
        ),
        (12, lambda t: t.touch(index=index, found=random_markers(rng))),
        (2, lambda t: t.touch_too_early(index=index, found=random_markers(rng))),
        (1, lambda t: t.operator_corrects(writer=rng.randrange(WRITERS))),
        (12, lambda t: t.work(index=index, found=random_markers(rng))),
        (8, lambda t: t.request(index=index, last=rng.choice([(), random_markers(rng)]))),
        (8, lambda t: t.beat(index=index)),
        (12, lambda t: t.receive(index=index)),
        (12, lambda t: t.publish(index=index)),
        (6, lambda t: t.complete(index=index)),
        (1, lambda t: t.abandon(index=index)),
        (2, lambda t: t.sent and t.deliver_again(index=rng.randrange(1000))),
        (16, lambda t: t.read(count=rng.randint(1, 4))),
        (6, lambda t: t.tick(seconds=rng.choice([0.5, 1.0, 3.0, 6.0]))),
        (2, lambda t: t.pass_time(seconds=rng.choice([0.1, 2.0, 8.0, 22.0]))),
        (12, lambda t: t.lock_confirmed()),
        (1, lambda t: t.w.state.lock is not None and t.lock_gone()),
        (1, lambda t: t.inbox and t.crash(published=rng.randint(0, 3))),
        (1, lambda t: t.restart_cleanly()),
        (1, lambda t: t.over_budget(index_too=rng.random() < 0.3)),
    ]
    return rng.choices([action for _, action in actions], [weight for weight, _ in actions])[0]


@cache
def history(seed: int) -> Table:
    """Run a whole history of a table. The same seed gives the same history."""
    rng = random.Random(seed)
    table = Table()
    table.start(
        early=rng.random() < 0.8,
        policy=rng.choice(["first-intent", "first-intent", "first-committer"]),
        hold=rng.choice(["while-active", "per-commit"]),
        max_losses=rng.choice([1, 2, 3]),
        format_records_batches=rng.random() < 0.5,
    )
    for _ in range(120):
        random_action(rng)(table)
    table.teardown()
    return table


# Long seeded histories of a table among random writers (`test_table_stateful.py`). Hypothesis rarely reaches such states.


@pytest.mark.parametrize("block", range(16))
def test_the_promises_hold_in_long_histories(block: int) -> None:
    """Each history has 120 steps. A failure names its seed."""
    for seed in range(block * 10, block * 10 + 10):
        try:
            history(seed)
        except Exception as error:
            error.add_note(f"seed {seed}: history({seed}) repeats it")
            raise


def test_the_histories_reach_every_verdict_and_reason() -> None:
    """A simulation in which nothing happens proves nothing."""
    seen: Counter[str] = Counter()
    for seed in range(160):
        table = history(seed)
        seen["published"] += sum(each.published is not None for each in table.processes)
        for each in table.w.log:
            if not isinstance(each, tuple):
                seen[each.reason if isinstance(each, Abort) else type(each).__name__] += 1
                seen["reserved"] += isinstance(each, Admitted) and bool(each.reserved)

    expected = {
        "Admitted",
        "CommitGranted",
        "GrantRenewed",
        "AlreadyCommitted",
        "conflict",
        "writer-lost",
        "lease-lost",
    }
    assert expected | {"outcome-unknown", "superseded", "not-allowed"} <= set(seen), seen
    assert seen["reserved"] > 5, seen
    assert seen["published"] > 100, seen
    assert seen["conflict"] > 50, seen


def test_the_same_seed_gives_the_same_history() -> None:
    """Otherwise a failing seed could not be investigated."""
    assert history(3).w.log == history.__wrapped__(3).w.log


@pytest.mark.parametrize("seed", range(100))
def test_the_check_after_a_replay_visits_few_pairs_and_decides_as_if_it_visited_all(seed: int) -> None:
    """The log is of an agent that looked for no conflicts."""

    def all_that_may_conflict(alike: list[Touch], others: list[Touch]) -> list[Touch]:
        return others if may_conflict(alike[0], others[0]) else []

    rng = random.Random(seed)
    live = world(early_detection=False)
    for number in range(8):
        rule = rng.choice(["ordered", "ordered", "ordered", "file-group", "deleted-file"])
        live.intent(f"t{number}", conflict_rule=rule, priority=rng.choice([0, 0, seed % 2]))
    live.lock()
    for _ in range(20):
        name = f"t{rng.randrange(8)}"
        running = live.state.running()
        if rng.random() < 0.7:
            live.touch(name, m(f"p/{rng.randrange(6)}", rng.choice(["append", "append", "append", "delete"])))
        elif running is not None and rng.random() < 0.5:
            live.complete(running.id)
        elif name in live.state.transactions:
            live.request(name)
    live.settings = replace(live.settings, early_detection=True)
    quick, plain = live.rebuilt().replayed(), live.rebuilt()
    with patch.object(detection, "_rivals", all_that_may_conflict):
        plain.replayed()

    assert quick.effects == plain.effects
    assert facts(quick.state) == facts(plain.state)
