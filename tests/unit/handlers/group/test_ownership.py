"""When an owner may keep its partition through a rebalance."""

from __future__ import annotations

import pytest

from lakewarden.handlers.group.ownership import TakeOvers, may_resume


@pytest.mark.parametrize(
    ("again", "others", "read_until", "answer"),
    [
        pytest.param(30, 7, 31, "yes", id="another agent joined the group, and this partition stayed"),
        pytest.param(30, 20, 31, "no", id="this agent missed a generation"),
        pytest.param(30, 31, 32, "no", id="the partition has moved in the next round already"),
        pytest.param(-1, 11, 12, "no", id="another take-over was read"),
        pytest.param(-1, -1, 30, "unknown yet", id="its own record was not sent"),
        pytest.param(30, -1, 30, "unknown yet", id="another take-over may lie directly before its own"),
    ],
)
def test_an_owner_resumes_if_nobody_else_took_its_partition(
    again: int, others: int, read_until: int, answer: str
) -> None:
    assert may_resume(TakeOvers(own=10, again=again, others=others), read_until) == answer
