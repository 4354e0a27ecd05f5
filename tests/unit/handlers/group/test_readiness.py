"""When an agent is ready, and what it says where it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakewarden.handlers.group.readiness import AgentFacts, Lag, Limits, OwnedPartition, conditions, is_ready

LIMITS = Limits(seconds=10.0, check_seconds=1.0)
READY = AgentFacts(
    now=1000.0,
    assigned=True,
    partitions=(OwnedPartition(0, "live", 0, 999.0), OwnedPartition(3, "live", 2, 990.0)),
    queued_at=999.5,
    checked_at=999.0,
)
NO_OWNER = "no agent of the group owns 3 partitions: 0, 1, 2; the topic may have been deleted"
TEN_LOADING = ", ".join(f"{each} (loading)" for each in range(10))


def failing(facts: AgentFacts) -> dict[str, str]:
    return {each.name: each.text for each in conditions(facts, LIMITS) if not each.holds}


def test_an_agent_is_ready_if_every_condition_holds() -> None:
    found = conditions(READY, LIMITS)

    assert is_ready(found)
    assert [each.name for each in found] == ["assigned", "live", "caught-up", "acknowledged", "checked"]
    assert found[2].text == "the agent has read everything that was in the log 10.0 s ago"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"partitions": (OwnedPartition(0, "live", 0, 999.0), OwnedPartition(3, "replaying", 9, 999.0))},
            {"live": "the agent doesn't decide in 1 partition: 3 (replaying)"},
        ),
        (
            {"partitions": (OwnedPartition(0, "live", 0, 999.0), OwnedPartition(3, "refused", 0, 999.0))},
            {"live": "the agent doesn't decide in 1 partition: 3 (refused)"},
        ),
        (
            {"partitions": (OwnedPartition(3, "live", 70, 986.0),)},
            {"caught-up": "the agent is more than 13 s behind in 1 partition: 3 (14 s, 70 records unread)"},
        ),
        (
            {"partitions": (OwnedPartition(3, "live", 70, None),)},
            {"caught-up": "the agent has not read 1 partition to the log's end yet: 3"},
        ),
        (
            {"queued_at": 989.0},
            {
                "acknowledged": "the oldest record that Kafka has not acknowledged was queued 11.0 s ago, which is more than 10 s"
            },
        ),
        (
            {"checked_at": 980.0},
            {"checked": "the last periodic check ended 20.0 s ago, which is more than 13 s"},
        ),
        (
            {"assigned": False, "problem": "no broker answers at kafka:9092"},
            {
                "assigned": "the agent has no session with Kafka: no broker answers at kafka:9092",
                "live": "no partition is assigned, so the agent decides nothing",
                "caught-up": "no partition is assigned, so the agent reads nothing",
            },
        ),
        ({"checked_at": None}, {"checked": "there was no periodic check in this session yet"}),
        # There are more agents than partitions: a spare one takes over when another agent ends.
        ({"partitions": (), "queued_at": None}, {}),
        # The topic was deleted: the group's round has assigned nothing to anyone, and each agent looked like a spare one.
        ({"partitions": (), "unowned": (0, 1, 2)}, {"assigned": NO_OWNER}),
        ({"unowned": (0, 1, 2)}, {"assigned": NO_OWNER}),
        # A rebalance.
        (
            {"assigned": False},
            {
                "assigned": "the consumer group has not assigned partitions to this agent yet",
                "live": "no partition is assigned, so the agent decides nothing",
                "caught-up": "no partition is assigned, so the agent reads nothing",
            },
        ),
        (
            {"partitions": tuple(OwnedPartition(each, "loading", 0, 999.0) for each in range(12))},
            {"live": f"the agent doesn't decide in 12 partitions: {TEN_LOADING} and 2 more"},
        ),
    ],
)
def test_a_condition_that_does_not_hold_says_which_partition_or_time_it_is(
    change: dict[str, object], expected: dict[str, str]
) -> None:
    facts = replace(READY, **change)  # type: ignore[arg-type]

    assert failing(facts) == expected
    assert is_ready(conditions(facts, LIMITS)) is (expected == {})


def test_an_owner_that_follows_a_busy_log_at_a_distance_is_behind_by_that_distance_only() -> None:
    """The log grows by 10 records a second, and the owner is two seconds behind: it never reaches the latest end."""
    lag = Lag()
    for second in range(100):
        lag.note_end(10 * second, float(second))
        lag.note_position(10 * (second - 2))

    assert lag.reached_at is not None
    assert 95.0 <= lag.reached_at <= 97.0


def test_an_owner_that_has_read_everything_has_reached_the_latest_end() -> None:
    lag = Lag()
    lag.note_end(10, 1.0)
    lag.note_end(20, 2.0)
    lag.note_position(20)

    assert lag.reached_at == 2.0


def test_an_owner_that_reads_nothing_is_behind_since_the_first_end_it_has_not_reached() -> None:
    lag = Lag()
    lag.note_end(10, 1.0)
    lag.note_position(10)
    for second in range(2, 50):
        lag.note_end(11 + second, float(second))
        lag.note_position(10)

    assert lag.reached_at == 1.0
