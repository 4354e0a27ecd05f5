"""Who holds a lock by the last step that its agent has published."""

from __future__ import annotations

import time

import pytest

from lakewarden.agent.operators.status import lock_holder
from lakewarden.events import AuditEventUnion, LockAcquired, LockReleased, LockRenewed
from tests.unit.events.building import made

HOUR = 3600.0
UNCONFIRMED = "left to lapse: no complete answer arrived"


def step(
    kind: type[LockAcquired | LockReleased | LockRenewed], seconds: float, detail: str | None
) -> AuditEventUnion:
    """A step whose lease ends in so many seconds."""
    return made(
        kind,
        table="s3://lake/t",
        lock="s3://lake/locks/t",
        valid_until=round((time.time() + seconds) * 1000),
        detail=detail,
    )


@pytest.mark.parametrize(
    "kind, seconds, detail, held, ends_with_lease",
    [
        (LockAcquired, HOUR, None, True, True),
        (LockRenewed, -1, None, False, True),
        (LockReleased, HOUR, None, False, False),
        (LockReleased, HOUR, UNCONFIRMED, True, True),
        (LockReleased, -1, UNCONFIRMED, False, True),
    ],
)
def test_a_lock_whose_release_was_not_confirmed_is_held_until_its_lease_ends(
    kind: type[LockAcquired | LockReleased | LockRenewed],
    seconds: float,
    detail: str | None,
    held: bool,
    ends_with_lease: bool,
) -> None:
    holder = lock_holder(step(kind, seconds, detail))

    assert (holder.held, holder.ends_with_lease) == (held, ends_with_lease)
    if detail is not None:
        assert holder.note == f" (its release was not confirmed, {detail})"
