"""When the ledger of a prefix is at rest, and what the command says if not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lakewarden.handlers.table.at_rest import MAX_NAMED, Source, SourcePartition, refusals

AT_REST = Source("old", (SourcePartition(0, 7, 7), SourcePartition(1, None, 0), SourcePartition(2, 900, 900)))


def _require_reason(reasons: list[str], what: str, next_step: str) -> None:
    """There is one reason, which says what is wrong, and then what to do."""
    [reason] = reasons
    assert what in reason
    assert next_step in reason.partition(what)[2]


def test_a_log_at_rest_is_no_reason_to_refuse() -> None:
    """A partition that was never written to has no checkpoint."""
    assert refusals(AT_REST) == []


@pytest.mark.parametrize(
    ("changed", "what", "next_step"),
    [
        pytest.param(
            {"transactions": ("transaction T of writer w, table t, granted",)},
            "transactions of prefix old are open or in doubt (transaction T of writer w, table t, granted)",
            "lakewarden abort",
            id="open transaction",
        ),
        pytest.param(
            {"partitions": (SourcePartition(0, 7, 7), SourcePartition(1, 5, 9))},
            "no checkpoint covers the last events of old.writers (partition 1 from offset 5 to 9)",
            "start an agent",
            id="events after the checkpoint",
        ),
        pytest.param(
            {"partitions": (SourcePartition(0, None, 1),)},
            "(partition 0 from offset 0 to 1)",
            "start an agent",
            id="events without a checkpoint",
        ),
        pytest.param(
            {"partitions": (SourcePartition(0, 9, 7),)},
            "(partition 0 from offset 9 to 7)",
            "start an agent",
            id="checkpoint beyond the end",
        ),
        pytest.param(
            {"partitions": (SourcePartition(0, 7, 7, ("old.decisions begins late",)),)},
            "the log of prefix old can't be relied on (old.decisions begins late)",
            "start an agent of the newest version",
            id="incomplete log",
        ),
        pytest.param(
            {"agents": ("lakewarden-agent at 10.0.0.7",)},
            "agents serve prefix old (lakewarden-agent at 10.0.0.7)",
            "stop them with SIGTERM",
            id="agent",
        ),
        pytest.param(
            {"locks": ("table t, agent a, until noon",)},
            "agents hold locks (table t, agent a, until noon)",
            "wait until their leases have ended",
            id="lock",
        ),
    ],
)
def test_a_source_that_is_not_at_rest_is_refused(changed: dict[str, Any], what: str, next_step: str) -> None:
    _require_reason(refusals(replace(AT_REST, **changed)), what, next_step)


ADDED = replace(AT_REST, partitions=(*AT_REST.partitions, SourcePartition(3, None, 4)), partitions_before=3)
"""Partitions were added, and a writer has published four events since, which no agent may decide about."""


def test_events_since_partitions_were_added_may_be_left_behind_if_nothing_was_granted() -> None:
    """Nothing else could be done about them: no agent serves these topics any more."""
    opened = replace(ADDED, transactions=("transaction T of writer w, table t, open",))

    assert refusals(ADDED) == refusals(opened) == []
    assert [each.number for each in ADDED.unread] == [3]


@pytest.mark.parametrize(
    ("changed", "what", "next_step"),
    [
        pytest.param(
            {"undecided": ("transaction T of writer w, table t, granted",)},
            "(3, now 4), and no agent may decide about what was published since (transaction T of writer w",
            "Partitions added by mistake",
            id="grant",
        ),
        pytest.param(
            {
                "partitions": (
                    *ADDED.partitions[:3],
                    SourcePartition(3, None, 0, ("old.decisions begins late",)),
                )
            },
            "since (old.decisions begins late)",
            "Partitions added by mistake",
            id="incomplete log",
        ),
        pytest.param(
            {"partitions": (SourcePartition(0, 9, 7), *ADDED.partitions[1:])},
            "since (partition 0 ends at offset 7 and was read up to 9)",
            "Partitions added by mistake",
            id="checkpoint beyond the end",
        ),
        pytest.param({"locks": ("l",)}, "agents hold locks (l)", "wait until", id="lock"),
        pytest.param({"agents": ("a",)}, "agents serve prefix old (a)", "SIGTERM", id="agent"),
    ],
)
def test_what_may_have_followed_since_partitions_were_added_is_refused(
    changed: dict[str, Any], what: str, next_step: str
) -> None:
    """A granted transaction may have published. The ledger doesn't have it, so its batch would be written twice."""
    _require_reason(refusals(replace(ADDED, **changed)), what, next_step)


def test_all_reasons_are_given_and_each_names_the_first_of_many() -> None:
    """A thousand open transactions make one line, not a page."""
    many = tuple(f"transaction T{number}" for number in range(1_000))
    busy = replace(AT_REST, transactions=many, agents=("a",), locks=("l",))

    reasons = refusals(busy)

    assert len(reasons) == 3
    assert f"T{MAX_NAMED - 1} and {1_000 - MAX_NAMED} more" in reasons[1]
    assert f"T{MAX_NAMED}" not in reasons[1]
