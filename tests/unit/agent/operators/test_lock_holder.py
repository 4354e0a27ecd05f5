"""Who holds a lock by the last step that its agent has published."""

from __future__ import annotations

import time

import pytest

from lakewarden.agent.operators.status import lock_holder
from lakewarden.events import AuditEventUnion, LockAcquired, LockReleased, LockRenewed

pytestmark = [pytest.mark.unit]
UNCONFIRMED = "left to lapse: no complete answer arrived"


def step(
    kind: type[LockAcquired | LockReleased | LockRenewed], seconds: float, detail: str | None = None
) -> AuditEventUnion:
    """A step whose lease ends in so many seconds."""
    return kind(
        event_id="e",
        table="s3://lake/t",
        at="2026-11-22T17:00:00Z",  # type: ignore[arg-type]
        agent="a",
        lock="s3://lake/locks/t",
        owner="o",
        valid_until=round((time.time() + seconds) * 1000),
        requests=1,
        duration_ms=1,
        detail=detail,
    )


@pytest.mark.parametrize(
    "last, held, ends_with_lease",
    [
        (step(LockAcquired, 600), True, True),
        (step(LockRenewed, -1), False, True),
        (step(LockReleased, 600), False, False),
        (step(LockReleased, 600, UNCONFIRMED), True, True),
        (step(LockReleased, -1, UNCONFIRMED), False, True),
    ],
)
def test_a_lock_whose_release_was_not_confirmed_is_held_until_its_lease_ends(
    last: AuditEventUnion, held: bool, ends_with_lease: bool
) -> None:
    holder = lock_holder(last)

    assert (holder.held, holder.ends_with_lease) == (held, ends_with_lease)
    if last.detail is not None:
        assert holder.note == f" (its release was not confirmed, {UNCONFIRMED})"
