"""Which inputs each state takes, and where they lead: the tables are the specification."""

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
    "want": lambda k: Acquire(k.at()),
    "drop": lambda k: Release(k.at()),
    "timer": lambda k: Timer(k.at()),
    "heard released": lambda k: ReleaseObserved(k.at(), 0),
    "heard taken": lambda k: AcquisitionObserved(k.at(), k.wall + 30_000),
    "read done": lambda k: ReadDone(k.at(), Unknown("timeout")),
    "write done": lambda k: WriteDone(k.at(), Unknown("timeout")),
}
LEGAL = """
state                want     drop     timer    heard released  heard taken  read done  write done
idle                 Reading  Idle     Idle     Idle            Idle         illegal    illegal
reading              Reading  Reading  Reading  Reading         Reading      Waiting    illegal
writing              Writing  Writing  Writing  Writing         Writing      illegal    Reading
held                 Held     Writing  Held     Held            Held         illegal    illegal
renewing             Writing  Writing  Writing  Writing         Writing      illegal    Reading
reading back         Reading  Reading  Reading  Reading         Reading      Waiting    illegal
waiting for another  Waiting  Idle     Waiting  Reading         Waiting      illegal    illegal
backing off          Waiting  Idle     Waiting  Reading         Waiting      illegal    illegal
releasing            Writing  Writing  Writing  Writing         Writing      illegal    Reading
"""
"""The state after each input; an answer here is `Unknown`."""


def table(text: str) -> dict[tuple[str, str], str]:
    """Cells by the names of their row and column; columns are two spaces apart."""
    head, *rows = [re.split(r"  +", line.strip()) for line in text.strip().splitlines()]
    return {(row[0], name): cell for row in rows for name, cell in zip(head[1:], row[1:], strict=True)}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("given", INPUTS)
def test_exactly_the_legal_pairs_are_accepted(state: str, given: str) -> None:
    """The table is the specification; an answer to a request that wasn't sent is a bug of the shell."""
    keeper = STATES[state]()
    expected = table(LEGAL)[state, given]

    if expected == "illegal":
        before = keeper.state
        with pytest.raises(IllegalInputError, match="lock automaton got"):
            keeper.give(INPUTS[given](keeper))
        assert keeper.state is before
    else:
        assert type(keeper.give(INPUTS[given](keeper)).state).__name__ == expected


def test_the_modules_table_is_what_the_automaton_does() -> None:
    """A long random walk takes each of the ways in the table of its docstring, and no other."""
    spelled = table(next(each for each in (lease.__doc__ or "").split("\n\n") if "input  " in each))
    states = {"Idle", "Reading", "Writing", "Held", "Waiting"}
    ways = {"any": states, "any but Held": states - {"Held"}, "illegal": set[str]()}

    taken: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for given, before, after in walk(Random(1), steps=10_000):
        taken[given, before].add(after)

    assert {pair: taken[pair] for pair in spelled} == {
        pair: ways.get(cell) or set(cell.split(", ")) - {"illegal"} for pair, cell in spelled.items()
    }


def walk(random: Random, steps: int) -> Iterator[tuple[str, str, str]]:
    """Inputs as they come, answers whatever they may be: each with the state before and after it."""
    keeper = Keeper()
    for _ in range(steps):
        keeper.now += random.choice((0.0, 0.01, 0.01, 1.0, 3.0, 12.0))
        keeper.jitter = random.random()
        given = random.choice(
            [name for name in INPUTS if not name.endswith("done")]
            + ["read done"] * 5 * isinstance(keeper.state, Reading)
            + ["write done"] * 5 * isinstance(keeper.state, Writing)
        )
        before, given_up = keeper.state, keeper.is_due_to_give_up()
        keeper.give(_any_input(random, keeper, given))
        if not given_up:
            yield given, type(before).__name__, type(keeper.state).__name__


def _any_input(random: Random, keeper: Keeper, given: str) -> Input:
    at = keeper.at()
    match given:
        case "want":
            return Acquire(at, random.choice((None, "java")), random.choice((0, 0, 2)))
        case "heard released":
            return ReleaseObserved(at, random.choice((0, 2)))
        case "read done":
            return ReadDone(at, _anything_found(random, keeper))
        case "write done":
            return WriteDone(at, random.choice((Won("w"), Won("w"), Won("w"), *OUTCOMES.values())))
        case _:
            return INPUTS[given](keeper)


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
    """The shell runs one request a table; a second one would race the first."""
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
releasing  Idle Released   Reading Get  Waiting    Reading Get  Idle Released
"""


@pytest.mark.parametrize("state", ["writing", "renewing", "releasing"])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_outcome_of_every_write_has_its_consequence(state: str, outcome: str) -> None:
    """Won, lost, throttled, unknown, refused: never two of them."""
    keeper = STATES[state]().writes(OUTCOMES[outcome])

    happened = [type(keeper.state), *(type(each) for each in keeper.effects)]

    assert " ".join(each.__name__ for each in happened) == table(AFTER)[state, outcome]
    if state == "renewing":
        assert lease_of(keeper.state) is not None
