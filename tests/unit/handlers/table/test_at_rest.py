"""When the ledger of a prefix is at rest, and what the command says if not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lakewarden.handlers.table.at_rest import MAX_NAMED, Source, SourcePartition, refusals

AT_REST = Source("old", (SourcePartition(0, 7, 7), SourcePartition(1, None, 0), SourcePartition(2, 900, 900)))


ADDED = replace(AT_REST, partitions=(*AT_REST.partitions, SourcePartition(3, None, 4)), partitions_before=3)
"""Partitions were added, and a writer has published four events since, which no agent may decide about."""

GRANTED = "transaction T of writer w, table t, granted"
LATE = ("old.decisions begins late",)
BEYOND = SourcePartition(0, 9, 7)


def test_a_log_at_rest_is_no_reason_to_refuse() -> None:
    """A partition that was never written to has no checkpoint."""
    assert refusals(AT_REST) == []


def test_events_since_partitions_were_added_may_be_left_behind_if_nothing_was_granted() -> None:
    """Nothing else could be done about them: no agent serves these topics any more."""
    opened = replace(ADDED, transactions=("transaction T of writer w, table t, open",))

    assert refusals(ADDED) == refusals(opened) == []
    assert [each.number for each in ADDED.unread] == [3]


BY_HAND = "Partitions added by mistake"
REFUSED: dict[str, tuple[Source, dict[str, Any], str, str]] = {
    "open transaction": (
        AT_REST,
        {"transactions": (GRANTED,)},
        f"transactions of prefix old are open or in doubt ({GRANTED})",
        "lakewarden abort",
    ),
    "events after the checkpoint": (
        AT_REST,
        {"partitions": (SourcePartition(0, 7, 7), SourcePartition(1, 5, 9))},
        "no checkpoint covers the last events of old.writers (partition 1 from offset 5 to 9)",
        "start an agent",
    ),
    "events without a checkpoint": (
        AT_REST,
        {"partitions": (SourcePartition(0, None, 1),)},
        "(partition 0 from offset 0 to 1)",
        "start an agent",
    ),
    "checkpoint beyond the end": (
        AT_REST,
        {"partitions": (BEYOND,)},
        "(partition 0 from offset 9 to 7)",
        "start an agent",
    ),
    "incomplete log": (
        AT_REST,
        {"partitions": (SourcePartition(0, 7, 7, LATE),)},
        "the log of prefix old can't be relied on (old.decisions begins late)",
        "start an agent of the newest version",
    ),
    "agent": (AT_REST, {"agents": ("a at h",)}, "agents serve prefix old (a at h)", "stop them with SIGTERM"),
    "lock": (AT_REST, {"locks": ("l",)}, "agents hold locks (l)", "wait until their leases have ended"),
    # A granted transaction may have published. The ledger doesn't have it, so its batch would be written twice.
    "grant, partitions added": (
        ADDED,
        {"undecided": (GRANTED,)},
        f"(3, now 4), and no agent may decide about what was published since ({GRANTED})",
        BY_HAND,
    ),
    "incomplete log, partitions added": (
        ADDED,
        {"partitions": (*ADDED.partitions[:3], SourcePartition(3, None, 0, LATE))},
        "since (old.decisions begins late)",
        BY_HAND,
    ),
    "checkpoint beyond the end, partitions added": (
        ADDED,
        {"partitions": (BEYOND, *ADDED.partitions[1:])},
        "since (partition 0 ends at offset 7 and was read up to 9)",
        BY_HAND,
    ),
    "lock, partitions added": (ADDED, {"locks": ("l",)}, "agents hold locks (l)", "wait until"),
    "agent, partitions added": (ADDED, {"agents": ("a",)}, "agents serve prefix old (a)", "SIGTERM"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_source_that_is_not_at_rest_is_refused_and_the_reason_says_what_to_do(case: str) -> None:
    source, changed, what, next_step = REFUSED[case]

    [reason] = refusals(replace(source, **changed))

    assert what in reason
    assert next_step in reason.partition(what)[2]


def test_all_reasons_are_given_and_each_names_the_first_of_many() -> None:
    """A thousand open transactions make one line, not a page."""
    many = tuple(f"transaction T{number}" for number in range(1_000))
    busy = replace(AT_REST, transactions=many, agents=("a",), locks=("l",))

    reasons = refusals(busy)

    assert len(reasons) == 3
    assert f"T{MAX_NAMED - 1} and {1_000 - MAX_NAMED} more" in reasons[1]
    assert f"T{MAX_NAMED}" not in reasons[1]
