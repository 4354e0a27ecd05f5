"""The states of a transaction as its writer knows them; lists of markers; the text of an abort."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from lakewarden.events import (
    MAX_MARKERS_PER_EVENT,
    Abort,
    Admitted,
    AlreadyCommitted,
    CommitGranted,
    GrantRenewed,
    Marker,
)
from lakewarden.spark_jobs.gate.errors import CommitAborted
from lakewarden.spark_jobs.gate.grant import MAX_SEND_TIMES, SendTimes
from lakewarden.spark_jobs.gate.progress import Change, ExpiredLease, GatePhase, GateProgress, GrantLease
from lakewarden.spark_jobs.gate.scope import as_scope
from tests.unit.events.building import E, an_overlap, made

TABLE = "file:///lake/t"


def decided(kind: type[E], /, **fields: Any) -> E:
    return made(kind, table=TABLE, transaction="t1", **fields)


ADMITTED = decided(Admitted)
ABORT = decided(Abort, reason="conflict")
COMMITTED = decided(AlreadyCommitted, committed_transaction="t0", version="4")


def granted(seq: int) -> CommitGranted:
    return decided(CommitGranted, grant="g", lease_seconds=20.0, seq=seq)


def renewed(seq: int, lease: float = 20.0, grant: str = "g") -> GrantRenewed:
    return decided(GrantRenewed, grant=grant, lease_seconds=lease, seq=seq)


def requested(*, sent_at: float = 100.0) -> tuple[GateProgress, int]:
    progress = GateProgress(TABLE, "w", margin_seconds=1.0)
    progress.apply(ADMITTED, 0)
    progress.request()
    return progress, progress.send_times.next_seq(sent_at)


def test_the_lease_starts_when_its_seq_was_sent() -> None:
    """Sent at 100, lease 20, margin 1: the deadline is 119, however late the grant arrives."""
    progress, seq = requested(sent_at=100.0)
    progress.send_times.next_seq(110.0)  # a later heartbeat, which the agent had not read

    progress.apply(granted(seq), 77)

    assert progress.begin_publish(118.999) == GrantLease("g", 77, seq, 20.0, 119.0)


def test_a_grant_expires_at_its_deadline() -> None:
    progress, seq = requested(sent_at=100.0)
    progress.apply(granted(seq), 77)

    assert progress.begin_publish(119.5) == ExpiredLease(GrantLease("g", 77, seq, 20.0, 119.0), 0.5)
    assert progress.phase is GatePhase.REQUESTED


def test_a_grant_for_an_unknown_seq_gives_no_lease() -> None:
    progress, seq = requested()
    progress.apply(granted(seq + 5), 77)
    assert progress.begin_publish(100.0) == ExpiredLease(GrantLease("g", 77, seq + 5, 20.0, None), None)


def test_a_renewal_extends_and_never_shortens() -> None:
    progress, seq = requested(sent_at=100.0)
    progress.apply(granted(seq), 77)
    beat = progress.send_times.next_seq(110.0)

    progress.apply(renewed(beat), 78)
    progress.apply(renewed(seq), 79)
    progress.apply(renewed(beat, lease=500.0, grant="another"), 80)

    assert isinstance(held := progress.begin_publish(128.0), GrantLease)
    assert (held.deadline, held.token) == (129.0, 77)
    assert isinstance(progress.check_lease(129.0), ExpiredLease)


def test_an_abort_before_the_publish_overrides_the_grant() -> None:
    progress, seq = requested()
    progress.apply(granted(seq), 77)

    assert progress.apply(ABORT, 78) is Change.ABORT
    assert progress.begin_publish(100.0) == ABORT


def test_an_abort_after_the_publish_began_is_only_recorded() -> None:
    progress, seq = requested()
    progress.apply(granted(seq), 77)
    progress.begin_publish(100.0)

    assert progress.apply(ABORT, 78) is Change.LATE_ABORT
    assert progress.abort is None
    assert progress.check_lease(100.0) == ABORT


def test_the_first_decision_wins() -> None:
    progress, seq = requested()
    assert progress.apply(ABORT, 1) is Change.ABORT
    assert progress.apply(ABORT, 2) is Change.NONE
    assert progress.apply(granted(seq), 3) is Change.NONE
    assert progress.lease is None


@pytest.mark.parametrize("name", ["table", "writer"])
def test_a_decision_on_the_same_id_of_another_table_or_writer_changes_nothing(name: str) -> None:
    """Any client can open a transaction with an id that it read in the log, and have its own grant or abort decided."""
    progress, seq = requested(sent_at=100.0)
    before = granted(seq)
    others = {name: "file:///lake/other"}

    assert progress.apply(before.model_copy(update=others), 77) is Change.NONE
    assert progress.apply(ABORT.model_copy(update=others), 78) is Change.NONE
    assert (progress.lease, progress.abort) == (None, None)
    assert progress.apply(before, 79) is Change.ANSWER


def test_an_abort_for_a_record_whose_writer_the_agent_could_not_read_ends_the_transaction() -> None:
    progress, _ = requested()

    assert progress.apply(ABORT.model_copy(update={"writer": "", "table": "file:///other"}), 8) is Change.NONE
    assert progress.apply(ABORT.model_copy(update={"writer": ""}), 9) is Change.ABORT


def test_a_grant_counts_only_while_the_writer_waits_for_it() -> None:
    early = GateProgress(TABLE, "w", 1.0)
    early.apply(ADMITTED, 0)
    assert early.apply(granted(early.send_times.next_seq(1.0)), 1) is Change.NONE

    late, seq = requested()
    late.end()
    assert late.apply(granted(seq), 2) is Change.NONE


def test_already_committed_ends_the_transaction() -> None:
    progress = GateProgress(TABLE, "w", 1.0)
    assert progress.apply(COMMITTED, 0) is Change.ANSWER
    assert progress.phase is GatePhase.ENDED
    assert progress.apply(ADMITTED, 1) is Change.NONE


def test_a_second_request_is_an_error_of_the_caller() -> None:
    progress, _ = requested()
    with pytest.raises(
        RuntimeError, match="call commit\\(\\) once, inside the transaction; its phase is requested"
    ):
        progress.request()


def test_send_times_are_bounded() -> None:
    times = SendTimes(1.0)
    for number in range(MAX_SEND_TIMES + 10):
        assert times.next_seq(float(number)) == number
    assert times.deadline(9, 5.0) is None
    assert times.deadline(10, 5.0) == 14.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.floats(1.1, 100.0), st.data())
def test_the_writers_deadline_is_never_later_than_the_agents(
    gaps: list[float], lease: float, data: st.DataObject
) -> None:
    """The agent's lease starts when it read a seq, which is never before that seq was sent."""
    times, now, sent_at = SendTimes(1.0), 0.0, []
    for gap in gaps:
        now += gap
        sent_at.append(now)
        times.next_seq(now)
    seq = data.draw(st.integers(0, len(gaps) - 1))
    read_at = sent_at[seq] + data.draw(st.floats(0, 100))

    deadline = times.deadline(seq, lease)
    assert deadline is not None
    assert deadline <= read_at + lease


