"""Long seeded histories of a table among random writers (`table_history.py`). Hypothesis rarely reaches such states."""

from __future__ import annotations

from collections import Counter

import pytest

from lakewarden.handlers.table.verdicts import (
    AbortTransaction,
    Admit,
)
from tests.unit.handlers.table.table_history import history


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
    for seed in range(80):
        table = history(seed)
        seen["published"] += sum(each.published is not None for each in table.processes)
        for each in table.w.log:
            if not isinstance(each, tuple):
                seen[each.reason if isinstance(each, AbortTransaction) else type(each).__name__] += 1
                seen["reserved"] += isinstance(each, Admit) and bool(each.reserved)

    expected = {"Admit", "GrantCommit", "RenewGrant", "SkipBatch", "conflict", "writer-lost", "lease-lost"}
    assert expected | {"outcome-unknown", "superseded", "not-allowed"} <= set(seen), seen
    assert seen["reserved"] > 5, seen
    assert seen["published"] > 100, seen
    assert seen["conflict"] > 50, seen


def test_the_same_seed_gives_the_same_history() -> None:
    """Otherwise a failing seed could not be investigated."""
    assert history(3).w.log == history(3).w.log
