"""Which inputs each state accepts, and the state after each: the tables are the specification."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest

from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.conditional import (
    Absent,
    Found,
    Lost,
    ReadOutcome,
    Refused,
    Throttled,
    Unknown,
    Won,
    WriteOutcome,
)
from lakewarden.handlers.lease.lock_object import render
from lakewarden.handlers.lease.machine import (
    Acquire,
    AcquisitionObserved,
    Get,
    IllegalInputError,
    Input,
    Put,
    ReadDone,
    Reading,
    Release,
    ReleaseObserved,
    Timer,
    WriteDone,
    Writing,
    lease_of,
)
from tests.unit.handlers.lease.lease_keeper import STATES, Keeper, foreign

INPUTS: dict[str, Callable[[Keeper], Input]] = {
    "acquire": lambda k: Acquire(k.at()),
    "release": lambda k: Release(k.at()),
    "timer": lambda k: Timer(k.at()),
    "release observed": lambda k: ReleaseObserved(k.at(), 0),
    "acquisition observed": lambda k: AcquisitionObserved(k.at(), k.wall + 30_000),
    "read done": lambda k: ReadDone(k.at(), Unknown("timeout")),
    "write done": lambda k: WriteDone(k.at(), Unknown("timeout")),
}
LEGAL = """
state                 acquire  release  timer    release observed  acquisition observed  read done  write done
idle                  Reading  Idle     Idle     Idle              Idle                  illegal    illegal
reading               Reading  Reading  Reading  Reading           Reading               Waiting    illegal
writing               Writing  Writing  Writing  Writing           Writing               illegal    Reading
held                  Held     Writing  Held     Held              Held                  illegal    illegal
renewing              Writing  Writing  Writing  Writing           Writing               illegal    Reading
reading back          Reading  Reading  Reading  Reading           Reading               Waiting    illegal
waiting for a holder  Waiting  Idle     Waiting  Reading           Waiting               illegal    illegal
backing off           Waiting  Idle     Waiting  Reading           Waiting               illegal    illegal
releasing             Writing  Writing  Writing  Writing           Writing               illegal    Reading
"""
"""The state after each input. The answers are `Unknown`."""


def table(text: str) -> dict[tuple[str, str], str]:
    """Cells by row and column name. Columns are separated by at least two spaces."""
    head, *rows = [re.split(r"  +", line.strip()) for line in text.strip().splitlines()]
    return {(row[0], name): cell for row in rows for name, cell in zip(head[1:], row[1:], strict=True)}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", INPUTS)
def test_exactly_the_legal_pairs_are_accepted(state: str, name: str) -> None:
    """An answer to a request that was not sent is a programming error."""
    keeper = STATES[state]()
    expected = table(LEGAL)[state, name]

    if expected == "illegal":
        before = keeper.state
        with pytest.raises(IllegalInputError, match="the lock automaton got"):
            keeper.step(INPUTS[name](keeper))
        assert keeper.state is before
    else:
        assert type(keeper.step(INPUTS[name](keeper)).state).__name__ == expected


def test_the_table_in_the_module_docstring_is_what_the_automaton_does() -> None:
    """A long random walk takes each transition of the table, and no other."""
    documented = table(next(each for each in (lease.__doc__ or "").split("\n\n") if "input  " in each))
    states = {"Idle", "Reading", "Writing", "Held", "Waiting"}
    cells = {"any": states, "any but Held": states - {"Held"}, "illegal": set[str]()}

    seen: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for name, before, after in walk(Random(1), steps=10_000):
        seen[name, before].add(after)

    assert {pair: seen[pair] for pair in documented} == {
        pair: cells.get(cell) or set(cell.split(", ")) - {"illegal"} for pair, cell in documented.items()
    }


def walk(random: Random, steps: int) -> Iterator[tuple[str, str, str]]:
    """Random inputs and answers, each with the state before and after it."""
    keeper = Keeper()
    for _ in range(steps):
        keeper.now += random.choice((0.0, 0.01, 0.01, 1.0, 3.0, 12.0))
        keeper.jitter = random.random()
        name = random.choice(
            [name for name in INPUTS if not name.endswith("done")]
            + ["read done"] * 5 * isinstance(keeper.state, Reading)
            + ["write done"] * 5 * isinstance(keeper.state, Writing)
        )
        before, ends = keeper.state, keeper.lease_ends_next()
        keeper.step(_any_input(random, keeper, name))
        if not ends:
            yield name, type(before).__name__, type(keeper.state).__name__


def _any_input(random: Random, keeper: Keeper, name: str) -> Input:
    at = keeper.at()
    match name:
        case "acquire":
            return Acquire(at, random.choice((None, "java")), random.choice((0, 0, 2)))
        case "release observed":
            return ReleaseObserved(at, random.choice((0, 2)))
        case "read done":
            return ReadDone(at, _anything_found(random, keeper))
        case "write done":
            return WriteDone(at, random.choice((Won("w"), Won("w"), Won("w"), *OUTCOMES.values())))
        case _:
            return INPUTS[name](keeper)


def _anything_found(random: Random, keeper: Keeper) -> ReadOutcome:
    records = [foreign(left, expired=expired, at=keeper) for left in (-9, 20) for expired in (True, False)]
    if keeper.puts:
        records += 4 * [keeper.written, replace(keeper.written, expired=True)]
    found: list[ReadOutcome] = [Found(render(each), "r") for each in records]
    return random.choice(
        [*found, Absent(), Found(b"hello", "m"), Unknown("500"), Throttled("503"), Refused("403")]
    )


@pytest.mark.parametrize("state", STATES)
def test_one_request_is_outstanding_in_exactly_reading_and_writing(state: str) -> None:
    """The keeper runs one request at a time for each lock; a second one would race the first."""
    keeper = STATES[state]()

    outstanding = [each for each in keeper.effects if isinstance(each, Get | Put)]

    assert bool(outstanding) is isinstance(keeper.state, Reading | Writing)
    assert len(outstanding) <= 1


OUTCOMES: dict[str, WriteOutcome] = {
    "won": Won("v9"),
    "lost": Lost("412"),
    "throttled": Throttled("503"),
    "unknown": Unknown("500"),
    "refused": Refused("403"),
}
AFTER = """
state      won             lost         throttled  unknown      refused
writing    Held Confirmed  Reading Get  Waiting    Reading Get  Waiting LockDenied
renewing   Held Confirmed  Reading Get  Waiting    Reading Get  Waiting LockDenied
releasing  Idle Released   Reading Get  Waiting    Reading Get  Waiting
"""


@pytest.mark.parametrize("state", ["writing", "renewing", "releasing"])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_outcome_of_every_write_has_its_transition(state: str, outcome: str) -> None:
    """Won, lost, throttled, unknown, refused."""
    keeper = STATES[state]().writes(OUTCOMES[outcome])

    happened = [type(keeper.state), *(type(each) for each in keeper.effects)]

    assert " ".join(each.__name__ for each in happened) == table(AFTER)[state, outcome]
    if state == "renewing":
        assert lease_of(keeper.state) is not None
