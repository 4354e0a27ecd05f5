"""Seeded histories of a table among random writers (`random_table.py`)."""

from __future__ import annotations

import random
from collections.abc import Callable

from lakewarden.events import (
    Marker,
)
from tests.unit.handlers.table.random_table import WRITERS, Table


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
                conflict_rule=rng.choice(["file-group", "file-group", "deleted-file"]),
                priority=rng.choice([0, 0, 0, 1, -1]),
                scope=rng.choice([(), random_markers(rng)]),
                killed=rng.random() < 0.5,
            ),
        ),
        (12, lambda t: t.touch(index=index, found=random_markers(rng))),
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