def test_an_abort_names_the_table_the_other_writer_and_the_overlap() -> None:
    conflicts = tuple(an_overlap(f"month=1/day={day}", "arrivals:q2", file_group="*") for day in range(1, 8))
    error = CommitAborted(decided(Abort, reason="conflict", conflicts=conflicts))

    assert str(error) == (
        "commit aborted: partition month=1/day=1, partition month=1/day=2, partition month=1/day=3, "
        "partition month=1/day=4, partition month=1/day=5 and 2 more also written by writer 'arrivals:q2'; "
        "begin a new transaction with the same data; "
        "table=file:///lake/t writer=w transaction=t1 reason=conflict retriable=true"
    )


@pytest.mark.parametrize(
    "fields, begins",
    [
        (
            {"reason": "conflict", "conflicts": (an_overlap("day=1", "delta:9", file_group="*"),)},
            "commit aborted: partition day=1 also written by 'delta:9', without the gate; begin",
        ),
        (
            {"reason": "lease-lost", "detail": "requested by operator 'ann': its publish hangs"},
            "commit aborted: the agent withdrew the grant (requested by operator 'ann': its publish hangs); begin",
        ),
        ({"reason": "lease-lost"}, "commit aborted: the agent lost the table's lock; begin"),
    ],
)
def test_an_abort_names_who_causes_it(fields: dict[str, Any], begins: str) -> None:
    assert str(CommitAborted(decided(Abort, **fields))).startswith(begins)


def test_a_scope_that_is_too_long_becomes_whole_partitions() -> None:
    files = [
        Marker(partition=f"day={number % 3}", file_group=f"f{number}", operation="create")
        for number in range(MAX_MARKERS_PER_EVENT + 1)
    ]
    assert as_scope(files) == tuple(
        Marker(partition=f"day={day}", file_group="*", operation="merge") for day in range(3)
    )
    assert as_scope(files[:5]) == tuple(files[:5])
    partitions = [Marker(partition=f"p={n}", file_group="f", operation="create") for n in range(20_000)]
    assert len(as_scope(partitions)) == MAX_MARKERS_PER_EVENT


def test_the_package_imports_nothing_heavy() -> None:
    """A driver that only imports the errors loads no client, and the writer never imports anything of the agent."""
    import subprocess
    import sys

    code = (
        "import sys, lakewarden.spark_jobs\n"
        "heavy = ['pyspark', 'pypaimon', 'pyarrow', 'aiokafka']\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "from lakewarden.spark_jobs import CommitGate, PaimonSink\n"
        "never = ['pyspark', 'pypaimon', 'aiobotocore', 'typer', 'pydantic_settings', 'structlog', 'lakewarden.agent']\n"
        "print([name for name in never if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]


def test_an_abort_for_an_unknown_reason_is_raised_by_its_retriable() -> None:
    """A later agent may have reasons that this client doesn't know."""
    error = CommitAborted(decided(Abort, reason="eclipse", detail="the sun is gone"))

    assert error.retriable
    assert "eclipse" in str(error)
    assert "the sun is gone" in str(error)
