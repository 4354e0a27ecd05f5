"""The manual release of a lock, over a store that loses answers."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from lakewarden.agent.errors import AgentError
from lakewarden.agent.locks.commands import (
    RELEASE_TRIES,
    NotReleased,
    ReleaseResult,
    StoreUnavailableError,
    release_in,
)
from lakewarden.handlers.lease.conditional import Lost, ReadOutcome, Refused, Throttled, Unknown, WriteOutcome
from lakewarden.handlers.lease.lock_object import LockRecord, parse, render
from tests.servers.memory_store import Fault, MemoryStore, Request

URI = "memory://locks/t.json"
UNTIL = time.time_ns() // 1_000_000 + 30_000
HELD = LockRecord(expired=False, valid_until=UNTIL, owner="x")


LOST_ANSWER = Unknown("no answer")


@dataclass
class Trouble:
    """The faults of the writes, in their order. `meanwhile` runs before the first write, `then` after a lost answer."""

    before_writes: list[Fault | None] = field(default_factory=list)
    after_writes: list[Unknown | None] = field(default_factory=list)
    meanwhile: Callable[[], None] | None = None
    then: Callable[[], None] | None = None
    silent_after_writes: int | None = None
    writes: int = 0

    async def before(self, request: Request) -> Fault | None:
        if request.operation != "write":
            return LOST_ANSWER if self.writes == self.silent_after_writes else None
        self.writes += 1
        if self.meanwhile is not None:
            self.meanwhile()
            self.meanwhile = None
        return self.before_writes.pop(0) if self.before_writes else None

    async def after(self, request: Request, outcome: ReadOutcome | WriteOutcome | None) -> Unknown | None:
        if request.operation != "write" or isinstance(outcome, Lost):
            return None
        lost = self.after_writes.pop(0) if self.after_writes else None
        if lost is not None and self.then is not None:
            self.then()
        return lost


async def released(objects: dict[str, bytes], trouble: Trouble) -> ReleaseResult:
    async with MemoryStore(request_timeout_seconds=1, objects=objects, faults=trouble) as store:
        return await release_in(store, URI, "x")


def record(objects: dict[str, bytes]) -> LockRecord:
    found = parse(objects[URI])
    assert isinstance(found, LockRecord)
    return found


async def test_a_release_whose_answer_was_lost_is_read_back() -> None:
    objects, trouble = {URI: render(HELD)}, Trouble(after_writes=[LOST_ANSWER])

    result = await released(objects, trouble)

    assert (result.owner, result.current_owner, result.valid_until_ms) == ("x", None, UNTIL)
    assert record(objects) == LockRecord(expired=True, valid_until=UNTIL, owner="x")
    assert trouble.writes == 1


@pytest.mark.parametrize("fault", [LOST_ANSWER, Throttled("slow down")])
async def test_a_write_without_effect_is_retried(fault: Fault) -> None:
    objects, trouble = {URI: render(HELD)}, Trouble(before_writes=[fault])

    await released(objects, trouble)

    assert record(objects).expired
    assert trouble.writes == 2


async def test_a_renewal_meanwhile_is_read_and_the_newer_lease_released() -> None:
    objects = {URI: render(HELD)}
    renewed = LockRecord(expired=False, valid_until=UNTIL + 3_000, owner="x")
    trouble = Trouble(meanwhile=lambda: objects.update({URI: render(renewed)}))

    result = await released(objects, trouble)

    assert result.valid_until_ms == UNTIL + 3_000
    assert record(objects) == LockRecord(expired=True, valid_until=UNTIL + 3_000, owner="x")


async def test_the_lock_of_another_owner_that_acquired_it_meanwhile_is_not_changed() -> None:
    objects = {URI: render(HELD)}
    other = render(LockRecord(expired=False, valid_until=UNTIL, owner="y"))

    with pytest.raises(NotReleased, match="held by another owner, y"):
        await released(objects, Trouble(meanwhile=lambda: objects.update({URI: other})))

    assert objects[URI] == other


async def test_the_result_names_an_owner_that_acquired_the_lock_after_an_unanswered_release() -> None:
    objects = {URI: render(HELD)}
    other = render(LockRecord(expired=False, valid_until=UNTIL, owner="y"))
    trouble = Trouble(after_writes=[LOST_ANSWER], then=lambda: objects.update({URI: other}))

    result = await released(objects, trouble)

    assert result.current_owner == "y"
    assert objects[URI] == other


async def test_the_result_does_not_name_an_owner_that_has_released_the_lock_since() -> None:
    objects = {URI: render(HELD)}
    other = render(LockRecord(expired=True, valid_until=UNTIL, owner="y"))
    trouble = Trouble(after_writes=[LOST_ANSWER], then=lambda: objects.update({URI: other}))

    assert (await released(objects, trouble)).current_owner is None


@pytest.mark.parametrize(
    ("writes", "message"),
    [
        (0, "memory://locks/t.json could not be read in 3 tries"),
        (1, "whether memory://locks/t.json was released is not known: no answer; then"),
    ],
)
async def test_the_error_about_a_silent_store_states_what_may_have_been_written(
    writes: int, message: str
) -> None:
    """After a write was sent, "could not be read" alone would read as "nothing was changed"."""
    objects = {URI: render(HELD)}
    trouble = Trouble(after_writes=[LOST_ANSWER], silent_after_writes=writes)

    with pytest.raises(StoreUnavailableError, match=message):
        await released(objects, trouble)

    assert trouble.writes == writes


async def test_an_outcome_that_stays_unknown_is_reported_as_unknown() -> None:
    objects, trouble = {URI: render(HELD)}, Trouble(before_writes=[LOST_ANSWER] * 99)

    with pytest.raises(AgentError, match="was released is not known"):
        await released(objects, trouble)

    assert trouble.writes == RELEASE_TRIES


async def test_a_refusal_is_reported_and_not_retried() -> None:
    objects, trouble = {URI: render(HELD)}, Trouble(before_writes=[Refused("forbidden")] * 99)

    with pytest.raises(AgentError, match="can't be written: forbidden"):
        await released(objects, trouble)

    assert trouble.writes == 1
    assert record(objects) == HELD
