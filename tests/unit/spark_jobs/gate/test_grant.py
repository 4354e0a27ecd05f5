"""What a writer may report about its publish, and in which order."""

from __future__ import annotations

import threading

import pytest

from lakewarden.spark_jobs.gate.errors import BaseChanged
from lakewarden.spark_jobs.gate.grant import Grant, PublishOutcome


class Reports:
    """Keeps what a grant reports. `in_table` is the answer of the lookup."""

    def __init__(self, *, in_table: bool = False) -> None:
        self.in_table = in_table
        self.versions: list[str | None] = []
        self.grant = Grant(
            "g",
            1,
            check=lambda: 1.0,
            completed=lambda grant: self.versions.append(grant.version),
            failed=lambda _grant, _error: self.in_table,
        )


def test_a_commit_is_reported_once_by_whatever_thread() -> None:
    reports = Reports()
    threads = [threading.Thread(target=reports.grant.published, args=("7",)) for _ in range(8)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert reports.versions == ["7"]
    assert reports.grant.outcome is PublishOutcome.PUBLISHED


def test_a_reported_commit_cannot_be_withdrawn() -> None:
    reports = Reports()
    reports.grant.published("7")

    with pytest.raises(RuntimeError, match="reported as published in version 7, and that can't be withdrawn"):
        reports.grant.not_published()

    assert reports.grant.outcome is PublishOutcome.PUBLISHED


def test_a_commit_that_turns_out_to_be_there_counts_after_all() -> None:
    """The sink declared that nothing was published, and then read the table."""
    reports = Reports()
    reports.grant.not_published()
    reports.grant.published("7")
    assert reports.versions == ["7"]


def test_an_unknown_outcome_is_raised_unless_the_table_has_the_batch() -> None:
    Reports(in_table=True).grant.unknown(OSError("connection reset"))

    with pytest.raises(BaseChanged, match="a file is gone"):
        Reports(in_table=False).grant.unknown(BaseChanged("a file is gone"))
