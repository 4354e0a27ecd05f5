"""A life is the same in whatever order its records are read, and each has one end."""

from __future__ import annotations

from itertools import permutations
from typing import Any, get_args

import pytest

from lakewarden.events import (
    Abort,
    Admitted,
    AlreadyCommitted,
    CommitCompleted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    ConflictEntry,
    TransactionAbandoned,
)
from lakewarden.handlers.explain.bars import COMMITTING, COMPUTING, WAITING, segments
from lakewarden.handlers.explain.life import End, Life, LifeStep
from tests.unit.events.building import made

NAMES = {"table": "s3://lake/t", "writer": "shop", "transaction": "T"}
ENTRY = ConflictEntry(
    partition="p",
    file_group="f",
    operation="merge",
    other_operation="merge",
    other_transaction="U",
    other_writer="crm",
    kind="marker",
)
GRANT = made(CommitGranted, **NAMES, grant="g", lease_seconds=9, seq=1)
STARTED = (made(CommitIntent, **NAMES, batch_id=7), made(Admitted, **NAMES))
GRANTED = (*STARTED, made(CommitRequested, **NAMES, seq=1), GRANT)
DONE = made(CommitCompleted, **NAMES, grant="g")
LAPSE = made(Abort, **NAMES, reason="outcome-unknown", retriable=True)


def abort(reason: str) -> Abort:
    return made(Abort, **NAMES, reason=reason, retriable=True, conflicts=(ENTRY,))


def abandoned(cause: str | None, lost_to: str | None = None) -> TransactionAbandoned:
    return made(TransactionAbandoned, **NAMES, reason="r", cause=cause, lost_to=lost_to)


LIVES: dict[str, tuple[tuple[Any, ...], End]] = {
    "runs": (STARTED, End.RUNNING),
    "committed": ((*GRANTED, DONE), End.COMMITTED),
    "a commit is a fact, also after an abort": ((*GRANTED, abort("lease-lost"), DONE), End.COMMITTED),
    "a late report": ((*GRANTED, LAPSE, DONE), End.COMMITTED),
    "no report": ((*GRANTED, LAPSE), End.UNKNOWN),
    "nothing was published after all": ((*GRANTED, LAPSE, abandoned("failed")), End.ABORTED),
    "skipped": ((STARTED[0], made(AlreadyCommitted, **NAMES, committed_transaction="S")), End.SKIPPED),
    "lost a conflict": ((*STARTED, abort("conflict")), End.CONFLICT),
    "met one without a report": ((*STARTED, abort("outcome-unknown")), End.ABORTED),
    "lost its writer": ((*STARTED, abort("writer-lost")), End.ABORTED),
    "empty": ((*STARTED, abandoned("empty")), End.EMPTY),
    "bypassed": ((*GRANTED, abandoned("base-changed", "version 49")), End.BYPASSED),
    "lost to a commit without a name": ((*GRANTED, abandoned("base-changed")), End.ABORTED),
    "lost to the gate": ((*GRANTED, abandoned("lost-to-gate", "version 49")), End.ABORTED),
    "by an earlier release": ((*GRANTED, abandoned(None, "version 49")), End.ABORTED),
}


@pytest.mark.parametrize(("records", "end"), LIVES.values(), ids=LIVES)
def test_a_life_has_one_end_in_whatever_order_its_records_are_read(
    records: tuple[Any, ...], end: End
) -> None:
    told = list(enumerate(records))
    for order in permutations(told):
        life = Life("T", "shop")
        assert all(life.note(record, at) for at, record in order)
        assert not any(life.note(record, at + 9) for at, record in order), "delivered again"

        assert life.end is end
        assert life.batch_id == 7
        assert (life.started, life.last) == (0, len(records) - 1)
        assert life.ended == (None if end is End.RUNNING else len(records) - 1)
        assert set(life.times) <= set(get_args(LifeStep))


RUNNING = (0, 20, COMPUTING[End.RUNNING][0])
BARS: dict[str, tuple[dict[LifeStep, float], str | None, list[tuple[float, float, str]]]] = {
    "waits for nothing yet": ({"intent": 0}, None, [RUNNING]),
    "is admitted later": ({"intent": 0, "admitted": 4}, None, [(0, 4, WAITING), (4, 20, RUNNING[2])]),
    "waits for its grant": (
        {"intent": 0, "admitted": 0, "requested": 10, "granted": 10.5, "completed": 11},
        None,
        [(0, 10, COMPUTING[End.COMMITTED][0]), (10, 10.5, WAITING), (10.5, 11, COMMITTING)],
    ),
    "loses": (
        {"intent": 0, "admitted": 0, "abort": 2, "abandoned": 3},
        "conflict",
        [(0, 3, COMPUTING[End.CONFLICT][0])],
    ),
}


@pytest.mark.parametrize("name", BARS)
def test_a_life_is_drawn_in_its_phases(name: str) -> None:
    times, reason, drawn = BARS[name]
    life = Life("T", "shop", times=dict(times), reason=reason)

    assert [(part.begin, part.end, part.colour) for part in segments(life, 20)] == drawn
